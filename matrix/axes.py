"""The axes of the matrix, as data, in canonical order.

Adding an axis: append it to ``AXES`` with the default that old cases had. Ids of old cases stay
as they are, because an id names only the axes that are not at their default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from matrix.choices import no_such
from matrix.programs import ACCUMULATIONS, AUTOCAST_DTYPES, BACKWARDS
from matrix.values import Value, value_text


@dataclass(frozen=True)
class Axis:
    """One thing that varies between cases."""

    name: str
    """As in case ids and in ``--axis NAME=...``."""
    values: tuple[Value, ...]
    """Every value it can take."""
    default: Value
    """The value that case ids leave out."""
    doc: str
    """What it varies, in one line."""
    configure: str | None = None
    """Importable name of ``function(module, value)`` that applies a value to a new subject, and may
    return another module to use in its place; None where the axis shapes the program instead."""
    construct: Mapping[Value, Mapping[str, Any]] = field(default_factory=dict, hash=False)
    """Value -> keyword arguments that it adds to the subject's factory."""
    inputs: Mapping[Value, Mapping[str, Any]] = field(default_factory=dict, hash=False)
    """Value -> keyword arguments that it adds to the subject's inputs."""
    option: str | None = None
    """Where only subjects that name it in ``options`` have it: why others keep the default."""
    opt_in: bool = False
    """Whether values other than the default are run only where they are asked for."""
    apart: bool = False
    """Whether its cases are so slow that suites run other values than the default in plans of their
    own, with fewer combinations."""

    def __post_init__(self) -> None:
        """Refuse values that cannot be told apart or typed, and a default that is not one."""
        texts = [value_text(value) for value in self.values]
        if len(set(texts)) != len(texts):
            raise ValueError(f"axis {self.name!r} has two values with the same text: {texts}")
        if value_text(self.default) not in texts:
            raise ValueError(
                f"axis {self.name!r}: default {self.default!r} is not one of {self.values!r}"
            )

    def parse(self, text: str) -> Value:
        """Return the value that a person typed.

        Args:
            text: For example ``0.1``, ``none``, ``on`` or ``bf16``.

        Returns:
            The value of this axis with that text.

        Raises:
            ValueError: If the axis has no such value; the message lists the valid ones.
        """
        for value in self.values:
            if value_text(value) == text:
                return value
        texts = [value_text(value) for value in self.values]
        raise ValueError(f"axis {self.name!r} has {no_such('value', text, texts)}")


