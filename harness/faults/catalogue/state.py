"""Faults in state that a block reads and writes, Python attributes included."""

from __future__ import annotations

from harness.faults.fault import Fault, Sign
from harness.faults.subjects import (
    AMBIENT_SWITCH,
    AUXILIARY_LOSS,
    COUNTED_ROWS,
    GROWING_CACHE,
    HOOKED_COUNTER,
    MOVING_CENTRE,
    SWITCHED_ADAPTER,
)
from harness.findings import CauseKind
from matrix.subjects import subject_named
from matrix.values import Condition

_ARMS = "harness.faults.arms.state"
_TORCH = "harness.arms.torch_checkpoint:install"
_OURS = "harness.arms.checkpointed:install"
_SPECTRAL = subject_named("spectral-norm")
_CODEBOOK = subject_named("codebook")
_READ: Condition = {"subject": ("spectral-norm", "codebook", "rebound")}
_READ_MOVED = Sign(
    outcome="differs",
    path="gradients/*",
    kind=CauseKind.STATE_MOVED,
    also=(CauseKind.STATE_WRITTEN,),
)

STATE: tuple[Fault, ...] = (
    Fault(
        name="spectral-norm-moved",
        family="state",
        report="pytorch/pytorch#62293",
        doc="the replay takes a further power iteration from where the forward's ended",
        arm=_TORCH,
        subjects=(_SPECTRAL,),
        axes={"wrapper": ("none", "ddp")},
        sign=_READ_MOVED,
        reach={"subject": ("spectral-norm",)},
    ),
    Fault(
        name="codebook-moved",
        family="state",
        report="pytorch/pytorch#7298",
        doc="the replay looks rows up in the codebook that the forward has moved",
        arm=_TORCH,
        subjects=(_CODEBOOK,),
        sign=_READ_MOVED,
        reach={"subject": ("codebook",)},
    ),
    Fault(
        name="counter-buffer-rebound",
        family="state",
        report="NVlabs/LongLive#16",
        doc="the replay reads and binds anew a buffer that the forward had bound anew",
        arm=_TORCH,
        subjects=(subject_named("rebound"),),
        sign=Sign(
            outcome="differs",
            path="gradients/*",
            kind=CauseKind.STATE_MOVED,
            also=(
                CauseKind.STATE_WRITTEN,
                CauseKind.STATE_REBOUND,
                CauseKind.REPEATED_UPDATE,
            ),
        ),
        reach={"subject": ("rebound",)},
    ),
    Fault(
        name="given-back-before-last-use",
        family="state",
        report="TensorAuto/OpenTau#202",
        doc="the state of the forward is given back after the first pass over a retained graph",
        arm=f"{_ARMS}:given_back_early",
        subjects=(_SPECTRAL,),
        axes={"backward": ("retained", "retained3")},
        sign=_READ_MOVED,
        reach={**_READ, "backward": ("retained", "retained3")},
    ),
    Fault(
        name="wrong-microbatch",
        family="state",
        report="unslothai/unsloth-zoo#813",
        doc="every replay sees the state of the newest microbatch",
        arm=f"{_ARMS}:newest_microbatch",
        subjects=(_SPECTRAL,),
        axes={"accumulation": ("joint",), "wrapper": ("none", "ddp")},
        sign=_READ_MOVED,
        reach=_READ,
    ),
    Fault(
        name="one-element-of-one-rank",
        family="state",
        report="pytorch/pytorch#62471",
        doc="a replay writes one part in 10^5 to one element of one buffer on one rank",
        arm=f"{_ARMS}:one_element_of_one_rank",
        subjects=(subject_named("readme"), subject_named("own-norm")),
        axes={"wrapper": ("none", "ddp")},
        sign=Sign(outcome="differs", path="buffers/*", kind=CauseKind.STATE_WRITTEN),
        reach={"buffers_follow_data": (True,)},
    ),
    Fault(
        name="buffer-written-by-model",
        family="state",
        report="pytorch/pytorch#110363",
        doc="the model moves a buffer after the boundary, and the replay reads the new value",
        arm=_TORCH,
        subjects=(MOVING_CENTRE,),
        sign=_READ_MOVED,
    ),
    Fault(
        name="adapter-switched",
        family="state",
        report="huggingface/peft#2832",
        doc="the replay uses the adapter that was switched on last",
        arm=_OURS,
        subjects=(SWITCHED_ADAPTER,),
        sign=Sign(
            outcome="differs",
            path="gradients/*",
            kind=CauseKind.STATE_MOVED,
            also=(
                CauseKind.GRADIENT_MISSING,
                CauseKind.GRADIENT_UNEXPECTED,
                CauseKind.ORDER_DRIFT,
            ),
        ),
    ),
    Fault(
        name="counter-advanced",
        family="state",
        report="NVIDIA/Megatron-LM#1514",
        doc="the replay advances a counter that is a Python attribute",
        arm=_OURS,
        subjects=(COUNTED_ROWS,),
        axes={"wrapper": ("none", "ddp")},
        sign=Sign(outcome="differs", path="attributes/rows_seen", kind=CauseKind.STATE_WRITTEN),
    ),
    Fault(
        name="auxiliary-loss-twice",
        family="state",
        report="NVIDIA/Megatron-LM#1514",
        doc="the replay appends an auxiliary loss again",
        arm=_OURS,
        subjects=(AUXILIARY_LOSS,),
        sign=Sign(outcome="differs", path="attributes/losses", kind=CauseKind.STATE_WRITTEN),
    ),
    Fault(
        name="hook-counts-again",
        family="state",
        report="pytorch/torchtitan#1114",
        doc="the replay runs a forward hook that counts in a buffer",
        arm=_TORCH,
        subjects=(HOOKED_COUNTER,),
        sign=Sign(
            outcome="differs",
            path="buffers/calls",
            kind=CauseKind.STATE_WRITTEN,
            also=(CauseKind.REPEATED_UPDATE,),
        ),
    ),
    Fault(
        name="cache-grows",
        family="state",
        report="pytorch/pytorch#155171",
        doc="the replay appends to a cache and attends to twice as many rows",
        arm=_OURS,
        subjects=(GROWING_CACHE,),
        sign=Sign(outcome="error", path="replay/*", kind=CauseKind.STATE_MOVED),
    ),
    Fault(
        name="context-variable-lost",
        family="state",
        report="adapter-hub/adapters#732",
        doc="the replay runs outside the context that the forward ran in",
        arm=_OURS,
        subjects=(AMBIENT_SWITCH,),
        sign=Sign(outcome="error", path="replay/*", kind=CauseKind.ORDER_DRIFT),
    ),
)
"""Buffers, attributes, caches, hooks and contexts."""
