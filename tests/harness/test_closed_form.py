"""The recurrence of running statistics, on right norms and on norms wrong in one way each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from harness.closed_form import running_statistics
from harness.norms import NormWatch
from harness.trace import Trace, buffers_of
from matrix.axes import AXES
from matrix.programs import Program, build_program
from matrix.values import Value


def program(**values: Value) -> Program:
    return build_program({**{axis.name: axis.default for axis in AXES}, **values})


def seen(
    module: nn.Module,
    batches: list[Tensor],
    after: Callable[[int, nn.Module], Any] = lambda index, module: None,
) -> Trace:
    """Return what is seen when a module runs on some batches, with something done after each."""
    watch = NormWatch(module)
    points = {"set-up": {"buffers": buffers_of(module)}}
    for index, batch in enumerate(batches):
        points[f"start of forward[{index}]"] = {"buffers": buffers_of(module)}
        with watch.forward():
            module(batch)
        points[f"forward[{index}]"] = {"buffers": buffers_of(module)}
        after(index, module)
        points[f"backward[{index}]"] = {"buffers": buffers_of(module)}
    return Trace(module, points=points, norm_calls=watch.forwards)


def batches(*shape: int, offset: float = 0.0, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [(offset + torch.randn(shape, generator=generator)).to(dtype) for _ in range(3)]


@pytest.mark.parametrize("momentum", [0.1, 1.0, None])
@pytest.mark.parametrize("offset", [0.0, 100.0])
@pytest.mark.parametrize(
    ("norm", "shape"),
    [
        (nn.BatchNorm1d, (40, 3)),
        (nn.BatchNorm1d, (4, 3, 9)),
        (nn.BatchNorm2d, (2, 3, 5, 4)),
        (nn.InstanceNorm1d, (4, 3, 9)),
        (nn.InstanceNorm1d, (3, 9)),
    ],
)
def test_torchs_own_norms_are_within_the_bound(
    norm: Any, shape: tuple[int, ...], momentum: float | None, offset: float
) -> None:
    if norm is nn.InstanceNorm1d and momentum is None:
        pytest.skip("InstanceNorm counts no batches, so it has no cumulative average")
    module = norm(3, momentum=momentum, track_running_stats=True)

    assert running_statistics(program(), seen(module, batches(*shape, offset=offset)), rank=0) == []


def test_half_precision_inputs_are_within_the_bound() -> None:
    module = nn.BatchNorm1d(3)

    judged = seen(module, batches(40, 3, dtype=torch.bfloat16))

    assert running_statistics(program(), judged, rank=0) == []


def test_a_norm_called_twice_in_a_forward_is_updated_twice() -> None:
    norm = nn.BatchNorm1d(3)
    judged = seen(nn.Sequential(norm, nn.Linear(3, 3), norm), batches(40, 3))

    assert [len(calls) for calls in judged.norm_calls] == [2, 2, 2]
    assert running_statistics(program(), judged, rank=0) == []


def test_a_second_update_is_found_at_the_point_where_it_happened() -> None:
    def update_again(index: int, module: nn.Module) -> None:
        if index == 1:
            module(batches(40, 3)[1])

    judged = seen(nn.Sequential(nn.BatchNorm1d(3)), batches(40, 3), update_again)

    mean, var = running_statistics(program(), judged, rank=1)

    assert (mean.rank, mean.point, mean.path) == (1, "backward[1]", "buffers/0.running_mean[0]")
    assert var.path == "buffers/0.running_var[0]"
    assert mean.max_abs is not None and mean.max_abs > mean.tolerance > 0
    assert mean.expected != mean.got
    assert mean.tolerance_source.startswith("closed form")


def test_a_drift_of_one_part_in_ten_thousand_is_found() -> None:
    def drift(index: int, module: nn.Module) -> None:
        module.running_var[2] *= 1.0001

    (finding,) = running_statistics(
        program(), seen(nn.BatchNorm1d(3), batches(40, 3), drift), rank=0
    )

    assert (finding.point, finding.path) == ("backward[0]", "buffers/running_var[2]")


def test_buffers_that_ddp_copied_from_rank_0_are_taken_over() -> None:
    def copied(index: int, module: nn.Module) -> None:
        module.running_mean.copy_(torch.tensor([1.0, 2.0, 3.0]))

    wrapped = program(wrapper="ddp", accumulation="joint", steps=3)
    judged = seen(nn.BatchNorm1d(3), batches(40, 3), copied)
    for index in range(3):
        del judged.points[f"backward[{index}]"]

    assert running_statistics(wrapped, judged, rank=1) == []
    assert running_statistics(wrapped, judged, rank=0)[0].point == "start of forward[1]"


def test_norms_that_compute_otherwise_are_left_out() -> None:
    class Own(nn.BatchNorm1d):
        def forward(self, x: Tensor) -> Tensor:
            self.running_mean += 1  # type: ignore[operator]
            return x

    module = nn.Sequential(Own(3), nn.BatchNorm1d(3, track_running_stats=False))

    assert running_statistics(program(), seen(module, batches(40, 3)), rank=0) == []
