"""Which boundaries to choose: what each candidate saves and costs, and sets of them that grow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from harness.checklist.answers import size_text

OWN = "its own gradient checkpointing"
"""Label of what the model brings along."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Some modules made boundaries together, measured in one training step."""

    label: str
    """What they are, for people."""
    boundaries: tuple[str, ...]
    """Their paths; none for ordinary training."""
    kept_bytes: int | None
    """Bytes that the forward keeps for its backward."""
    saved_bytes: int | None
    """Bytes that ordinary training keeps besides."""
    step: float
    """Seconds of a whole step."""
    recompute: float
    """Seconds that its step takes longer than an ordinary one."""
    safe: bool
    """Whether a step with them equals an ordinary one."""
    why: str = ""
    """Why it is not safe, or could not be measured."""

    @property
    def options(self) -> str:
        """The options of the command line that choose it; none for what the model does itself."""
        return " ".join(f"--boundary {name or '.'}" for name in self.boundaries)


@dataclass(frozen=True, kw_only=True)
class Suggestion:
    """What was measured, and what it suggests."""

    candidates: tuple[Choice, ...]
    """One for each class of blocks, and the model as a whole."""
    sets: tuple[Choice, ...]
    """Growing sets of the blocks, ordinary training first."""
    budget: int | None = None
    """Bytes that may be kept."""

    @property
    def picked(self) -> Choice | None:
        """The fastest safe choice within the budget; None without a budget, or without one."""
        if self.budget is None:
            return None
        fitting = [
            choice
            for choice in (*self.sets, *self.candidates)
            if choice.safe and choice.kept_bytes is not None and choice.kept_bytes <= self.budget
        ]
        return min(fitting, key=lambda choice: choice.step, default=None)

    @property
    def lines(self) -> list[str]:
        """The suggestion in plain words."""
        return list(self._lines())

    def to_dict(self) -> dict[str, Any]:
        """Return the suggestion as JSON has it."""
        return {**asdict(self), "picked": asdict(self.picked) if self.picked else None}

    def _lines(self) -> Iterator[str]:
        yield "boundaries, each kind of block alone:"
        yield from _table(self.candidates)
        if not self.candidates:
            yield "  none: no module of the model can be a boundary"
        if len(self.sets) > 1:
            yield "growing sets:"
            yield from _table(self.sets)
        if self.budget is None:
            return
        if self.picked is None:
            kept = [c.kept_bytes for c in (*self.sets, *self.candidates) if c.kept_bytes and c.safe]
            least = (
                f"the least that any keeps is {size_text(min(kept))}" if kept else "none is safe"
            )
            yield f"no choice keeps at most {_asked(self.budget)}: {least}"
        elif self.picked in self.sets[:1]:
            yield (
                f"within {_asked(self.budget)}: no checkpointing is needed, ordinary training "
                f"keeps {size_text(self.picked.kept_bytes)} for this batch"
            )
        else:
            chosen = f"{self.picked.label}: {self.picked.options}".removesuffix(": ")
            yield f"within {_asked(self.budget)}: {chosen}"


def growing(names: Sequence[str]) -> list[tuple[str, ...]]:
    """Return sets of blocks that grow: 1, 2, 4, ... and all of them, spread over the model.

    Args:
        names: Paths of the blocks, in order.
    """
    sizes = [2**power for power in range(16) if 2**power < len(names)]
    return [
        tuple(names[index * len(names) // size] for index in range(size))
        for size in (*sizes, len(names))
    ]


def _asked(budget: int) -> str:
    """Return a budget in binary units where it is a whole number of them."""
    for power, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if budget % 2**power == 0:
            return f"{budget >> power} {unit}"
    return size_text(budget)


def _table(choices: Sequence[Choice]) -> Iterator[str]:
    width = max((len(choice.label) for choice in choices), default=0)
    for choice in choices:
        if choice.why and choice.kept_bytes is None:
            yield f"  {choice.label:<{width}}  not measured: {choice.why}"
            continue
        verdict = "safe" if choice.safe else f"NOT safe: {choice.why}"
        yield (
            f"  {choice.label:<{width}}  keeps {size_text(choice.kept_bytes)}, saves "
            f"{size_text(choice.saved_bytes)}, recomputing takes {1e3 * choice.recompute:.1f} ms "
            f"of a step of {1e3 * choice.step:.1f} ms, {verdict}"
        )
