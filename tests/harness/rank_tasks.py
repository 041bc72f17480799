"""Tasks that ranks run for the tests; loaded by file name."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from harness.arms import ORDINARY
from harness.consensus import check_agreement, check_mean_gradient
from harness.findings import Finding
from harness.job import Job
from harness.program import execute
from harness.ranks.context import RankContext
from harness.trace import Trace, parameters_of
from harness.wrapping import wrap
from matrix.blocks import MyBlock
from matrix.expectations import Fact
from matrix.programs import Backward, Forward, OptimizerStep, Program

STEP = Program(
    wrapper="ddp",
    broadcast_buffers=True,
    autocast=None,
    steps=(Forward(0), Forward(1), Backward((0, 1)), OptimizerStep()),
)


def _trace(gradient: Tensor, buffer: Tensor) -> Trace:
    module = nn.Linear(gradient.shape[0], 1, bias=False)
    module.weight = nn.Parameter(torch.zeros_like(gradient))
    return Trace(
        module,
        points={
            "set-up": {"parameters": {"weight": gradient}, "buffers": {"b": buffer}},
            "start of forward[0]": {"buffers": {"b": buffer}},
            "forward[0]": {"buffers": {"b": buffer}},
            "start of forward[1]": {"buffers": {"b": buffer}},
            "backward[0]": {"gradients": {"weight": gradient}, "buffers": {"b": buffer}},
            "step[0]": {"parameters": {"weight": gradient}, "buffers": {"b": buffer}},
        },
        forward_calls=[Counter()],
    )


def agreement(payload: tuple[str, bool, int], context: RankContext) -> tuple[list[Finding], bool]:
    """Ranks have the same or other values, and one of them votes that its arms differ."""
    fact, same, voter = payload
    value = torch.ones(3)
    if not same and context.rank == 1:
        value[2] = 5.0
    return check_agreement(
        frozenset({Fact(fact)}), STEP, _trace(value, value), context.rank, context.rank == voter
    )


def mean_gradient(scale: float, context: RankContext) -> list[Finding]:
    """Each rank has a gradient of its own; the reduced one is their mean times ``scale``."""
    own = [torch.tensor([1.0, 3.0, -2.0]) / 7 * (rank + 1) for rank in range(context.size)]
    mean = torch.stack(own).mean(0)
    mean[1] *= scale
    buffer = torch.zeros(1)
    judged, alone = _trace(mean, buffer), _trace(own[context.rank], buffer)
    return check_mean_gradient(STEP, judged, alone, context.rank, noise=0.0)


def is_mean_to_a_millionth(job: Job, context: RankContext) -> bool:
    """Whether the ordinary arm reduces gradients to about the mean of what ranks compute alone."""
    trace = execute(job, ORDINARY, context.rank)
    alone = execute(job, ORDINARY, context.rank, follow=trace)
    return not check_mean_gradient(job.program, trace, alone, context.rank, noise=1e-6)


def final_gradients_agree(job: Job, context: RankContext) -> tuple[bool, bool]:
    """Whether the ordinary arm's gradients, and its returned ones, agree between ranks."""
    trace = execute(job, ORDINARY, context.rank)
    last = list(trace.points.values())[-3]
    return _agree(last["gradients"]), _agree(last["returned_gradients"])


def weights_after_wrapping(program: Program, context: RankContext) -> bool:
    """Whether this rank still has the weight it built."""
    module = nn.Linear(1, 1, bias=False)
    nn.init.constant_(module.weight, 1.0 + context.rank)
    wrap(module, program)
    return module.weight.item() == 1.0 + context.rank


def sharded_units(program: Program, context: RankContext) -> tuple[list[str], bool]:
    """Paths of what FSDP2 shards, and whether whole tensors come back from the shards."""
    from torch.distributed.fsdp import FSDPModule

    torch.manual_seed(0)
    module = MyBlock(5)
    before = parameters_of(module)
    model = wrap(module, program)
    after = parameters_of(module)
    units = [path for path, unit in model.named_modules() if isinstance(unit, FSDPModule)]
    return units, all(torch.equal(before[name], after[name]) for name in before)


def _agree(values: dict[str, Any]) -> bool:
    everyone: list[Any] = [None] * dist.get_world_size()
    flat = [value for name, value in values.items() if not name.startswith("inputs.")]
    dist.all_gather_object(everyone, flat)
    return all(
        (first is None and second is None)
        or (first is not None and second is not None and torch.equal(first, second))
        for other in everyone
        for first, second in zip(everyone[0], other, strict=True)
    )
