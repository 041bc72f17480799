"""The modules that the matrix is tried on.

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
    the module's positional argument, or a tuple of them; different for each rank and
    microbatch. Gradients are taken for the tensors in them that require grad."""
    input_arguments: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Further keyword arguments of ``inputs``."""
    kind: Literal["block", "model"] = "block"
    """A whole model is tried on fewer cases than a block."""
    buffers_follow_data: bool = False
    """Whether a forward writes its data into buffers (while BatchNorms keep statistics), so that
    ranks with different data have different buffers."""
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


NO_BATCH_NORM = Narrowing(
    {"bn_momentum": (0.1,), "running_stats": (True,)},
    "it has no BatchNorm, so its options change nothing",
)


def _sparse(name: str, block: str, channels: tuple[int, int], doc: str) -> Subject:
    in_channels, out_channels = channels
    return Subject(
        name=name,
        factory=f"wcn_ckpt.nn.modules:{block}",
        arguments={"in_channels": in_channels, "out_channels": out_channels},
        inputs="matrix.batches:terrain_batch",
        input_arguments={"channels": in_channels},
        buffers_follow_data=True,
        doc=doc,
    )


def _dense(
    name: str,
    block: str,
    doc: str,
    *,
    buffers_follow_data: bool = False,
    batch_norm: bool = False,
    inputs: str = "terrain_rows",
) -> Subject:
    return Subject(
        name=name,
        factory=f"matrix.blocks:{block}",
        arguments={"channels": 16},
        inputs=f"matrix.batches:{inputs}",
        input_arguments={"channels": 16},
        buffers_follow_data=buffers_follow_data,
        narrowings=() if batch_norm else (NO_BATCH_NORM,),
        doc=doc,
    )


SUBJECTS: tuple[Subject, ...] = (
    _sparse("basic", "BasicBlock", (8, 8), "MinkUNet BasicBlock, identity shortcut"),
    _sparse("basic-down", "BasicBlock", (8, 16), "MinkUNet BasicBlock, 1x1 shortcut (downsample)"),
    _sparse(
        "bottleneck", "BottleneckBlock", (16, 16), "MinkUNet BottleneckBlock, identity shortcut"
    ),
    _sparse(
        "bottleneck-down", "BottleneckBlock", (8, 16), "MinkUNet BottleneckBlock, 1x1 shortcut"
    ),
    Subject(
        name="minkunet",
        factory="wcn_ckpt.models:MinkUNetBase",
        arguments={
            "in_channels": 4,
            "out_channels": 4,
            "planes": (4, 8, 8, 8, 8, 8, 4, 4),
            "layers": (1,) * 8,
            "init_dim": 4,
        },
        inputs="matrix.batches:terrain_batch",
        input_arguments={"channels": 4, "crop": 8},
        kind="model",
        buffers_follow_data=True,
        doc="a whole MinkUNet: eight stages of one narrow block",
    ),
    _dense(
        "readme", "MyBlock", "the block of the README", buffers_follow_data=True, batch_norm=True
    ),
    _dense(
        "called-twice",
        "CalledTwice",
        "one boundary with one BatchNorm, called twice in a forward",
        buffers_follow_data=True,
        batch_norm=True,
    ),
    _dense(
        "own-norm",
        "OwnNormBlock",
        "a norm class of the user's own that calls F.batch_norm",
        buffers_follow_data=True,
    ),
    _dense(
        "instance-norm",
        "InstanceNormBlock",
        "InstanceNorm with running statistics",
        buffers_follow_data=True,
        inputs="terrain_maps",
    ),
    _dense("spectral-norm", "SpectralNormBlock", "spectral norm, far from convergence"),
    _dense(
        "codebook",
        "CodebookBlock",
        "an EMA codebook: a buffer that forward reads and writes",
        buffers_follow_data=True,
    ),
    _dense("rebound", "ReboundBlock", "a buffer that forward reads and binds to a new tensor"),
    _dense("dropout", "DropoutBlock", "dropout: torch's generator drawn in forward"),
    _dense("python-random", "RandomOrderBlock", "an order drawn from Python's random in forward"),
)
"""The subjects of the suites."""


def subject_named(name: str, subjects: tuple[Subject, ...] = SUBJECTS) -> Subject:
    """Return the subject called ``name``.

    Raises:
        ValueError: If there is none; the message lists the valid names.
    """
    for subject in subjects:
        if subject.name == name:
            return subject
    valid = ", ".join(subject.name for subject in subjects)
    raise ValueError(f"no subject {name!r}; valid subjects: {valid}")
