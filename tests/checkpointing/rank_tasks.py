"""What the ranks of a pool run for the replay tests; loaded by file name."""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from harness.ranks.context import RankContext
from tests.checkpointing.stateful import Codebook
from tests.checkpointing.steps import Block
from tests.checkpointing.training import SUBJECTS, arms, changed, train, values
from wcn_ckpt import ReplayGuardError, configure_gradient_checkpointing


def _ddp(model: nn.Module, options: dict[str, Any]) -> nn.Module:
    return DistributedDataParallel(model, **options)


def _fsdp(model: nn.Module, options: dict[str, Any]) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    where = options["where"]
    settings: dict[str, Any] = {"mesh": mesh, "reshard_after_forward": options["reshard"]}
    if options.get("bf16"):
        settings["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    if where in ("inside", "both"):
        for module in list(model.modules()):
            own = any(True for _ in module.parameters(recurse=False))
            if own and not hasattr(module, "parametrizations"):
                fully_shard(module, **settings)
    if where in ("outside", "both"):
        for block in model.modules():
            if isinstance(block, Block) and block is not model:
                fully_shard(block, **settings)
    if options.get("root", True):
        fully_shard(model, **settings)
    return model


WRAPPERS = {"ddp": _ddp, "fsdp": _fsdp}


def compare(payload: dict[str, Any], context: RankContext) -> list[str]:
    """Train both arms in one wrapper; return what differs on this rank, and every warning."""
    wrapped = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for model in arms(payload["subject"]):
            if payload.get("write_first", False):
                train(model, "sgd", payload["accumulation"], seed=10 * context.rank, steps=1)
                for module in model.modules():
                    if isinstance(module, Codebook):
                        module.active = False
            wrapper = WRAPPERS[payload["wrapper"]]
            wrapped.append(wrapper(model, payload["options"]))
            train(
                wrapped[-1],
                payload["optimizer"],
                payload["accumulation"],
                payload.get("precision", "float32"),
                payload.get("in_backward", False),
                seed=10 * context.rank,
            )
    ours = [str(w.message) for w in caught if "wcn_ckpt" in type(w.message).__module__]
    return changed(*wrapped) + ours


def norm_between_two_forwards(
    payload: dict[str, bool], context: RankContext
) -> tuple[int, list[float]]:
    """Two forwards and one backward of a norm in DDP; its counter and running mean."""
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(2)
    block = Block(nn.Sequential(nn.Linear(2, 2), norm, nn.Tanh()))
    configure_gradient_checkpointing(block, payload["enable"])
    model = DistributedDataParallel(block, broadcast_buffers=payload["broadcast"])
    torch.manual_seed(context.rank)
    outs = [model(torch.randn(4, 2)), model(torch.randn(4, 2) + context.rank)]
    if payload["backward"]:
        (outs[0].sum() + outs[1].square().sum()).backward()
    assert norm.running_mean is not None
    return int(norm.num_batches_tracked or 0), norm.running_mean.tolist()


def ranks_agree(payload: dict[str, Any], context: RankContext) -> bool:
    """Whether parameters are equal on all ranks after training in DDP."""
    _, model = arms(payload["subject"])
    wrapped = _ddp(model, payload["options"])
    train(wrapped, "sgd", payload["accumulation"], seed=10 * context.rank)
    mine = torch.cat([v.flatten() for k, v in values(model).items() if "weight" in k])
    other = [torch.empty_like(mine) for _ in range(context.size)]
    dist.all_gather(other, mine)
    return all(torch.equal(mine, o) for o in other)


def moved_fsdp_ground(options: dict[str, Any], context: RankContext) -> str:
    """Step the optimizer of a sharded model between a forward and its backward."""
    torch.manual_seed(0)
    model = SUBJECTS["constants"]()
    configure_gradient_checkpointing(model, True)
    _fsdp(model, options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(5, 6)).sum().backward()
    loss = model(torch.ones(5, 6)).sum()
    optimizer.step()
    try:
        loss.backward()
    except ReplayGuardError as error:
        return str(error)
    return "not refused"


class BufferInGraph(nn.Module):
    """Multiplies by a constant that rank 0 changes; the next forward broadcasts it."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(2, 2)
        self.register_buffer("scale", torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        return (self.linear(x) * self.scale).tanh()


def broadcast_of_a_changed_buffer(
    payload: dict[str, bool], context: RankContext
) -> list[float] | str:
    """The gradient of the first of two forwards, with the buffer moved between them."""
    block = Block(BufferInGraph())
    configure_gradient_checkpointing(block, payload["enable"])
    model = DistributedDataParallel(block, broadcast_buffers=True)
    x = torch.ones(1, 2)
    first = model(x)
    if payload["change"] and context.rank == 0:
        block.body.scale.data.fill_(3.0)
    model(x * 2)
    try:
        first.sum().backward()
    except RuntimeError as error:
        dist.barrier()
        return type(error).__name__
    gradient = block.body.linear.bias.grad
    assert gradient is not None
    dist.barrier()
    values_now: list[float] = gradient.tolist()
    return values_now


class AllReducing(nn.Module):
    """Normalises by a sum over all ranks, as SyncBatchNorm does, and counts collectives."""

    def __init__(self) -> None:
        super().__init__()
        self.sums: list[list[float]] = []

    def forward(self, x: Tensor) -> Tensor:
        total = x.detach().sum(0).clone()
        dist.all_reduce(total)
        self.sums.append(total.tolist())
        return x * total


def collectives(who: str, context: RankContext) -> tuple[list[list[float]], bool]:
    """Sums that each forward of a block saw, with checkpointing on some ranks."""
    layer = AllReducing()
    torch.manual_seed(0)
    block = Block(nn.Sequential(layer, nn.Linear(2, 2), nn.Tanh()))
    configure_gradient_checkpointing(block, who == "all" or str(context.rank) in who)
    block(torch.full((1, 2), float(context.rank + 1), requires_grad=True)).sum().backward()
    return layer.sums, block.body.get_submodule("1").weight.grad is not None


def written_on_rank_0_only(_: None, context: RankContext) -> list[str]:
    """Train a declared codebook that rank 0 alone writes, with joint forwards and a broadcast."""

    def make(enable: bool) -> nn.Module:
        torch.manual_seed(0)
        book = Codebook()
        book.active = context.rank == 0
        block = Block(nn.Sequential(nn.Linear(6, 6), book, nn.Linear(6, 6)))
        block._init_gradient_checkpointing(enable, state="book")
        return DistributedDataParallel(block, broadcast_buffers=True)

    models = [make(False), make(True)]
    for model in models:
        train(model, "sgd", "joint", seed=10 * context.rank)
    return changed(*models)
