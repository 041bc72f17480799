"""The arguments of a boundary call, taken apart into tensors and put together again.

Torch's checkpoint closes over whatever it is given: a container that the block or its caller
changes afterwards is replayed changed, and it finds no device in an object that it does not know.
So the tensors are handed to it in a list, and a replay gets containers rebuilt as they were at
entry, whatever happened to the caller's own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from wcn_ckpt.checkpointing.replay.values import address, version

Rebuild = Callable[[Sequence[Tensor]], Any]
Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class StructuredCall:
    """Arguments of one call that are more than positional tensors.

    Args:
        args: positional arguments.
        kwargs: keyword arguments.

    Attributes:
        tensors: every tensor in them, without the graph that led to it: a graph would hold the
            call, and the call the graph.
        others: every other leaf.
    """

    __slots__ = (
        "_addresses",
        "_arguments",
        "_entry_versions",
        "_exit_versions",
        "_names",
        "_needs_grad",
        "_rebuild",
        "others",
        "tensors",
    )

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        found: list[Tensor] = []
        self.others: list[Any] = []
        self._names: list[str] = []
        rebuilds = []
        labelled = [(f"argument {index}", value) for index, value in enumerate(args)]
        labelled += [(f"keyword argument {key!r}", value) for key, value in kwargs.items()]
        for label, value in labelled:
            rebuilds.append(_take_apart(value, found, self.others))
            self._names += [label] * (len(found) - len(self._names))
        positional, keys = len(args), list(kwargs)

        def rebuild(tensors: Sequence[Tensor]) -> Arguments:
            values = [build(tensors) for build in rebuilds]
            return tuple(values[:positional]), dict(zip(keys, values[positional:], strict=True))

        self._rebuild = rebuild
        self._arguments: Arguments | None = (args, kwargs)
        self._needs_grad = [tensor.requires_grad and not tensor.is_leaf for tensor in found]
        self.tensors = [
            tensor.detach() if inner else tensor
            for tensor, inner in zip(found, self._needs_grad, strict=True)
        ]
        self._entry_versions = list(map(version, self.tensors))
        self._addresses = list(map(address, self.tensors))
        self._exit_versions = self._entry_versions

    def take_arguments(self) -> Arguments:
        """Return the caller's own arguments, once, and let go of them."""
        arguments, self._arguments = self._arguments, None
        assert arguments is not None
        return arguments

    def forward_ended(self, tensors: Sequence[Tensor]) -> None:
        """Record that the logical forward has run; `tensors` are `self.tensors`."""
        self._exit_versions = list(map(version, tensors))
        self.tensors = []

    def rebuild(self, tensors: Sequence[Tensor]) -> Arguments:
        """Return the arguments as they were at entry, around `self.tensors`."""
        return self._rebuild(
            [
                tensor.detach().requires_grad_() if inner else tensor
                for tensor, inner in zip(tensors, self._needs_grad, strict=True)
            ]
        )

    def moved(self, tensors: Sequence[Tensor]) -> str | None:
        """What was changed in place since the call began, and by whom; None if nothing was."""
        now = list(map(version, tensors))
        for index in range(len(tensors)):
            if address(tensors[index]) != self._addresses[index]:
                return f"{self._describe(index, tensors)} was given other data"
        for index in range(len(tensors)):
            if now[index] != self._entry_versions[index]:
                by_block = self._exit_versions[index] != self._entry_versions[index]
                who = "changed in place by the block itself" if by_block else "changed in place"
                return f"{self._describe(index, tensors)} was {who}"
        return None

    def _describe(self, index: int, tensors: Sequence[Tensor]) -> str:
        return f"a tensor of shape {tuple(tensors[index].shape)} in {self._names[index]}"


def _take_apart(value: Any, found: list[Tensor], others: list[Any]) -> Rebuild:
    leaves, spec = pytree.tree_flatten(value)
    rebuild_leaves = [_take_leaf(leaf, found, others) for leaf in leaves]

    def rebuild(tensors: Sequence[Tensor]) -> Any:
        return pytree.tree_unflatten([leaf(tensors) for leaf in rebuild_leaves], spec)

    return rebuild


def _take_leaf(leaf: Any, found: list[Tensor], others: list[Any]) -> Rebuild:
    if isinstance(leaf, Tensor):
        position = len(found)
        found.append(leaf)
        return lambda tensors: tensors[position]
    if dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
        return _take_dataclass(leaf, found, others)
    others.append(leaf)
    return lambda tensors: leaf


def _take_dataclass(instance: Any, found: list[Tensor], others: list[Any]) -> Rebuild:
    names = {field.name for field in dataclasses.fields(instance)}
    names |= getattr(instance, "__dict__", {}).keys()
    attributes = {name: getattr(instance, name) for name in names if hasattr(instance, name)}
    rebuild_attributes = _take_apart(attributes, found, others)
    cls = type(instance)

    def rebuild(tensors: Sequence[Tensor]) -> Any:
        rebuilt = object.__new__(cls)
        for name, value in rebuild_attributes(tensors).items():
            object.__setattr__(rebuilt, name, value)
        return rebuilt

    return rebuild
