"""Why two arms differ, as far as the traces tell, and what to do about it."""

from __future__ import annotations

from typing import NamedTuple

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from harness.equivalence import Difference
from harness.trace import Raised, Trace


class Explanation(NamedTuple):
    """A cause and its remedy."""

    cause: str
    remedy: str


_USE_BOUNDARY = (
    "checkpoint the block through wcn_ckpt's GradientCheckpointingMixin, whose replays leave "
    "running statistics alone"
)
_ORDINARY_RAISED = Explanation(
    "the ordinary arm itself raised, so there is nothing to compare with",
    "make the step run without checkpointing first, or exclude this combination with its reason",
)
_RAISED: tuple[tuple[str, Explanation], ...] = (
    (
        "modified by an inplace operation",
        Explanation(
            "a tensor that an earlier forward saved was written in place before its backward: "
            "restoring buffers with copy_ after a replay moves their version counters",
            "do not write the original buffers during a replay; point the module at copies, as "
            "wcn_ckpt's boundaries do",
        ),
    ),
    (
        "CheckpointError",
        Explanation(
            "the replay did not save the same tensors as the forward",
            "make the block's computation depend only on its inputs, parameters and kept buffers",
        ),
    ),
    (
        "Trying to backward through the graph a second time",
        Explanation(
            "a graph was freed before its last backward pass",
            "keep the graph with retain_graph=True wherever another pass follows",
        ),
    ),
)
_BY_GROUP = {
    "outputs": Explanation(
        "the checkpointed forward computes other values than the ordinary one",
        "look for state or random draws that the two forwards do not share",
    ),
    "losses": Explanation(
        "the checkpointed forward computes another loss than the ordinary one",
        "look for state or random draws that the two forwards do not share",
    ),
    "random_state": Explanation(
        "a global random generator is left in another state: the replay drew from it, or did not "
        "put it back",
        "checkpoint with preserve_rng_state=True, and keep draws from other generators out of the "
        "block",
    ),
    "buffers": Explanation(
        "a replay wrote this buffer, or restored it to another value",
        "keep the buffer through replays, for example with preserve_module_buffers",
    ),
}
_GRADIENT = Explanation(
    "the backward pass saw other values than the ordinary one: the replay computed something else "
    "than the forward",
    "look for state that the block both reads and writes, random draws, and inputs that changed "
    "between forward and backward",
)


def explain(difference: Difference, ordinary: Trace, judged: Trace) -> Explanation:
    """Explain a difference between the arms.

    Args:
        difference: The difference.
        ordinary: What the ordinary arm saw.
        judged: What the judged arm saw.

    Returns:
        The cause and its remedy; general ones where nothing better is known.
    """
    if difference.group == "buffers":
        repeated = _repeated_update(difference, ordinary, judged)
        if repeated is not None:
            return repeated
    return _BY_GROUP.get(difference.group, _GRADIENT)


def explain_raised(raised: Raised, *, ordinary: bool) -> Explanation:
    """Explain an exception of an arm.

    Args:
        raised: The exception.
        ordinary: Whether it was the ordinary arm's.

    Returns:
        The cause and its remedy.
    """
    if ordinary:
        return _ORDINARY_RAISED
    for text, explanation in _RAISED:
        if text in raised.error:
            return explanation
    return Explanation(
        "the judged arm raised where the ordinary arm did not",
        "read the traceback: replay the case",
    )


def _repeated_update(difference: Difference, ordinary: Trace, judged: Trace) -> Explanation | None:
    path = difference.name.rpartition(".")[0]
    norm = _submodule(judged.module, path)
    if not isinstance(norm, _NormBase):
        return None
    counter = f"{path}.num_batches_tracked" if path else "num_batches_tracked"
    expected, got = (
        trace.points.get(difference.point, {}).get("buffers", {}).get(counter)
        for trace in (ordinary, judged)
    )
    if expected is None or got is None or not int(got) > int(expected) > 0:
        return None
    ratio = int(got) / int(expected)
    times = "twice" if ratio <= 2 else f"{ratio:g} times"
    name = f"{type(norm).__name__} {path!r}" if path else type(norm).__name__
    return Explanation(
        f"{name} was updated {times}: the replay ran its running-statistics update again "
        f"({int(got)} updates for {_forwards(int(expected))})",
        _USE_BOUNDARY,
    )


def _forwards(count: int) -> str:
    return f"{count} logical forward{'' if count == 1 else 's'}"


def _submodule(module: nn.Module, path: str) -> nn.Module | None:
    try:
        return module.get_submodule(path)
    except AttributeError:
        return None
