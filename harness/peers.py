"""The page about other ways to checkpoint a block: what the lab says about each, axis by axis.

``python -m harness.peers`` writes ``docs/peers.md``; it runs a few hundred cases on local ranks.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path

from harness.arms import ARMS, PEERS, Arm
from harness.ranks import RankPool
from harness.row import Row
from harness.runner import ArmError, RunOptions, check_arm, run_case
from matrix.axes import AXES, axis_named
from matrix.case import Case
from matrix.completion import completed
from matrix.constraints import constraints_on
from matrix.subjects import SUBJECTS, subject_named
from matrix.values import Value, value_text

JUDGED: tuple[Arm, ...] = (*PEERS, ARMS[0])
"""The peers, and wcn_ckpt's own checkpointing beside them."""

OWN_AXES = ("device", "enable", "selective")
"""Axes that reach wcn_ckpt's boundaries alone, or another machine."""

SLOW = ("inductor",)
"""Values that are left to the nightly suite."""

FIRST_SUBJECT = "readme"
"""An axis is tried on this subject; where it has no such axis, on the first one that has it."""

_PACKAGES = {"torch_wrapper": "torch", "fairscale_wrapper": "fairscale"}
_PACKAGES |= {"transformers_layer": "transformers", "checkpointed": "wcn-ckpt"}
_INTRODUCTION = """\
# Other ways to checkpoint a block

Written by `python -m harness.peers`; do not edit it. Each line is one case on {ranks} ranks, in
which each way to checkpoint is judged like wcn_ckpt's own: against the same step without
checkpointing.

| arm | what it is | version |
|---|---|---|
{arms}

`equal` is bitwise, with every check of [the lab](lab.md). Otherwise a cell names what was not
equal, or the exception. An arm is tried by itself with `ckpt-lab run --arm {first}`.
"""


def peers_page(
    arms: Sequence[Arm] = JUDGED,
    axes: Iterable[str] | None = None,
    subjects: Iterable[str] | None = None,
    *,
    ranks: int = 2,
    timeout: float = 60.0,
) -> str:
    """Judge some arms and return the page about them.

    Args:
        arms: The arms; one that cannot be loaded is left out, with the reason.
        axes: Names of the axes; None for all that reach a peer.
        subjects: Names of the subjects; None for all.
        ranks: Number of ranks.
        timeout: Seconds until a case counts as hung.

    Returns:
        Markdown.

    Raises:
        ValueError: There is no such axis or subject.
        harness.ranks.RankStartError: If no ranks can be started.
    """
    by_axis = _cases_by_axis([axis_named(n).name for n in axes] if axes is not None else _AXES)
    chosen = [subject_named(n) for n in subjects] if subjects is not None else SUBJECTS
    by_subject = {f"`{subject.name}`: {subject.doc}": Case.of(subject) for subject in chosen}
    with RankPool(ranks) as pool:
        problems = {arm.name: _problem(arm, pool, timeout) for arm in arms}
        there = [arm for arm in arms if problems[arm.name] is None]
        options = [RunOptions(arm=arm, case_timeout=timeout) for arm in there]

        def judged(cases: Mapping[str, Case]) -> str:
            rows = {
                text: [run_case(case, pool, option) for option in options]
                for text, case in cases.items()
            }
            return _table(rows, there)

        parts = [
            _INTRODUCTION.format(
                ranks=ranks,
                first=arms[0].name,
                arms="\n".join(
                    f"| `{arm.name}` | {arm.doc} | {problems[arm.name] or _version(arm)} |"
                    for arm in arms
                ),
            ),
            f"## By axis\n\n{judged(by_axis)}",
            f"## By subject\n\n{judged(by_subject)}",
        ]
    return "\n".join(parts)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page."""
    parser = argparse.ArgumentParser(prog="python -m harness.peers", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/peers.md"), help="file to write")
    parser.add_argument("--axis", action="append", help="name of an axis; repeatable")
    parser.add_argument("--subject", action="append", help="name of a subject; repeatable")
    parser.add_argument("--ranks", type=int, default=2)
    options = parser.parse_args(arguments)
    try:
        page = peers_page(axes=options.axis, subjects=options.subject, ranks=options.ranks)
    except ValueError as error:
        parser.error(str(error))
    options.out.write_text(page, encoding="utf-8")
    return 0


_AXES = [axis.name for axis in AXES if axis.name not in OWN_AXES]


def _cases_by_axis(names: Iterable[str]) -> dict[str, Case]:
    """Return the defaults, then each other value with a case that has little else changed."""
    order = sorted(SUBJECTS, key=lambda subject: subject.name != FIRST_SUBJECT)
    factors: dict[str, tuple[Value, ...]] = {"subject": tuple(s.name for s in order)}
    for axis in AXES:
        others = (value for value in axis.values if value != axis.default)
        factors[axis.name] = (axis.default, *others)
    factors["device"] = ("cpu",)
    rules = constraints_on(SUBJECTS)
    first = Case.of(subject_named(FIRST_SUBJECT))
    cases = {f"every axis at its default · `{first.id}`": first}
    for name in names:
        for value in factors[name][1:]:
            row = None if value in SLOW else completed({name: value}, factors, rules)
            if row is not None:
                subject = subject_named(str(row.pop("subject")))
                case = Case.of(subject, row)
                cases[f"`{name}={value_text(value)}` · `{case.id}`"] = case
    return cases


def _problem(arm: Arm, pool: RankPool, timeout: float) -> str | None:
    try:
        check_arm(arm, pool, timeout)
    except ArmError as error:
        return f"not judged: {error}"
    return None


def _version(arm: Arm) -> str:
    package = _PACKAGES.get(arm.name, "")
    try:
        return f"{package} {metadata.version(package)}" if package else ""
    except metadata.PackageNotFoundError:
        return "from the checkout"


def _table(rows: Mapping[str, Sequence[Row]], arms: Sequence[Arm]) -> str:
    lines = ["| case | " + " | ".join(f"`{arm.name}`" for arm in arms) + " |"]
    lines.append("|---" * (len(arms) + 1) + "|")
    lines += [f"| {text} | " + " | ".join(map(_verdict, row)) + " |" for text, row in rows.items()]
    return "\n".join(lines) + "\n"


def _verdict(row: Row) -> str:
    """Return ``equal``, or what was not: groups of observations, or the exception."""
    if row.outcome == "error":
        return f"raises `{str(row.findings[0].got).partition(':')[0]}`"
    if row.outcome == "differs":
        groups = dict.fromkeys(finding.path.partition("/")[0] for finding in row.findings)
        return "differs: " + ", ".join(group.replace("_", " ") for group in groups)
    return row.outcome.replace("_", " ")


if __name__ == "__main__":
    sys.exit(main())
