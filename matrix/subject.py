"""What a subject of the matrix is.

A subject is a frozen value. Its factories are importable names (``"module:name"`` or
``"file.py:name"``), so that it can be sent to any rank; there is no registry to add it to.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from matrix.values import Condition

_NAME = re.compile(r"[A-Za-z0-9_.-]+")


@dataclass(frozen=True)
class Narrowing:
    """Values of axes that are all that makes sense for a subject."""

    only: Condition = field(hash=False)
    """Axis name -> the values it keeps."""
    reason: str
    """Why the others would only repeat a case."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """One module to try, and the data it is tried on."""

    name: str
    """As in case ids and in ``--subject``."""
    factory: str
    """Importable name of a callable that returns a new module."""
    arguments: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Keyword arguments of ``factory``."""
    inputs: str
    """Importable name of ``function(*, seed, rank, microbatch, **input_arguments)`` that returns
    the module's positional argument, a tuple of them, or a dict of keyword arguments; different
    for each rank and microbatch. Gradients are taken for the tensors in them that require grad."""
    input_arguments: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Further keyword arguments of ``inputs``."""
    kind: Literal["block", "model"] = "block"
    """A whole model is tried on fewer cases than a block."""
    buffers_follow_data: bool = False
    """Whether a forward writes its data into buffers (while BatchNorms keep statistics), so that
    ranks with different data have different buffers."""
    loss: Any = None
    """A ``function(output)`` that returns the loss, or its importable name; None for random
    weights on everything that the module returns."""
    unused_parameters: bool = False
    """Whether a step leaves parameters without a gradient, so that DDP has to look for them."""
    ranks_differ: bool = True
    """Whether ranks are known to draw different weights and data; without it, no fact that says
    that they differ is checked."""
    options: tuple[str, ...] = ()
    """Names of the optional axes it has; see `matrix.axes.Axis.option`."""
    narrowings: tuple[Narrowing, ...] = ()
    """What of the axes does not apply to it."""
    doc: str
    """What it is, in one line."""

    def __post_init__(self) -> None:
        """Refuse a name that would need quotes in a shell or break a case id."""
        if not _NAME.fullmatch(self.name):
            raise ValueError(
                f"subject name {self.name!r} cannot stand in a case id; use only letters, digits "
                "and the signs _ . -"
            )

    @property
    def batch_norm(self) -> bool:
        """Whether it may have a BatchNorm: it does not say that options of one change nothing."""
        return not any(
            narrowing.only.get("running_stats") == (True,) for narrowing in self.narrowings
        )


NO_BATCH_NORM = Narrowing(
    {"bn_momentum": (0.1,), "running_stats": (True,), "sync_bn": (False,)},
    "it has no BatchNorm, so its options change nothing",
)

NOT_TRACED = Narrowing(
    {"compile": ("off", "inside")},
    "its boundary refuses torch.compile around it: the compiler's own replay would read state that "
    "its forward has written",
)
