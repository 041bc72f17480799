"""FSDP2 around a subject."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from matrix.programs import Program


class Root(nn.Module):
    """The module that FSDP2 treats as its root, so that a boundary can be a unit below it.

    Args:
        module: The subject.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module."""
        return self.module(*args, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Let backward passes keep the gradients of this rank's own data, as DDP's ``no_sync``."""
        sharded: Any = self
        sharded.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            sharded.set_requires_gradient_sync(True)


def shard(module: nn.Module, program: Program) -> nn.Module:
    """Shard a module over all ranks as its program asks.

    Args:
        module: The subject, in place.
        program: The training, with its ``sharding``.

    Returns:
        The root that FSDP2 runs.

    Raises:
        ValueError: If the units are not known.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    sharding = program.sharding
    assert sharding is not None
    options: dict[str, Any] = {
        "mesh": init_device_mesh(program.device, (dist.get_world_size(),)),
        "reshard_after_forward": sharding.reshard_after_forward,
    }
    if sharding.mixed_precision is not None:
        dtype = getattr(torch, sharding.mixed_precision)
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=dtype)
    root = Root(module)
    # Inner units first, as FSDP2 asks for.
    for unit in reversed(units_of(module, sharding.units)):
        fully_shard(unit, **options)
    fully_shard(root, **options)
    return root


def whole(values: Mapping[str, Tensor | None]) -> dict[str, Tensor | None]:
    """Copy tensors: whole ones, where this rank holds shards of them.

    Every rank has to call it where some are sharded. All shards travel in one collective for each
    dtype.

    Args:
        values: Name -> tensor or None; shards are DTensors in rows, as FSDP2 makes them.

    Returns:
        Name -> detached copy or None, in the same order.
    """
    copies = {n: v if v is None else v.detach() for n, v in values.items()}
    sharded: dict[str, Any] = {n: v for n, v in copies.items() if hasattr(v, "to_local")}
    by_dtype: dict[torch.dtype, dict[str, Any]] = {}
    for name, value in sharded.items():
        by_dtype.setdefault(value.dtype, {})[name] = value
    for same in by_dtype.values():
        copies.update(_gathered(same))
    return {n: v if v is None or n in sharded else v.clone() for n, v in copies.items()}


def _gathered(shards: Mapping[str, Any]) -> dict[str, Tensor]:
    """Gather tensors that ranks hold in chunks of equally many rows, the last ones with fewer."""
    ranks = dist.get_world_size()
    rows = {name: -(-shard.shape[0] // ranks) for name, shard in shards.items()}
    padded = []
    for name, shard in shards.items():
        own = shard.to_local()
        filling = own.new_zeros(rows[name] - own.shape[0], *shard.shape[1:])
        padded.append(torch.cat([own, filling]).flatten())
    mine = torch.cat(padded)
    everyone = [torch.empty_like(mine) for _ in range(ranks)]
    dist.all_gather(everyone, mine)
    table = torch.stack(everyone)
    parts = torch.split(table, [part.numel() for part in padded], dim=1)
    return {
        name: part.reshape(-1, *shard.shape[1:])[: shard.shape[0]].clone()
        for (name, shard), part in zip(shards.items(), parts, strict=True)
    }


def units_of(module: nn.Module, kind: str) -> list[nn.Module]:
    """Return what FSDP2 shards besides the whole model, outer modules first.

    Args:
        module: The subject.
        kind: ``whole``, ``block`` or ``inside``; see :class:`matrix.programs.Sharding`.

    Raises:
        ValueError: If there is no such kind.
    """
    boundaries = [m for m in module.modules() if hasattr(m, "gradient_checkpointing")]
    if kind == "whole":
        return []
    if kind == "block":
        return boundaries
    if kind == "inside":
        children = dict.fromkeys(child for b in boundaries for child in _called_children(b))
        return [child for child in children if any(True for _ in child.parameters())]
    raise ValueError(f"no kind of FSDP units {kind!r}; valid kinds: block, whole, inside")


def _called_children(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        if isinstance(child, (nn.ModuleList, nn.ModuleDict)):  # these are never called themselves
            yield from _called_children(child)
        else:
            yield child