AXES: tuple[Axis, ...] = (
    Axis(
        "bn_momentum",
        (0.1, 1.0, None),
        default=0.1,
        doc="momentum of every BatchNorm; none averages over all updates",
        configure="matrix.configure:bn_momentum",
    ),
    Axis(
        "running_stats",
        (True, False),
        default=True,
        doc="whether BatchNorm keeps running statistics",
        configure="matrix.configure:running_stats",
    ),
    Axis(
        "wrapper", ("none", "ddp", "fsdp2"), default="none", doc="what wraps the model on each rank"
    ),
    Axis(
        "broadcast_buffers",
        (True, False),
        default=True,
        doc="whether DDP copies rank 0's buffers to all ranks before a forward",
    ),
    Axis("autocast", tuple(AUTOCAST_DTYPES), default="off", doc="autocast dtype of the forwards"),
    Axis(
        "backward",
        tuple(BACKWARDS),
        default="plain",
        doc="one backward(), one autograd.grad, or two or three passes over a retained graph",
    ),
    Axis(
        "accumulation",
        tuple(ACCUMULATIONS),
        default="one",
        doc="how forwards and backwards of several microbatches interleave; no_sync is DDP's, or "
        "its like of FSDP2",
    ),
    Axis(
        "enable",
        ("model_call", "constructor", "injected", "user_context", "rng_not_preserved"),
        default="model_call",
        doc="how checkpointing is switched on: gradient_checkpointing_enable(), use_checkpoint= of "
        "the constructor, an injected checkpoint function, a context_fn of the user's own, or "
        "preserve_rng_state=False",
        configure="matrix.configure:enable",
        construct={"constructor": {"use_checkpoint": True}},
    ),
    Axis("steps", (1, 3), default=1, doc="optimizer steps, of SGD with momentum"),
    Axis(
        "init_sync",
        (True, False),
        default=True,
        doc="whether DDP copies rank 0's weights to all ranks when it is built",
    ),
    Axis("device", ("cpu", "cuda"), default="cpu", doc="where the model is", opt_in=True),
    Axis(
        "dropout",
        (0.0, 0.2),
        default=0.0,
        doc="probability of dropping attention weights, channels and rows of a branch",
        construct={0.2: {"attn_drop": 0.2, "proj_drop": 0.2, "drop_path": 0.2}},
        option="its constructor has no dropout and no drop path to switch on",
    ),
    Axis(
        "order",
        ("fixed", "shuffled"),
        default="fixed",
        doc="whether the curve or window offset of each block is drawn anew for each forward",
        construct={"shuffled": {"shuffle_orders": True}},
        option="it attends along no curve and in no window",
    ),
    Axis(
        "sites",
        ("even", "mixed", "scattered"),
        default="even",
        doc="where voxels are: clouds of about one size, clouds of several sizes of which one is a "
        "single voxel, or voxels that have few neighbours",
        inputs={"mixed": {"sites": "mixed"}, "scattered": {"sites": "scattered"}},
        option="its input is dense and has no sites to choose",
    ),
    Axis(
        "static_graph",
        (False, True),
        default=False,
        doc="whether DDP is told that every step uses the same graph",
    ),
    Axis(
        "find_unused_parameters",
        (False, True),
        default=False,
        doc="whether DDP looks for parameters that a backward does not reach",
    ),
    Axis(
        "gradient_as_bucket_view",
        (False, True),
        default=False,
        doc="whether gradients are views of DDP's buckets",
    ),
    Axis(
        "fsdp_units",
        ("block", "whole", "inside"),
        default="block",
        doc="what FSDP2 shards besides the model: each boundary, nothing, or each child of a "
        "boundary",
    ),
    Axis(
        "reshard_after_forward",
        (True, False),
        default=True,
        doc="whether FSDP2 drops full parameters after a forward and gathers them for backward",
    ),
    Axis(
        "mixed_precision",
        ("off", "bf16"),
        default="off",
        doc="dtype of parameters and gradients in a step under FSDP2",
    ),
    Axis(
        "sync_bn",
        (False, True),
        default=False,
        doc="whether BatchNorms compute their statistics over all ranks",
    ),
    Axis(
        "nesting",
        ("flat", "nested"),
        default="flat",
        doc="whether one more boundary is around the whole subject",
        configure="matrix.blocks.nesting:nest",
    ),
    Axis(
        "selective",
        (False, True),
        default=False,
        doc="whether a selective checkpointing policy keeps the results of linear layers and "
        "activations",
        configure="matrix.configure:selective",
    ),
    Axis(
        "compile",
        ("off", "inside", "aot_eager", "inductor"),
        default="off",
        doc="torch.compile: of the modules inside boundaries, or around them with a backend and "
        "allow_compile=True; inductor with emulate_precision_casts, to round as eager mode does",
        option="torch.compile breaks its forward, which works on sizes that depend on data, into "
        "many small graphs",
        apart=True,
    ),
)
"""All axes, in the order that case ids use."""


def axis_named(name: str, axes: tuple[Axis, ...] = AXES) -> Axis:
    """Return the axis called ``name``.

    Raises:
        ValueError: If there is none; the message lists the valid names.
    """
    for axis in axes:
        if axis.name == name:
            return axis
    raise ValueError(no_such("axis", name, [axis.name for axis in axes], "axes"))
