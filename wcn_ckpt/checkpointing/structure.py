"""The arguments of a boundary call, taken apart into tensors and put together again.

Torch's checkpoint closes over whatever it is given: a container that the block or its caller
changes afterwards is replayed changed, and it finds no device in an object that it does not know.
So the tensors are handed to it in a list, and a replay gets containers rebuilt as they were at
entry, whatever happened to the caller's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from io import IOBase
from operator import length_hint
from typing import Any

from torch import Tensor, nn

from wcn_ckpt.checkpointing.parts import ATOMS, Built, Parts, Rebuild
from wcn_ckpt.checkpointing.replay.values import address, version

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


PLAIN = frozenset({Tensor, nn.Parameter})
"""Types of positional arguments that torch's checkpoint can take as they are."""


class StructuredCall:
    """Arguments of one call that are more than positional tensors.

    Args:
        args: positional arguments.
        kwargs: keyword arguments.

    Attributes:
        saved: what to hand to torch's checkpoint: tensors that are positional arguments, each once,
            and a list of those inside other arguments. The latter come without the graph that led
            to them: a graph would hold the call, and the call the graph.
        others: every other leaf.
    """

    __slots__ = (
        "_addresses",
        "_arguments",
        "_attributes",
        "_entry_versions",
        "_exit_versions",
        "_left",
        "_lent",
        "_names",
        "_needs_grad",
        "_positions",
        "_rebuild",
        "others",
        "saved",
    )

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        parts = Parts()
        found, self.others = parts.tensors, parts.others
        self._names: list[str] = []
        rebuilds: dict[int | str, Rebuild] = {}
        labelled: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
        for key, value in labelled:
            if isinstance(key, int) and type(value) in PLAIN:
                continue
            rebuilds[key] = parts.take_argument(value)
            label = f"argument {key}" if isinstance(key, int) else f"keyword argument {key!r}"
            self._names += [label] * (len(found) - len(self._names))
        positions = range(len(args))

        def rebuild(plain: Sequence[Tensor], tensors: Sequence[Tensor]) -> Arguments:
            built: Built = {}
            return (
                tuple(
                    rebuilds[i](tensors, built) if i in rebuilds else plain[places[i]]
                    for i in positions
                ),
                {
                    key: build(tensors, built)
                    for key, build in rebuilds.items()
                    if isinstance(key, str)
                },
            )

        self._rebuild = rebuild
        self._lent = parts.lent
        self._left = [_items_left(v) for v in self.others if isinstance(v, Iterator)]
        self._arguments: Arguments | None = (args, kwargs)
        self._needs_grad = [tensor.requires_grad and not tensor.is_leaf for tensor in found]
        nested = [
            tensor.detach() if inner else tensor
            for tensor, inner in zip(found, self._needs_grad, strict=True)
        ]
        self._attributes = [
            (index, {name: value for name, value in held.items() if type(value) in ATOMS})
            for index, tensor in enumerate(found)
            if self._needs_grad[index] and (held := tensor.__dict__)
        ]
        # Each once: hooks around the call make two tensors of what is saved twice.
        plain = list({id(value): value for value in args if type(value) in PLAIN}.values())
        self.saved: tuple[Any, ...] = (*plain, nested)
        place_of = {id(value): place for place, value in enumerate(plain)}
        places = [place_of.get(id(value), -1) for value in args]
        self._positions = [(i, place_of[id(t)]) for i, t in enumerate(found) if id(t) in place_of]
        self._entry_versions = list(map(version, nested))
        self._addresses = list(map(address, nested))
        self._exit_versions = self._entry_versions

    def take_arguments(self) -> Arguments:
        """Return the caller's own arguments, once, and let go of them."""
        arguments, self._arguments = self._arguments, None
        self.saved = ()
        assert arguments is not None
        return arguments

    def forward_ended(self, saved: tuple[Any, ...]) -> None:
        """Record that the logical forward has run; `saved` is `self.saved`."""
        self._exit_versions = list(map(version, saved[-1]))

    def rebuild(self, saved: tuple[Any, ...]) -> Arguments:
        """Return the arguments as they were at entry, around the tensors in `saved`."""
        nested = [
            tensor.detach().requires_grad_() if inner else tensor
            for tensor, inner in zip(saved[-1], self._needs_grad, strict=True)
        ]
        for index, attributes in self._attributes:
            nested[index].__dict__.update(attributes)
        for index, place in self._positions:
            nested[index] = saved[place]
        return self._rebuild(saved, nested)

    def give_back(self) -> None:
        """Undo what a replay has set in objects that it was lent."""
        for item in self._lent:
            item.give_back()

    def moved(self, saved: tuple[Any, ...]) -> str | None:
        """What was changed inside an argument since the call began, and by whom, if anything."""
        for index, tensor in enumerate(saved[-1]):
            what = f"a tensor of shape {tuple(tensor.shape)} in {self._names[index]}"
            if address(tensor) != self._addresses[index]:
                return f"{what} was given other data"
            if version(tensor) != self._entry_versions[index]:
                by_block = self._exit_versions[index] != self._entry_versions[index]
                return f"{what} was changed in place{' by the block itself' if by_block else ''}"
        iterators = (value for value in self.others if isinstance(value, Iterator))
        for value, left in zip(iterators, self._left, strict=True):
            is_untouched = left is not None and _items_left(value) == left
            if not is_untouched and not isinstance(value, IOBase):
                kind = type(value).__name__
                used = "may have been used up" if left is None else "was used up"
                return f"an iterator among its arguments ({kind}; pass a list instead) {used}"
        return None


def _items_left(iterator: Iterator[Any]) -> int | None:
    """How many items an iterator has left; None where only its class would know.

    Those of Python's own containers count down. The length of others, such as a data loader's, may
    stay what it is while they are used up.
    """
    kind = type(iterator)
    if kind.__module__ != "builtins" or not hasattr(kind, "__length_hint__"):
        return None
    return length_hint(iterator)
