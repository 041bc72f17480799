"""Faults in autocast."""

from __future__ import annotations

from harness.faults.fault import Fault, Sign
from harness.faults.subjects import SHARED_CAST
from harness.findings import CauseKind
from matrix.subjects import subject_named
from matrix.values import Condition

_ARMS = "harness.faults.arms.autocast"
_BF16: Condition = {"autocast": ("bf16",)}

AUTOCAST: tuple[Fault, ...] = (
    Fault(
        name="autocast-lost",
        family="autocast",
        report="NVIDIA/TransformerEngine#791",
        doc="the replay runs without the autocast of its forward",
        arm=f"{_ARMS}:lost",
        subjects=(subject_named("readme"), subject_named("basic")),
        axes=_BF16,
        sign=Sign(outcome="error", path="replay/*", kind=CauseKind.DTYPE_DRIFT),
        reach=_BF16,
    ),
    Fault(
        name="autocast-lost-unchecked",
        family="autocast",
        report="NVIDIA/Megatron-LM#7538",
        doc="the same, with torch's check of the recomputed tensors switched off",
        arm=f"{_ARMS}:lost_and_unchecked",
        subjects=(subject_named("own-norm"),),
        axes=_BF16,
        sign=Sign(outcome="error", path="replay/*", kind=CauseKind.DTYPE_DRIFT),
        reach=_BF16,
    ),
    Fault(
        name="autocast-cache-kept",
        family="autocast",
        report="NVIDIA/TransformerEngine#24",
        doc="a replay leaves autocast nested, and weights that were cast stay cast",
        arm=f"{_ARMS}:cache_kept",
        subjects=(subject_named("dropout"),),
        axes={**_BF16, "steps": (1, 3)},
        sign=Sign(
            outcome="differs",
            path="modes/autocast nesting",
            kind=CauseKind.DTYPE_DRIFT,
            cause="autocast",
        ),
        reach=_BF16,
    ),
    Fault(
        name="autocast-cast-shared",
        family="autocast",
        report="pytorch/pytorch#193338",
        doc="a cast that is to be saved is cached before the boundary: only the replay makes it",
        arm=f"{_ARMS}:casts_saved",
        subjects=(SHARED_CAST,),
        axes=_BF16,
        sign=Sign(outcome="error", path="*", kind=CauseKind.ORDER_DRIFT),
        reach=_BF16,
    ),
)
"""Its dtype, and its cache of cast weights."""
