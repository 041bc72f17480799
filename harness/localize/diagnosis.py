"""Why a computation and its repetition part, decided from what surrounded both."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple, TypedDict

from harness.equivalence import Difference
from harness.findings import CauseKind, Scalar
from harness.localize.calls import Call, Moment
from harness.localize.divergence import Divergence
from harness.localize.state import Change, Place, State, value_changes
from harness.localize.values import difference, first_difference, same

_MOST_NAMED = 3

Describe = Callable[[str], str]
"""Path of a module -> how a person is told of it."""


class Diagnosis(NamedTuple):
    """A kind of cause and the evidence for it in words."""

    kind: CauseKind
    reason: str


class Wording(NamedTuple):
    """What the two sides of a divergence are called."""

    first: str
    second: str


REPLAY = Wording("the forward", "the replay")
ARMS = Wording("the ordinary arm", "this one")


def diagnose(
    divergence: Divergence,
    *,
    whole: tuple[Call, Call],
    ignored: Collection[Place],
    nondeterministic: bool,
    synced: Collection[Place] = (),
    wording: Wording = REPLAY,
) -> Diagnosis:
    """Decide why a computation and its repetition part.

    Args:
        divergence: Where they part.
        whole: The outermost computation and repetition that it is in; what surrounds them is
            evidence too.
        ignored: State that is written and not read.
        nondeterministic: Whether the ordinary arm differs from itself.
        synced: Buffers that were copied between ranks.
        wording: What the two sides are called.
    """
    for evidence in (
        _changed_input(divergence, wording),
        _other_dtype(divergence, wording),
        _random_numbers(divergence, wording),
        _moved_state(divergence, whole, ignored, synced, wording),
        _changed_plain_input(divergence, whole, wording),
        _other_order(divergence, whole, wording),
        _other_surroundings(divergence, whole, wording),
        _other_nesting(divergence, wording),
    ):
        if evidence is not None:
            return evidence
    if nondeterministic:
        return Diagnosis(
            CauseKind.NONDETERMINISTIC,
            "inputs, state, autocast and generators are the same, and the ordinary arm differs "
            "from itself as well: the kernel gives other bits from the same numbers",
        )
    return Diagnosis(
        CauseKind.UNKNOWN,
        "inputs, state, autocast, generators, globals, contexts, modes and hooks are the same: it "
        "depends on something that is none of these",
    )


def told(divergence: Divergence, describe: Describe) -> str:
    """Say in words where two computations part, and by how much.

    Args:
        divergence: Where.
        describe: Names a module.
    """
    gap = divergence.difference
    name = describe(divergence.first.module)
    if divergence.what == "order":
        return f"{name} went on with {gap.got} instead of {gap.expected}"
    size = "" if gap.max_abs is None else f", largest difference {gap.max_abs:.6g}"
    tensor = where(divergence.what, gap)["tensor"]
    values = f"{tensor} is {_number(gap.got)} instead of {_number(gap.expected)}{size}"
    if divergence.what == "saved tensor":
        return f"{name} saved another tensor for backward ({values})"
    if divergence.what == "output":
        return f"{name} computed another output ({values})"
    if divergence.child is not None:
        return f"{name} handed another input to {describe(divergence.child)} ({values})"
    return f"{name} was given another input ({values})"


def _number(value: object) -> str:
    return f"{value:.9g}" if isinstance(value, float) else str(value)


class Where(TypedDict):
    """What differs and by how much, as fields of :class:`harness.localize.located.Located`."""

    tensor: str
    expected: Scalar
    got: Scalar
    max_abs: float | None


def where(what: str, gap: Difference) -> Where:
    """Return what differs and by how much.

    Args:
        what: What kind of thing differs.
        gap: How it differs.
    """
    index = str(list(gap.index)) if gap.index else ""
    name = f"saved{gap.name}" if what == "saved tensor" and gap.name.startswith("[") else gap.name
    return Where(tensor=f"{name}{index}", expected=gap.expected, got=gap.got, max_abs=gap.max_abs)


def change_text(change: Change, first: str = "before", second: str = "after") -> str:
    """Say what a piece of state was before and after, for example ``1 before, 2 after``.

    Args:
        change: The change.
        first: What to call the first instant.
        second: What to call the second one.
    """
    if same(change.before, change.after):
        return "with the same value"
    gap = difference("", change.before, change.after)
    index = f" at {list(gap.index)}" if gap.index else ""
    size = "" if gap.max_abs is None or not gap.index else f", largest difference {gap.max_abs:.6g}"
    return f"{_number(gap.expected)} {first}, {_number(gap.got)} {second}{index}{size}"


def _changed_input(divergence: Divergence, wording: Wording) -> Diagnosis | None:
    if divergence.what != "input" or divergence.child is not None:
        return None
    return _input_diagnosis(divergence.first, divergence.difference, wording)


def _input_diagnosis(call: Call, gap: Difference, wording: Wording) -> Diagnosis:
    after = call.inputs_after or {}
    itself = first_difference(
        {key: value for key, value in call.inputs.items() if key == gap.name},
        {key: value for key, value in after.items() if key == gap.name},
    )
    who = (
        "the block itself changed it" if itself is not None else f"it changed after {wording.first}"
    )
    return Diagnosis(
        CauseKind.INPUT_CHANGED,
        f"{gap.name} is not what {wording.first} got ({_number(gap.expected)} then, "
        f"{_number(gap.got)} now): {who}",
    )


def _other_dtype(divergence: Divergence, wording: Wording) -> Diagnosis | None:
    moments = (divergence.first.entry, divergence.second.entry), divergence.before
    for first, second in moments:
        if first.autocast.dtypes != second.autocast.dtypes:
            return Diagnosis(
                CauseKind.DTYPE_DRIFT,
                f"autocast was {first.autocast} in {wording.first} and is {second.autocast} in "
                f"{wording.second}",
            )
    expected, got = (_dtype_and_shape(v) for v in _sides(divergence.difference))
    if expected and got and expected[0] != got[0]:
        return Diagnosis(
            CauseKind.DTYPE_DRIFT,
            f"{wording.first} computed in {expected[0]} and {wording.second} in {got[0]}",
        )
    return None


def _random_numbers(divergence: Divergence, wording: Wording) -> Diagnosis | None:
    first, second = divergence.before
    moved = {
        name
        for name, state in first.generators.items()
        if second.generators.get(name, state) != state
    }
    drawn = _drawn(first, divergence.after)
    culprits = [name for name in first.generators if name in moved & drawn]
    if culprits:
        return Diagnosis(
            CauseKind.RANDOM_DRAWN,
            f"it draws random numbers from {_listed(culprits)}, which stood in another state in "
            f"{wording.second} than in {wording.first}",
        )
    only_now = _drawn(divergence.second.entry, divergence.second.exit) - _drawn(
        divergence.first.entry, divergence.first.exit
    )
    if only_now and not divergence.second.stopped:
        return Diagnosis(
            CauseKind.RANDOM_DRAWN,
            f"{wording.second} draws random numbers from {_listed(sorted(only_now))}, and "
            f"{wording.first} does not",
        )
    return None


def _drawn(before: Moment, after: Moment | None) -> set[str]:
    if after is None:
        return set()
    return {
        name
        for name, state in before.generators.items()
        if after.generators.get(name, state) != state
    }


def _moved_state(
    divergence: Divergence,
    whole: tuple[Call, Call],
    ignored: Collection[Place],
    synced: Collection[Place],
    wording: Wording,
) -> Diagnosis | None:
    first, second = divergence.first, divergence.second
    found = _readable(first.entry.state, second.entry.state, ignored)
    own = [change for change in found if change.place.module == first.module]
    elsewhere = _readable(whole[0].entry.state, whole[1].entry.state, ignored)
    culprits = own or found or elsewhere
    if not culprits:
        return None
    texts = [
        f"{change.place.kind} {change.place.path!r} ({change_text(change)})"
        for change in culprits[:_MOST_NAMED]
    ]
    if len(culprits) > _MOST_NAMED:
        texts.append(f"{len(culprits) - _MOST_NAMED} more")
    itself = first.exit is not None and any(
        change.place == culprits[0].place
        for change in value_changes(first.entry.state, first.exit.state)
    )
    between = f"between the starts of {wording.first} and {wording.second}"
    text = f"state that it can read differs {between}: {_listed(texts)}"
    if itself:
        return Diagnosis(CauseKind.STATE_MOVED, f"{text}; the forward itself writes it")
    if culprits[0].place in synced:
        return Diagnosis(CauseKind.BUFFER_SYNC, f"{text}; it was copied from another rank")
    return Diagnosis(CauseKind.STATE_MOVED, f"{text}; it changed between them")


def _readable(first: State, second: State, ignored: Collection[Place]) -> list[Change]:
    return [change for change in value_changes(first, second) if change.place not in ignored]


def _changed_plain_input(
    divergence: Divergence, whole: tuple[Call, Call], wording: Wording
) -> Diagnosis | None:
    for first, second in ((divergence.first, divergence.second), whole):
        gap = first_difference(first.inputs, second.inputs)
        if gap is not None and not (gap.max_abs is not None and divergence.child is not None):
            return _input_diagnosis(first, gap, wording)
    return None


def _other_surroundings(
    divergence: Divergence, whole: tuple[Call, Call], wording: Wording
) -> Diagnosis | None:
    text = _surroundings_text(divergence, whole, wording)
    return None if text is None else Diagnosis(CauseKind.STATE_MOVED, text)


def _other_nesting(divergence: Divergence, wording: Wording) -> Diagnosis | None:
    """Tell autocast that something left open from one that ended; a replay opens some itself."""
    depths = [call.entry.autocast.nesting for call in (divergence.first, divergence.second)]
    if wording is REPLAY or depths[0] == depths[1]:
        return None
    return Diagnosis(
        CauseKind.DTYPE_DRIFT,
        f"{depths[0]} contexts of autocast are open in {wording.first} and {depths[1]} in "
        f"{wording.second}: it was left open before, and weights that were cast stay cast",
    )


def _surroundings_text(
    divergence: Divergence, whole: tuple[Call, Call], wording: Wording
) -> str | None:
    """Say which globals, contexts, modes and hooks were others in a replay, if any."""
    if wording is not REPLAY:
        return None
    moments = (
        (divergence.first.entry, divergence.second.entry),
        (whole[0].entry, whole[1].entry),
        divergence.before,
    )
    for first, second in moments:
        found = value_changes(first.surroundings, second.surroundings)
        if found:
            texts = [
                f"{change.place.kind} {change.place.name!r} ({change_text(change)})"
                for change in found[:_MOST_NAMED]
            ]
            if len(found) > _MOST_NAMED:
                texts.append(f"{len(found) - _MOST_NAMED} more")
            return (
                f"what surrounds {wording.first} and {wording.second} differs: {_listed(texts)}; a "
                "checkpoint copies none of it"
            )
    return None


def _other_order(
    divergence: Divergence, whole: tuple[Call, Call], wording: Wording
) -> Diagnosis | None:
    first, second = divergence.first, divergence.second
    if first.entry.records_gradients and not second.entry.records_gradients:
        return Diagnosis(
            CauseKind.ORDER_DRIFT,
            f"gradients are recorded in {wording.first} and not in {wording.second}",
        )
    if divergence.what == "order":
        surroundings = _surroundings_text(divergence, whole, wording)
        return Diagnosis(
            CauseKind.ORDER_DRIFT,
            f"{wording.second} does not compute the same things in the same order as "
            f"{wording.first}{f': {surroundings}' if surroundings else ''}",
        )
    expected, got = (_dtype_and_shape(v) for v in _sides(divergence.difference))
    if expected and got and expected[1] != got[1]:
        return Diagnosis(
            CauseKind.ORDER_DRIFT,
            f"{wording.first} had shape {expected[1]} and {wording.second} has {got[1]}",
        )
    return None


def _sides(gap: Difference) -> tuple[str, str]:
    return str(gap.expected), str(gap.got)


def _dtype_and_shape(text: str) -> tuple[str, str] | None:
    dtype, found, shape = text.partition(" tensor of shape ")
    return (dtype, shape) if found else None


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
