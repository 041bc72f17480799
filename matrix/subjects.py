"""The modules that the matrix is tried on.

Those with attention and those of TRELLIS.2 are in `matrix.attention_subjects` and
`matrix.trellis_subjects`.
"""

from __future__ import annotations

from typing import Literal

from matrix.attention_subjects import ATTENTION_SUBJECTS
from matrix.choices import no_such
from matrix.subject import NO_BATCH_NORM, NOT_TRACED, Narrowing, Subject
from matrix.trellis_subjects import TRELLIS_SUBJECTS

__all__ = ["NO_BATCH_NORM", "SUBJECTS", "Narrowing", "Subject", "subject_named"]


def _sparse(name: str, block: str, channels: tuple[int, int], doc: str) -> Subject:
    in_channels, out_channels = channels
    return Subject(
        name=name,
        factory=f"wcn_ckpt.nn.modules:{block}",
        arguments={"in_channels": in_channels, "out_channels": out_channels},
        inputs="matrix.batches:terrain_batch",
        input_arguments={"channels": in_channels},
        buffers_follow_data=True,
        options=("sites",),
        doc=doc,
    )


def _dense(
    name: str,
    block: str,
    doc: str,
    *,
    buffers_follow_data: bool = False,
    batch_norm: bool = False,
    compiled: Literal["not", "inside", "around"] = "not",
    inputs: str = "terrain_rows",
) -> Subject:
    narrowings = [] if batch_norm else [NO_BATCH_NORM]
    if compiled == "inside":
        narrowings.append(NOT_TRACED)
    return Subject(
        name=name,
        factory=f"matrix.blocks:{block}",
        arguments={"channels": 16},
        inputs=f"matrix.batches:{inputs}",
        input_arguments={"channels": 16},
        buffers_follow_data=buffers_follow_data,
        options=() if compiled == "not" else ("compile",),
        narrowings=tuple(narrowings),
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
        options=("sites",),
        doc="a whole MinkUNet: eight stages of one narrow block",
    ),
    _dense(
        "readme",
        "MyBlock",
        "the block of the README",
        compiled="around",
        buffers_follow_data=True,
        batch_norm=True,
    ),
    _dense(
        "called-twice",
        "CalledTwice",
        "one boundary with one BatchNorm, called twice in a forward",
        compiled="around",
        buffers_follow_data=True,
        batch_norm=True,
    ),
    _dense(
        "own-norm",
        "OwnNormBlock",
        "a norm class of the user's own that calls F.batch_norm",
        compiled="inside",
        buffers_follow_data=True,
    ),
    _dense(
        "instance-norm",
        "InstanceNormBlock",
        "InstanceNorm with running statistics",
        compiled="around",
        buffers_follow_data=True,
        inputs="terrain_maps",
    ),
    _dense(
        "spectral-norm",
        "SpectralNormBlock",
        "spectral norm, far from convergence",
        compiled="inside",
    ),
    _dense(
        "codebook",
        "CodebookBlock",
        "an EMA codebook: a buffer that forward reads and writes",
        compiled="inside",
        buffers_follow_data=True,
    ),
    _dense(
        "rebound",
        "ReboundBlock",
        "a buffer that forward reads and binds to a new tensor",
        compiled="inside",
    ),
    _dense(
        "dropout", "DropoutBlock", "dropout: torch's generator drawn in forward", compiled="around"
    ),
    _dense("python-random", "RandomOrderBlock", "an order drawn from Python's random in forward"),
    *ATTENTION_SUBJECTS,
    *TRELLIS_SUBJECTS,
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
    raise ValueError(no_such("subject", name, [subject.name for subject in subjects]))
