"""Bytes that one forward pass keeps for its backward pass, with and without checkpointing.

A dispatch mode follows every storage that the forward pass allocates; what is still alive at its
end is *kept*, whoever holds it: autograd, a checkpoint or an object. Each storage counts once. What
lived before does not count: parameters, buffers, and the tables of the input's coordinates (kernel
maps, sort orders), which an earlier forward has made and both arms share; the input counts.

A storage is kept *outside* where autograd saved it while no boundary ran: a model whose ordinary
arm keeps much outside its boundaries cannot look better for it. The limit is what no checkpointing
of these boundaries can go below: what the boundaries are given, and what the ordinary arm keeps
outside them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from harness.bench.workloads import Workload

Keys = frozenset[int]
"""Storages, by an identity that is not reused while a weak reference to them exists."""


@dataclass(frozen=True)
class Kept:
    """Storages of one forward pass.

    Args:
        sizes: bytes of every storage that it allocated or was given.
        alive: those that exist at its end.
        inside: those that autograd saved while a boundary ran.
        outside: those that it saved at other times.
        inputs: what the boundaries were given.
    """

    sizes: dict[int, int]
    alive: Keys
    inside: Keys
    outside: Keys
    inputs: Keys

    def bytes(self, keys: Iterable[int]) -> int:
        """Return the size of some of the storages; others do not count."""
        return sum(self.sizes.get(key, 0) for key in keys)

    @property
    def total(self) -> Keys:
        """Everything that is kept."""
        return self.alive | self.inside | self.outside

    @property
    def for_boundaries(self) -> Keys:
        """Everything that is kept and is not only saved outside: what boundaries cost."""
        return self.total - (self.outside - self.inputs)

    @property
    def limit(self) -> Keys:
        """What is kept outside, and what the boundaries were given."""
        return self.outside | self.inputs


def kept_by(model: nn.Module, arguments: Any, forward: Callable[[nn.Module], Tensor]) -> Kept:
    """Run a forward pass and find what it keeps.

    Args:
        model: a model with boundaries, in training mode.
        arguments: what it is given, in any structure that pytree knows.
        forward: runs it and returns the loss.
    """
    follower = _Follower()
    for tensor in _tensors(arguments):
        follower.follow(tensor)
    inside: set[int] = set()
    outside: set[int] = set()
    inputs: set[int] = set()
    depth = 0

    def pack(tensor: Tensor) -> Tensor:
        (inside if depth else outside).add(_key(tensor))
        return tensor

    def enter(given: Any) -> None:
        nonlocal depth
        if depth == 0:
            inputs.update(map(_key, _tensors(given)))
        depth += 1

    def leave() -> None:
        nonlocal depth
        depth -= 1

    with (
        _boundary_calls(model, enter, leave),
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
        follower,
    ):
        loss = forward(model)
    alive = follower.alive()
    del loss
    return Kept(follower.sizes, alive, *map(frozenset, (inside, outside, inputs)))


def memory_of(workload: Workload, use_checkpoint: bool) -> Kept:
    """Return what a workload keeps under one arm.

    Args:
        workload: the model and its input.
        use_checkpoint: whether its boundaries are enabled.
    """
    model = workload.model(use_checkpoint)
    # The first forward watches what it writes and makes the tables of the coordinates.
    workload.loss(model)
    return kept_by(model, workload.arguments, workload.loss)


@contextmanager
def _boundary_calls(
    model: nn.Module, enter: Callable[[Any], None], leave: Callable[[], None]
) -> Iterator[None]:
    """Call `enter` with the arguments of each boundary call, and `leave` after it."""

    def watched(call: Callable[..., Any]) -> Callable[..., Any]:
        def watched_call(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            enter((args, kwargs))
            try:
                return call(fn, *args, **kwargs)
            finally:
                leave()

        return watched_call

    name = "_gradient_checkpointed_call"
    boundaries = [module for module in model.modules() if hasattr(module, name)]
    for boundary in boundaries:
        object.__setattr__(boundary, name, watched(getattr(boundary, name)))
    try:
        yield
    finally:
        for boundary in boundaries:
            object.__delattr__(boundary, name)


class _Follower(TorchDispatchMode):
    """Follows the storages that operations allocate."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.sizes: dict[int, int] = {}
        self._references: dict[int, StorageWeakRef] = {}

    def follow(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = _key(tensor)
        self.sizes[key] = storage.nbytes()
        self._references[key] = StorageWeakRef(storage)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        given = set(map(_key, _tensors((args, kwargs))))
        result = func(*args, **(kwargs or {}))
        for tensor in _tensors(result):
            if _key(tensor) not in given:
                self.follow(tensor)
        return result

    def alive(self) -> Keys:
        """Return the followed storages that still exist."""
        references = self._references.items()
        return frozenset(
            key
            for key, reference in references
            if not reference.expired()  # type: ignore[no-untyped-call]
        )


def _key(tensor: Tensor) -> int:
    key: int = tensor.untyped_storage()._cdata
    return key


def _tensors(tree: Any) -> Iterator[Tensor]:
    return (leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor))
