"""Faults in how checkpointing is switched on, and in what it leaves to be seen."""

from __future__ import annotations

from harness.faults.fault import Fault, Sign
from harness.faults.subjects import FROZEN_PART, STACK
from harness.findings import CauseKind
from matrix.subjects import subject_named

_ARMS = "harness.faults.arms.switching"
_README = subject_named("readme")
_DROPOUT = subject_named("dropout")

SWITCHING: tuple[Fault, ...] = (
    Fault(
        name="enabling-reaches-nothing",
        family="switching",
        report="victorchall/EveryDream2trainer#246",
        doc="a flag is set that no boundary reads",
        arm=f"{_ARMS}:reaching_nothing",
        subjects=(_README, STACK),
        axes={"wrapper": ("none", "ddp")},
        sign=Sign(outcome="never_replayed", path="replays", kind=CauseKind.NEVER_REPLAYED),
    ),
    Fault(
        name="enabling-reaches-the-first",
        family="switching",
        report="huggingface/trl#1066",
        doc="the first boundary is switched on and the others are not",
        arm=f"{_ARMS}:reaching_the_first",
        subjects=(STACK,),
        sign=Sign(outcome="differs", path="calls/blocks.1", kind=CauseKind.NEVER_REPLAYED),
    ),
    Fault(
        name="eval-mode-recomputes",
        family="switching",
        report="huggingface/diffusers#9850",
        doc="a boundary in eval mode is replayed",
        arm=f"{_ARMS}:in_eval_mode",
        subjects=(FROZEN_PART,),
        sign=Sign(outcome="differs", path="calls/frozen", kind=CauseKind.UNWANTED_REPLAY),
    ),
    Fault(
        name="checkpointed-twice",
        family="switching",
        report="meta-llama/llama-cookbook#740",
        doc="the checkpointed call is checkpointed, so that the block is computed three times",
        arm=f"{_ARMS}:twice",
        subjects=(_DROPOUT,),
        sign=Sign(outcome="differs", path="calls/*", kind=CauseKind.UNWANTED_REPLAY),
    ),
    Fault(
        name="context-entered-once",
        family="switching",
        report="pytorch/pytorch#184018",
        doc="the context of the replay can be entered once, and a retained graph enters it again",
        arm=f"{_ARMS}:one_shot_context",
        subjects=(_DROPOUT,),
        axes={"backward": ("retained",)},
        sign=Sign(outcome="error", path="exception", kind=CauseKind.EXCEPTION),
        reach={"backward": ("retained", "retained3")},
    ),
    Fault(
        name="names-changed-by-wrapper",
        family="switching",
        report="pytorch/pytorch#117399",
        doc="a wrapper in the place of a block puts its name into every state_dict key",
        arm=f"{_ARMS}:wrapped_in_place",
        subjects=(STACK,),
        sign=Sign(outcome="differs", path="state_dict/*", kind=CauseKind.STATE_KEYS),
    ),
    Fault(
        name="state-in-a-buffer",
        family="switching",
        report="pytorch/pytorch#124546",
        doc="checkpointing keeps its own state in a persistent buffer",
        arm=f"{_ARMS}:state_in_a_buffer",
        subjects=(_README,),
        sign=Sign(
            outcome="differs",
            path="state_dict/*",
            kind=CauseKind.STATE_KEYS,
            also=(CauseKind.STATE_WRITTEN,),
        ),
    ),
)
"""Which boundaries run, how often, and under which names."""
