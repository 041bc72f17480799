"""Make blocks that nobody prepared boundaries, in place, and undo it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

from torch import nn

from wcn_ckpt.checkpointing.made import BoundaryForward, install, is_made, uninstall
from wcn_ckpt.checkpointing.refusals import why_not_checkpointable

Predicate = Callable[[nn.Module], Any] | Callable[[str, nn.Module], Any]
TypesOrPredicate = type[Any] | Iterable[type[Any]] | Predicate

_Select = Callable[[str, nn.Module], Any]


class MadeBoundaries(AbstractContextManager["MadeBoundaries"]):
    """The modules that one call of `make_checkpointable` made boundaries.

    `len()` of it is their number. As a context manager it undoes them on exit.

    Attributes:
        names: their dotted paths below the model, in the order of `named_modules()`.
    """

    def __init__(self, made: dict[str, tuple[nn.Module, BoundaryForward]]) -> None:
        self.names = tuple(made)
        self._made = made

    def __len__(self) -> int:
        """The number of modules that were made boundaries; a shared one counts once."""
        return len(self.names)

    def __repr__(self) -> str:
        """Show the first few names."""
        shown = ", ".join(map(repr, self.names[:4])) + (", ..." if len(self) > 4 else "")
        return f"<{len(self)} made boundaries: {shown}>"

    def undo(self) -> None:
        """Make the modules what they were; those that were undone already are left alone.

        Raises:
            ValueError: the `forward` of one was replaced since; nothing is changed then.
        """
        _undo(
            {
                name: module
                for name, (module, forward) in self._made.items()
                if is_made(module) and _forward_of(module) in (forward, None)
            }
        )

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Undo."""
        self.undo()


def make_checkpointable(
    model: nn.Module, types_or_predicate: TypesOrPredicate, *, use_checkpoint: bool = False
) -> MadeBoundaries:
    """Make existing modules gradient-checkpointing boundaries, in place.

    Each selected module takes part in everything that a block derived from
    `GradientCheckpointingMixin` does: `configure_gradient_checkpointing`, the Hugging Face methods
    of a model around it, `replay_options`, the guard, learned state. Its class, `state_dict`,
    hooks and representation stay the same; only the `__dict__` of the instance gets a `forward` in
    front of the present one, and switches. Deep copies and pickles are boundaries as well, bound
    to the copy; a pickle of the whole module needs this package where it is loaded.

    Only what goes through `forward` is recomputed: forward hooks of the module itself and other
    methods (`encode`, ...) run outside. `copy.copy` and `nn.DataParallel` make copies that still
    run the original, and `torch.jit.script` cannot script a boundary: undo it first::

        make_checkpointable(model, Block)
        configure_gradient_checkpointing(model)

    Args:
        model: root of the tree; it may itself be selected.
        types_or_predicate: a class or several, instances of which are selected, or a function of
            `(module)` or `(name, module)` that says whether to select one.
        use_checkpoint: whether the boundaries start enabled.

    Returns:
        The boundaries: `len()` of them, their `names`, `undo()`; a context manager that undoes
        them.

    Raises:
        TypeError: `model` is not an `nn.Module`, or the second argument is none of the above.
        ValueError: nothing was selected, or a selected module cannot be a boundary; the message
            says why. Nothing is changed then.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"make_checkpointable needs an nn.Module, got {model!r}.")
    selected = _selection(types_or_predicate)
    found = {name: module for name, module in model.named_modules() if selected(name, module)}
    if not found:
        classes = sorted({type(module).__name__ for module in model.modules()})
        raise ValueError(
            f"No module of {type(model).__name__} is selected by {types_or_predicate!r}. It has "
            f"modules of these classes: {', '.join(classes)}."
        )
    for name, module in found.items():
        reason = why_not_checkpointable(module)
        if reason is not None:
            raise ValueError(f"{_called(name, module)} cannot be made a boundary: {reason}.")
    return MadeBoundaries(
        {name: (module, install(module, bool(use_checkpoint))) for name, module in found.items()}
    )


def undo_checkpointable(model: nn.Module) -> int:
    """Undo `make_checkpointable` everywhere in a tree, for instance in a copy of a model.

    Args:
        model: root of the tree.

    Returns:
        The number of modules that were boundaries made in place.

    Raises:
        TypeError: `model` is not an `nn.Module`.
        ValueError: the `forward` of one was replaced since; nothing is changed then.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"undo_checkpointable needs an nn.Module, got {model!r}.")
    made = {name: module for name, module in model.named_modules() if is_made(module)}
    _undo(made)
    return len(made)


def _undo(made: dict[str, nn.Module]) -> None:
    for name, module in made.items():
        if _forward_of(module) is None:
            raise ValueError(
                f"The forward of {_called(name, module)} was replaced after make_checkpointable, "
                f"by {vars(module).get('forward')!r}. Undo that first."
            )
    for module in made.values():
        uninstall(module)


def _forward_of(module: nn.Module) -> BoundaryForward | None:
    forward = vars(module).get("forward")
    return forward if isinstance(forward, BoundaryForward) else None


def _called(name: str, module: nn.Module) -> str:
    return (
        f"{type(module).__name__} {name!r}"
        if name
        else f"The model itself, {type(module).__name__},"
    )


def _selection(types_or_predicate: TypesOrPredicate) -> _Select:
    given: Any = types_or_predicate
    if isinstance(given, type):
        given = (given,)
    if isinstance(given, Iterable) and not isinstance(given, str):
        classes = tuple(given)
        if classes and all(isinstance(cls, type) for cls in classes):
            return lambda name, module: isinstance(module, classes)
    elif callable(given):
        required = _required_arguments(given)
        if required == 1:
            return lambda name, module: given(module)
        if required == 2:
            return lambda name, module: given(name, module)
    raise TypeError(
        "make_checkpointable selects modules by a class, several classes, or a function of "
        f"(module) or (name, module), got {types_or_predicate!r}."
    )


def _required_arguments(function: Callable[..., Any]) -> int:
    """The number of positional arguments that a function must be given; at least 1 if variable."""
    parameters = inspect.signature(function).parameters.values()
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = sum(p.default is p.empty for p in positional)
    accepts_more = any(p.kind is p.VAR_POSITIONAL for p in parameters) or bool(positional)
    return max(required, 1) if accepts_more else required
