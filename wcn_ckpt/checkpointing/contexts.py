"""Context functions of torch's checkpoint, composed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import Any

ContextPair = tuple[AbstractContextManager[Any], AbstractContextManager[Any]]
ContextFunction = Callable[[], ContextPair]

HOOKS_KEYWORD = "respect_saved_tensors_hooks"
"""Keyword of torch's checkpoint since release 2.14."""


class _Composed(AbstractContextManager[None]):
    """Several context managers as one that can be entered again, also while it is entered."""

    def __init__(self, *contexts: AbstractContextManager[Any]) -> None:
        self._contexts = contexts
        self._entered: list[ExitStack] = []

    def __enter__(self) -> None:
        with ExitStack() as stack:
            for context in self._contexts:
                stack.enter_context(context)
            self._entered.append(stack.pop_all())

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        return self._entered.pop().__exit__(exc_type, exc, traceback)


def compose_context_functions(first: ContextFunction, second: ContextFunction) -> ContextFunction:
    """Combine two `context_fn` arguments of `torch.utils.checkpoint.checkpoint` into one.

    Both forward contexts are entered in the order given and left in reverse; the same for both
    recompute contexts. When entering one fails, those already entered are left.

    Args:
        first: entered first, left last.
        second: entered last, left first.

    Returns:
        A function for `context_fn=`; its contexts can be re-entered if the given ones can.
    """

    def composed() -> ContextPair:
        first_forward, first_recompute = context_pair(first)
        second_forward, second_recompute = context_pair(second)
        return _Composed(first_forward, second_forward), _Composed(
            first_recompute, second_recompute
        )

    return composed


def told_of_hooks(context_fn: ContextFunction, respect: bool | None) -> ContextFunction:
    """Tell the contexts of torch's selective checkpointing what they do about saved-tensor hooks.

    Torch does so itself since release 2.14, where it is given such a context and not a composed
    one.

    Args:
        context_fn: a context function.
        respect: the keyword `respect_saved_tensors_hooks` of torch's checkpoint, or None.

    Returns:
        A context function that returns what `context_fn` does.
    """
    if respect is None:
        return context_fn

    def told() -> ContextPair:
        forward, recompute = context_pair(context_fn)
        if hasattr(forward, HOOKS_KEYWORD):
            setattr(forward, HOOKS_KEYWORD, respect)
        return forward, recompute

    return told


def context_pair(context_fn: ContextFunction) -> ContextPair:
    """Call a context function and check what it gives.

    Raises:
        TypeError: it is not callable or does not return two context managers.
    """
    if not callable(context_fn):
        raise TypeError(
            f"A checkpoint context function must be callable, got {context_fn!r}. It takes no "
            "argument and returns (forward_context, recompute_context)."
        )
    pair = context_fn()
    if not (
        isinstance(pair, tuple)
        and len(pair) == 2
        and all(hasattr(context, "__enter__") and hasattr(context, "__exit__") for context in pair)
    ):
        raise TypeError(
            "A checkpoint context function must return a tuple of two context managers "
            f"(forward_context, recompute_context), got {pair!r}."
        )
    return pair
