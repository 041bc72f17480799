"""Named selections of cases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from matrix.axes import AXES, Axis, axis_named
from matrix.case import Case
from matrix.choices import no_case, no_such
from matrix.constraints import CONSTRAINTS, Constraint, constraints_on
from matrix.covering import Coverage, coverage, covering_rows
from matrix.subjects import SUBJECTS, Subject
from matrix.values import Condition, Value

CARD = ("bn_momentum", "running_stats", "wrapper", "broadcast_buffers", "autocast")
"""The axes of the design card."""

CORE = (
    *("subject", *CARD, "backward", "accumulation", "enable", "steps", "init_sync", "device"),
    *("dropout", "order", "sites"),
)
"""The factors of which more than pairs is tried, where the others are tried in pairs."""


@dataclass(frozen=True)
class Plan:
    """How much is run of some subjects. The subject is a factor like the axes."""

    strength: int | None
    """Every combination of values of this many factors, of ``core`` where it is given, is run at
    least once; None for all of them, 0 to leave the factors outside ``full`` at their default."""
    full: tuple[str, ...] = ()
    """Factors whose full product is run; the covering is then one of the other factors, within
    each combination of these."""
    kinds: tuple[str, ...] = ("block", "model")
    """Kinds of subjects it is for."""
    names: tuple[str, ...] | None = None
    """Names of the subjects it is for; None for all of those kinds."""
    option: str | None = None
    """Name of an optional axis: the plan is for the subjects that have it; None for all."""
    core: tuple[str, ...] = ()
    """The factors that ``strength`` is of; of the others every pair is run, with each other and
    with these. Empty for all factors."""
    only: Condition = field(default_factory=dict, hash=False)
    """Factor -> the values it is narrowed to."""

    def takes(self, subject: Subject) -> bool:
        """Tell whether it is for a subject."""
        return (
            subject.kind in self.kinds
            and (self.names is None or subject.name in self.names)
            and (self.option is None or self.option in subject.options)
        )


@dataclass(frozen=True)
class Thinning:
    """Something a suite does without where it would be too long."""

    plans: tuple[Plan, ...]
    """What is run then."""
    note: str
    """What was thinned."""


@dataclass(frozen=True)
class Suite:
    """How much of the matrix is run."""

    name: str
    """As in ``--suite``."""
    plans: tuple[Plan, ...]
    """What is run."""
    doc: str
    """What it is for, in one line."""
    most: int = 10_000
    """Largest number of cases."""
    thinnings: tuple[Thinning, ...] = ()
    """What is run instead where that would be more cases, in the order they are tried."""


_UNSHARDED = {"wrapper": ("none", "ddp")}
_TRACED = {"compile": ("inside", "aot_eager")}
_CARD_OF_BLOCKS = Plan(2, full=("subject", *CARD), core=CORE, kinds=("block",), only=_UNSHARDED)
_SHARDED_BLOCKS = Plan(2, core=CORE, kinds=("block",), only={"wrapper": ("fsdp2",)})
_MODELS = Plan(3, core=CORE, kinds=("model",))
_MODELS_THIN = Plan(2, core=CORE, kinds=("model",))
_COMPILED = (
    Plan(2, core=CORE, option="compile", only=_TRACED),
    Plan(1, option="compile", only={"compile": ("inductor",)}),
)

SUITES: tuple[Suite, ...] = (
    Suite(
        "smoke",
        (
            Plan(2, core=CORE),
            Plan(0, full=("subject", "compile"), names=("readme", "codebook"), only=_TRACED),
        ),
        "every pair of values at least once, and three compiled cases; the default",
    ),
    Suite(
        "pr",
        (Plan(3, core=CORE), Plan(1, option="compile", only=_TRACED)),
        "every triple of values of the core axes and every pair of values of all at least once; "
        "for a change",
    ),
    Suite(
        "card",
        (
            Plan(
                0,
                full=("subject", *CARD, "backward", "accumulation"),
                names=("basic", "basic-down", "bottleneck", "bottleneck-down"),
                only=_UNSHARDED,
            ),
        ),
        "the full product of the design card, backward and accumulation on the MinkUNet blocks",
    ),
    Suite(
        "nightly",
        (_CARD_OF_BLOCKS, _SHARDED_BLOCKS, _MODELS, *_COMPILED),
        "the full product of the design card on every block, times every pair of the other axes; "
        "every pair under FSDP2; every triple of the core axes on whole models; compiled blocks",
        thinnings=(
            Thinning(
                (_CARD_OF_BLOCKS, _SHARDED_BLOCKS, _MODELS_THIN, *_COMPILED),
                "whole models: pairs instead of triples",
            ),
            Thinning(
                (
                    replace(_CARD_OF_BLOCKS, strength=1),
                    _SHARDED_BLOCKS,
                    _MODELS_THIN,
                    *_COMPILED,
                ),
                "whole models: pairs instead of triples; axes outside the design card: each value "
                "instead of each pair, within each combination of the card",
            ),
            Thinning(
                (Plan(3, core=CORE, kinds=("block",)), _MODELS_THIN, *_COMPILED),
                "whole models: pairs instead of triples; blocks: triples of the core axes instead "
                "of the full product of the design card",
            ),
        ),
    ),
)
"""All suites."""


@dataclass(frozen=True)
class Selection:
    """The cases of one run."""

    cases: tuple[Case, ...]
    """In the order they run."""
    coverages: tuple[Coverage, ...]
    """What they cover: one figure for each plan of the suite."""
    thinned: str | None = None
    """What was thinned, if anything was."""

    @property
    def coverage_text(self) -> str:
        """The figures, one sentence per line, and what was thinned."""
        texts = [figure.text for figure in self.coverages]
        return "\n".join([*texts, f"thinned: {self.thinned or 'nothing'}"])


def suite_named(name: str) -> Suite:
    """Return the suite called ``name``.

    Raises:
        ValueError: If there is none; the message lists the valid names.
    """
    for suite in SUITES:
        if suite.name == name:
            return suite
    raise ValueError(no_such("suite", name, [suite.name for suite in SUITES]))


def select(
    suite: Suite,
    *,
    subjects: Sequence[Subject] = SUBJECTS,
    axes: tuple[Axis, ...] = AXES,
    only: Mapping[str, tuple[Value, ...]] | None = None,
    constraints: tuple[Constraint, ...] = CONSTRAINTS,
    seed: int = 0,
) -> Selection:
    """Choose the cases of a suite.

    Args:
        suite: How much is run.
        subjects: On what.
        axes: All axes, in canonical order.
        only: Axis name -> the values it is narrowed to. An axis that is run only where it is
            asked for keeps its default if it is not named here.
        constraints: What is left out of any subject; what subjects leave out is added.
        seed: Varies the choice among equally good arrays.

    Returns:
        The cases and what they cover, within the narrowed axes.

    Raises:
        ValueError: If an axis does not exist, no subject is one of the suite's, constraints leave
            no case, or the thinnest form of the suite has more cases than it may have.
    """
    narrowed = dict(only or {})
    for name in narrowed:
        axis_named(name, axes)
    for axis in axes:
        if axis.opt_in:
            narrowed.setdefault(axis.name, (axis.default,))
    rules = constraints_on(subjects, axes, constraints)
    ladder = ((suite.plans, None), *((step.plans, step.note) for step in suite.thinnings))
    for plans, note in ladder:
        selection = _selection(plans, note, subjects, axes, narrowed, rules, seed)
        if len(selection.cases) <= suite.most:
            break
    else:
        raise ValueError(
            f"suite {suite.name!r} would have {len(selection.cases)} cases, more than "
            f"{suite.most}; narrow it with --subject or --axis"
        )
    if not selection.coverages:
        raise ValueError(f"suite {suite.name!r} has none of {[s.name for s in subjects]}")
    if not selection.cases:
        reasons = {f"{rule.text}: {rule.reason}": rule.when for rule in rules}
        raise ValueError(no_case(narrowed, reasons))
    return selection


def _selection(
    plans: tuple[Plan, ...],
    note: str | None,
    subjects: Sequence[Subject],
    axes: tuple[Axis, ...],
    narrowed: Mapping[str, tuple[Value, ...]],
    constraints: tuple[Constraint, ...],
    seed: int,
) -> Selection:
    cases: list[Case] = []
    coverages: list[Coverage] = []
    for plan in plans:
        by_name = {subject.name: subject for subject in subjects if plan.takes(subject)}
        if not by_name:
            continue
        factors = {"subject": tuple(by_name), **_values(plan, axes, narrowed)}
        if not all(factors.values()):
            continue
        strength = plan.strength or (0 if plan.full else None)
        rows = covering_rows(
            factors, strength, full=plan.full, core=plan.core, constraints=constraints, seed=seed
        )
        pairs = 2 if plan.core and strength else strength
        coverages.append(coverage(rows, factors, pairs, constraints, plan.full))
        if pairs != strength:
            among = tuple(name for name in plan.core if name not in plan.full)
            coverages.append(coverage(rows, factors, strength, constraints, plan.full, among))
        cases += [
            Case.of(
                by_name[str(row["subject"])], {axis.name: row[axis.name] for axis in axes}, axes
            )
            for row in rows
        ]
    return Selection(tuple(cases), tuple(coverages), note)


def _values(
    plan: Plan, axes: tuple[Axis, ...], narrowed: Mapping[str, tuple[Value, ...]]
) -> dict[str, tuple[Value, ...]]:
    """Return axis name -> the values that a plan runs; none where nothing is left."""
    values: dict[str, tuple[Value, ...]] = {}
    for axis in axes:
        asked = narrowed.get(axis.name)
        if axis.name in plan.only:
            wanted = plan.only[axis.name]
            values[axis.name] = tuple(v for v in wanted if asked is None or v in asked)
        elif plan.strength == 0 and axis.name not in plan.full:
            fixed = (axis.default,)
            values[axis.name] = asked[:1] if asked and axis.default not in asked else fixed
        elif asked is not None:
            values[axis.name] = asked
        else:
            values[axis.name] = (axis.default,) if axis.apart else axis.values
    return values
