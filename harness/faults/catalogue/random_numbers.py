"""Faults in random numbers."""

from __future__ import annotations

from harness.faults.fault import Fault, Sign
from harness.faults.subjects import GENERATOR_MASK, NUMPY_MASK, OWN_ORDER
from harness.findings import CauseKind
from matrix.subjects import SUBJECTS, subject_named

_ARMS = "harness.faults.arms.random_numbers"
_TORCH = "harness.arms.torch_checkpoint:install"
_DROPOUT = subject_named("dropout")
_DRAWING = tuple(
    subject.name for subject in SUBJECTS if subject == _DROPOUT or "dropout" in subject.options
)


def _drawn(cause: str) -> Sign:
    return Sign(
        outcome="differs",
        path="gradients/*",
        kind=CauseKind.RANDOM_DRAWN,
        also=(CauseKind.RANDOM_STATE, CauseKind.ORDER_DRIFT),
        cause=cause,
    )


RANDOM_NUMBERS: tuple[Fault, ...] = (
    Fault(
        name="rng-not-preserved",
        family="random numbers",
        report="csrhddlam/pytorch-checkpoint#3",
        doc="torch's generator is not set back for the replay",
        arm=f"{_ARMS}:not_preserved",
        subjects=(_DROPOUT,),
        axes={"wrapper": ("none", "ddp")},
        sign=_drawn("(?i)torch"),
        reach={"subject": _DRAWING},
    ),
    Fault(
        name="rng-not-put-back",
        family="random numbers",
        report="pytorch/pytorch#14253",
        doc="torch's generator is left where the replay ends",
        arm=f"{_ARMS}:not_put_back",
        subjects=(_DROPOUT,),
        axes={"accumulation": ("joint",)},
        sign=Sign(outcome="differs", path="random_state/torch", kind=CauseKind.RANDOM_STATE),
        reach={"subject": _DRAWING},
    ),
    Fault(
        name="cuda-rng-not-preserved",
        family="random numbers",
        report="pytorch/pytorch#121212",
        doc="the CPU's generator is set back for the replay and CUDA's is not",
        arm=f"{_ARMS}:only_cpu_preserved",
        subjects=(_DROPOUT,),
        axes={"device": ("cuda",)},
        sign=_drawn("(?i)cuda"),
        reach={"subject": _DRAWING, "device": ("cuda",)},
    ),
    Fault(
        name="python-random",
        family="random numbers",
        report="cybertronai/gradient-checkpointing#35",
        doc="Python's random is not set back for the replay",
        arm=_TORCH,
        subjects=(subject_named("python-random"),),
        sign=_drawn("(?i)python"),
        reach={"subject": ("python-random",)},
    ),
    Fault(
        name="numpy-random",
        family="random numbers",
        report="cybertronai/gradient-checkpointing#35",
        doc="numpy's generator is not set back for the replay",
        arm=_TORCH,
        subjects=(NUMPY_MASK,),
        sign=_drawn("(?i)numpy"),
    ),
    Fault(
        name="generator-argument",
        family="random numbers",
        report="cybertronai/gradient-checkpointing#35",
        doc="a torch.Generator that is passed in is not set back for the replay",
        arm=_TORCH,
        subjects=(GENERATOR_MASK,),
        sign=_drawn("(?i)generator"),
    ),
    Fault(
        name="order-drawn-in-block",
        family="random numbers",
        report="pytorch/torchtitan#1117",
        doc="the block draws the order of its layers and draws another one in the replay",
        arm=_TORCH,
        subjects=(OWN_ORDER,),
        sign=_drawn("went on with"),
    ),
)
"""Torch's, Python's, numpy's and generators of one's own."""
