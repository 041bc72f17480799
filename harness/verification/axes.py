"""The axes that apply to a model that nobody here wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from harness.verification.inspected import Inspection
from matrix.axes import AXES, Axis, axis_named
from matrix.subject import NO_BATCH_NORM, Narrowing
from matrix.values import Value

AS_BUILT = "as_built"
"""Value of an axis that leaves what the model says."""

_TAKEN = (
    *("running_stats", "wrapper", "broadcast_buffers", "autocast", "backward", "accumulation"),
    *("steps", "init_sync", "device"),
)
_WRAPPERS = ("none", "ddp")


def _taken(axis: Axis) -> Axis:
    if axis.name == "wrapper":
        return replace(axis, values=_WRAPPERS)
    if axis.name in _TAKEN:
        return axis
    return replace(axis, values=(axis.default,), configure=None, option=None, opt_in=False)


VERIFY_AXES: tuple[Axis, ...] = (
    Axis(
        "dropout",
        ("off", "on"),
        default="off",
        doc="whether the model drops things at random, as it is built",
        configure="harness.verification.randomness:dropout",
    ),
    Axis(
        "bn_momentum",
        (AS_BUILT, 1.0, None),
        default=AS_BUILT,
        doc="momentum of every BatchNorm: what the model says, the newest batch alone, or the "
        "average over all updates",
        configure="harness.verification.building:bn_momentum",
    ),
    *(_taken(axis) for axis in AXES if axis.name not in ("dropout", "bn_momentum")),
)
"""Every axis of verify, in canonical order; those that need more than a model are at their
default."""


CHOSEN_AXES: tuple[Axis, ...] = tuple(
    axis for axis in VERIFY_AXES if len(axis.values) > 1 and axis.name != "device"
)
"""The axes that ``--axis`` narrows."""


def narrowings(inspection: Inspection, ranks: int | None) -> tuple[Narrowing, ...]:
    """Return what of the axes does not apply to a model.

    Args:
        inspection: What the model has.
        ranks: Number of ranks; None where it runs in the caller's process.
    """
    found: list[Narrowing] = []
    if not inspection.batch_norms:
        only: dict[str, tuple[Value, ...]] = {
            "bn_momentum": (AS_BUILT,),
            "running_stats": (True,),
        }
        found.append(Narrowing(only, NO_BATCH_NORM.reason))
    if not inspection.draws:
        found.append(Narrowing({"dropout": ("off",)}, "it drops nothing at random"))
    alone: Mapping[str, tuple[Value, ...]] = {"wrapper": ("none",)}
    if ranks is None:
        found.append(
            Narrowing(alone, "it runs in one process, because other processes cannot import it")
        )
    elif not inspection.parameters:
        found.append(Narrowing(alone, "DDP takes no model without parameters that are trained"))
    return tuple(found)


def parse(texts: Sequence[str]) -> dict[str, tuple[Value, ...]]:
    """Return axis name -> values from texts ``name=v1,v2``.

    Raises:
        ValueError: If a text is not of that form, or names an axis or a value that does not exist.
    """
    only: dict[str, tuple[Value, ...]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals:
            raise ValueError(f"--axis: {text!r} is not of the form name=v1,v2")
        axis = axis_named(name, CHOSEN_AXES)
        parsed = tuple(axis.parse(value) for value in dict.fromkeys(values.split(",")))
        only[name] = only.get(name, ()) + tuple(v for v in parsed if v not in only.get(name, ()))
    return only
