"""The blocks of the faults, as subjects like those of the matrix."""

from __future__ import annotations

from matrix.subject import NO_BATCH_NORM, Subject
from matrix.subjects import SUBJECTS

WITH_NORMS = tuple(
    subject.name
    for subject in SUBJECTS
    if NO_BATCH_NORM not in subject.narrowings or subject.name == "instance-norm"
)
"""Names of the subjects of the matrix with running statistics in one of torch's own norms."""


def _subject(
    name: str,
    factory: str,
    doc: str,
    *,
    batch_norm: bool = False,
    buffers_follow_data: bool = False,
    inputs: str = "matrix.batches:terrain_rows",
) -> Subject:
    return Subject(
        name=name,
        factory=f"harness.faults.blocks.{factory}",
        arguments={"channels": 16},
        inputs=inputs,
        input_arguments={"channels": 16},
        buffers_follow_data=buffers_follow_data,
        narrowings=() if batch_norm else (NO_BATCH_NORM,),
        doc=doc,
    )


KEYWORD_INPUT = _subject("keyword-input", "inputs:KeywordInput", "a tensor passed by keyword")
NESTED_INPUT = _subject("nested-input", "inputs:NestedInput", "tensors passed in a dictionary")
REUSED_WORKSPACE = _subject(
    "reused-workspace", "inputs:ReusedWorkspace", "an input that is overwritten after the boundary"
)
SCALED_IN_PLACE = _subject(
    "scaled-in-place", "inputs:ScaledInPlace", "an input that the boundary changes in place"
)
WRITTEN_BACK = _subject(
    "written-back", "inputs:WrittenBack", "a dictionary whose entry the boundary replaces"
)
SHARED_CAST = _subject(
    "shared-cast", "inputs:SharedCast", "a weight that is used before the boundary and in it"
)
LATE_BINDING = _subject(
    "late-binding", "inputs:LateBinding", "checkpointed closures over a loop variable"
)
NO_INPUT_GRADIENT = Subject(
    name="no-input-gradient",
    factory="matrix.blocks:MyBlock",
    arguments={"channels": 16},
    inputs="harness.faults.blocks.inputs:rows_without_gradient",
    input_arguments={"channels": 16},
    buffers_follow_data=True,
    doc="the block of the README on an input that requires no gradient",
)
COUNTED_ROWS = _subject("counted-rows", "state:CountedRows", "a counter in a Python attribute")
AUXILIARY_LOSS = _subject("auxiliary-loss", "state:AuxiliaryLoss", "a list of auxiliary losses")
HOOKED_COUNTER = _subject("hooked-counter", "state:HookedCounter", "a counter in a forward hook")
GROWING_CACHE = _subject("growing-cache", "state:GrowingCache", "a cache that each call extends")
NUMPY_MASK = _subject("numpy-mask", "state:NumpyMask", "a mask drawn by numpy")
GENERATOR_MASK = _subject(
    "generator-mask", "state:GeneratorMask", "a mask from a torch.Generator that is passed in"
)
OWN_ORDER = _subject("own-order", "state:OwnOrder", "an order drawn inside the block")
MOVING_CENTRE = _subject(
    "moving-centre",
    "state:MovingCentre",
    "a buffer that the model writes after the boundary",
    buffers_follow_data=True,
)
SWITCHED_ADAPTER = _subject(
    "switched-adapter", "state:SwitchedAdapter", "an adapter chosen by an attribute"
)
AMBIENT_SWITCH = _subject(
    "ambient-switch", "state:AmbientSwitch", "a layer switched on by a context variable"
)
STACK = _subject(
    "stack",
    "models:Stack",
    "two boundaries between two layers",
    batch_norm=True,
    buffers_follow_data=True,
)
NESTED = _subject(
    "nested",
    "models:Nested",
    "a boundary inside a boundary",
    batch_norm=True,
    buffers_follow_data=True,
)
FROZEN_PART = _subject(
    "frozen-part",
    "models:FrozenPart",
    "a frozen block in eval mode before a trained one",
    batch_norm=True,
    buffers_follow_data=True,
)
HALF_FROZEN = _subject("half-frozen", "models:HalfFrozen", "a boundary with a frozen layer")
INITIALIZED_FROM_DATA = _subject(
    "initialized-from-data", "models:InitializedFromData", "a buffer set from the first batch"
)
MEAN_OVER_RANKS = _subject(
    "mean-over-ranks", "models:MeanOverRanks", "a collective inside the boundary"
)

OWN_SUBJECTS: tuple[Subject, ...] = (
    KEYWORD_INPUT,
    NESTED_INPUT,
    REUSED_WORKSPACE,
    SCALED_IN_PLACE,
    WRITTEN_BACK,
    SHARED_CAST,
    LATE_BINDING,
    NO_INPUT_GRADIENT,
    COUNTED_ROWS,
    AUXILIARY_LOSS,
    HOOKED_COUNTER,
    GROWING_CACHE,
    NUMPY_MASK,
    GENERATOR_MASK,
    OWN_ORDER,
    MOVING_CENTRE,
    SWITCHED_ADAPTER,
    AMBIENT_SWITCH,
    STACK,
    NESTED,
    FROZEN_PART,
    HALF_FROZEN,
    INITIALIZED_FROM_DATA,
    MEAN_OVER_RANKS,
)
"""All of them."""
