"""Faults between ranks."""

from __future__ import annotations

from harness.faults.fault import Fault, Sign
from harness.faults.subjects import INITIALIZED_FROM_DATA, MEAN_OVER_RANKS
from harness.findings import CauseKind
from matrix.subjects import subject_named

_ARMS = "harness.faults.arms.ranks"
_README = subject_named("readme")
_BASIC = subject_named("basic")
_REDUCED = Sign(outcome="differs", path="gradients*", kind=CauseKind.REDUCTION)

RANKS: tuple[Fault, ...] = (
    Fault(
        name="no-sync-ignored",
        family="ranks",
        report="baidu-baige/LoongForge#163",
        doc="gradients are reduced after every microbatch, also under no_sync",
        arm=f"{_ARMS}:reduced_under_no_sync",
        subjects=(_README, _BASIC),
        axes={"wrapper": ("ddp",), "accumulation": ("no_sync",)},
        sign=_REDUCED,
        reach={"wrapper": ("ddp",), "accumulation": ("no_sync",)},
    ),
    Fault(
        name="gradient-averaged-twice",
        family="ranks",
        report="neuralmagic/sparseml#135",
        doc="gradients are divided by the number of ranks, which DDP does itself",
        arm=f"{_ARMS}:averaged_twice",
        subjects=(_README, _BASIC),
        axes={"wrapper": ("ddp",)},
        sign=_REDUCED,
        reach={"wrapper": ("ddp",)},
    ),
    Fault(
        name="parameter-not-reduced",
        family="ranks",
        report="facebookresearch/fairscale#777",
        doc="one parameter keeps the gradient of its own rank",
        arm=f"{_ARMS}:one_parameter_not_reduced",
        subjects=(_README, _BASIC),
        axes={"wrapper": ("ddp",), "init_sync": (False,)},
        sign=_REDUCED,
        reach={"wrapper": ("ddp",)},
    ),
    Fault(
        name="broadcast-overwrites-buffer",
        family="ranks",
        report="pytorch/pytorch#22095",
        doc="DDP's buffer copy of the next forward changes what the replay of this one reads",
        arm="harness.arms.torch_checkpoint:install",
        subjects=(INITIALIZED_FROM_DATA,),
        axes={"wrapper": ("ddp",), "accumulation": ("joint",)},
        sign=Sign(
            outcome="differs",
            path="gradients/*",
            kind=CauseKind.BUFFER_SYNC,
            also=(CauseKind.STATE_MOVED,),
        ),
        reach={"wrapper": ("ddp",)},
    ),
    Fault(
        name="replay-skipped-on-one-rank",
        family="ranks",
        report="pytorch/pytorch#43946",
        doc="one rank replays nothing, and the others wait for it in a collective of the block",
        arm=f"{_ARMS}:replay_skipped_on_one_rank",
        subjects=(MEAN_OVER_RANKS,),
        sign=Sign(
            outcome="hung",
            path="process",
            kind=CauseKind.MISSING_COLLECTIVE,
            also=(CauseKind.NEVER_REPLAYED,),
        ),
        case_timeout=8.0,
    ),
)
"""Reductions, broadcasts and collectives."""
