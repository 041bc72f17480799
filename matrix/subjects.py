"""The modules that the matrix is tried on.

A subject is a frozen value. Its factories are importable names (``"module:name"`` or
``"file.py:name"``), so that it can be sent to any rank; there is no registry to add it to.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_NAME = re.compile(r"[A-Za-z0-9_.-]+")


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
    doc: str
    """What it is, in one line."""

    def __post_init__(self) -> None:
        """Refuse a name that would need quotes in a shell or break a case id."""
        if not _NAME.fullmatch(self.name):
            raise ValueError(
                f"subject name {self.name!r} cannot stand in a case id; use only letters, digits "
                "and the signs _ . -"
            )


def _block(name: str, block: str, channels: tuple[int, int], doc: str) -> Subject:
    in_channels, out_channels = channels
    return Subject(
        name=name,
        factory=f"wcn_ckpt.nn.modules:{block}",
        arguments={"in_channels": in_channels, "out_channels": out_channels},
        inputs="matrix.batches:terrain_batch",
        input_arguments={"channels": in_channels},
        doc=doc,
    )


SUBJECTS: tuple[Subject, ...] = (
    _block("basic", "BasicBlock", (8, 8), "MinkUNet BasicBlock, identity shortcut"),
    _block("basic-down", "BasicBlock", (8, 16), "MinkUNet BasicBlock, 1x1 shortcut (downsample)"),
    _block(
        "bottleneck", "BottleneckBlock", (16, 16), "MinkUNet BottleneckBlock, identity shortcut"
    ),
    _block("bottleneck-down", "BottleneckBlock", (8, 16), "MinkUNet BottleneckBlock, 1x1 shortcut"),
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
