"""Faults in the running statistics of norms."""

from __future__ import annotations

from harness.faults.fault import Fault, Sign
from harness.faults.subjects import NESTED, WITH_NORMS
from harness.findings import CauseKind
from matrix.subjects import subject_named
from matrix.values import Condition

_ARMS = "harness.faults.arms.statistics"
_README = subject_named("readme")
_TWICE = subject_named("called-twice")
_BASIC = subject_named("basic")
_NORMS: Condition = {"subject": WITH_NORMS, "running_stats": (True,)}
_UPDATED_AGAIN = Sign(
    outcome="differs",
    path="buffers/*num_batches_tracked",
    kind=CauseKind.REPEATED_UPDATE,
    cause="updated twice",
)

STATISTICS: tuple[Fault, ...] = (
    Fault(
        name="double-update",
        family="statistics",
        report="pytorch/pytorch#96136",
        doc="the replay updates the running statistics again",
        arm="harness.arms.torch_checkpoint:install",
        subjects=(_README, _TWICE, _BASIC),
        axes={"wrapper": ("none", "ddp")},
        sign=_UPDATED_AGAIN,
        reach=_NORMS,
    ),
    Fault(
        name="square-root-momentum",
        family="statistics",
        report="gpleiss/efficient_densenet_pytorch#73",
        doc="forward and replay both update, each with a momentum meant to make up for it",
        arm=f"{_ARMS}:square_root_momentum",
        subjects=(_README, _BASIC),
        sign=Sign(
            outcome="differs",
            path="buffers/*num_batches_tracked",
            kind=CauseKind.REPEATED_UPDATE,
            also=(CauseKind.MISSING_UPDATE,),
            cause="updated twice",
        ),
        reach=_NORMS,
    ),
    Fault(
        name="no-momentum-in-replay",
        family="statistics",
        report="https://discuss.pytorch.org/t/17738",
        doc="the replay runs with momentum 0, which keeps the statistics and counts an update",
        arm=f"{_ARMS}:no_momentum_in_replay",
        subjects=(_README,),
        axes={"bn_momentum": (0.1, 1.0)},
        sign=_UPDATED_AGAIN,
        reach=_NORMS,
    ),
    Fault(
        name="updated-only-in-replay",
        family="statistics",
        report="facebookresearch/fairscale#1035",
        doc="forward leaves the statistics alone and the replay updates them",
        arm=f"{_ARMS}:only_in_replay",
        subjects=(_README, _BASIC),
        sign=Sign(
            outcome="differs",
            path="buffers/*num_batches_tracked",
            kind=CauseKind.MISSING_UPDATE,
        ),
        reach=_NORMS,
    ),
    Fault(
        name="restore-skipped-on-exception",
        family="statistics",
        report="pytorch/pytorch#96866",
        doc="restored where a replay returns, and early stop ends it with an exception",
        arm=f"{_ARMS}:restore_skipped_on_exception",
        subjects=(_README, _BASIC),
        sign=_UPDATED_AGAIN,
        reach=_NORMS,
    ),
    Fault(
        name="restored-by-copy",
        family="statistics",
        report="pytorch/pytorch#70260",
        doc="restored with copy_ while the graph of a plain forward is alive",
        arm="harness.arms.snapshot_copy:install",
        subjects=(_README, _BASIC),
        axes={"accumulation": ("plain_then_checkpointed",)},
        sign=Sign(outcome="error", path="exception", kind=CauseKind.SAVED_TENSOR_WRITTEN),
        reach=_NORMS,
    ),
    Fault(
        name="restored-after-first-replay-only",
        family="statistics",
        report="pytorch/pytorch#42212",
        doc="a second backward pass over a retained graph updates again",
        arm=f"{_ARMS}:first_replay_only",
        subjects=(_README,),
        axes={"backward": ("retained", "retained3")},
        sign=Sign(
            outcome="differs",
            path="buffers/*num_batches_tracked",
            kind=CauseKind.REPEATED_UPDATE,
        ),
        reach={**_NORMS, "backward": ("retained", "retained3")},
    ),
    Fault(
        name="forward-update-undone",
        family="statistics",
        report="pytorch/pytorch#62471",
        doc="restored to what they were before the forward, so no update is left",
        arm=f"{_ARMS}:undone",
        subjects=(_README, _BASIC),
        sign=Sign(
            outcome="differs",
            path="buffers/*num_batches_tracked",
            kind=CauseKind.MISSING_UPDATE,
        ),
        reach=_NORMS,
    ),
    Fault(
        name="variance-not-restored",
        family="statistics",
        report="deepinsight/insightface#2053",
        doc="mean and counter are restored, the variance is not",
        arm=f"{_ARMS}:variance_forgotten",
        subjects=(_README, _BASIC),
        sign=Sign(outcome="differs", path="buffers/*running_var", kind=CauseKind.STATE_WRITTEN),
        reach=_NORMS,
    ),
    Fault(
        name="buffer-rebound",
        family="statistics",
        report="pytorch/pytorch#111138",
        doc="restored by binding copies in the place of the buffers",
        arm=f"{_ARMS}:rebound",
        subjects=(_README, _BASIC),
        axes={"wrapper": ("none", "ddp")},
        sign=Sign(outcome="differs", path="rebound/*", kind=CauseKind.STATE_REBOUND),
        reach=_NORMS,
    ),
    Fault(
        name="nested-restored-from-a-stack",
        family="statistics",
        report="pytorch/pytorch#90105",
        doc="nested boundaries restore in the order of a stack, which is not that of their replays",
        arm=f"{_ARMS}:kept_on_a_stack",
        subjects=(NESTED,),
        sign=Sign(
            outcome="differs",
            path="buffers/inner.norm.num_batches_tracked",
            kind=CauseKind.REPEATED_UPDATE,
            cause="updated 3 times",
        ),
    ),
    Fault(
        name="second-call-taken-for-replay",
        family="statistics",
        report="Tencent/YOLO-Master#262",
        doc="a shared block is called twice and its second update is dropped",
        arm=f"{_ARMS}:second_call_is_a_replay",
        subjects=(_TWICE,),
        axes={"accumulation": ("one", "sequential")},
        sign=Sign(
            outcome="differs",
            path="buffers/*num_batches_tracked",
            kind=CauseKind.MISSING_UPDATE,
        ),
        reach=_NORMS,
    ),
)
"""They are checked on every rank after every forward, backward and step."""
