"""A comparison of two runs as text and as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from harness.comparison import Change, Comparison
from harness.report.escape import markdown, markdown_code, one_line
from harness.row import Row

_MOST = 20


def headline(comparison: Comparison) -> str:
    """Return for example ``412 cases in both: 1 newly failing, 2 fixed, ...``."""
    parts = [
        f"{len(comparison.newly_failing)} newly failing",
        f"{len(comparison.fixed)} fixed",
        f"{len(comparison.failing_otherwise)} failing otherwise",
        f"{comparison.still_failing} failing as before",
    ]
    return f"{comparison.common} cases in both: {', '.join(parts)}"


def comparison_text(comparison: Comparison) -> str:
    """Return a comparison as lines for a terminal; cases that fail with their replay commands."""
    lines = [headline(comparison), _time_text(comparison)]
    lines += [
        one_line(f"{name}: {before!r} before, {after!r} now")
        for name, (before, after) in comparison.settings.items()
    ]
    for section in _sections(comparison):
        lines.append(f"{section.title}: {len(section.changes)}")
        for change in section.changes[:_MOST]:
            cause = _cause(change)
            text = f"{_label(change.row)}: {section.what(change)}" + (f"; {cause}" if cause else "")
            lines.append(f"  {one_line(text)}")
            if change.after and not change.after.passed:
                lines.append(f"    {one_line(change.after.replay_command)}")
        if len(section.changes) > _MOST:
            lines.append(f"  ... and {len(section.changes) - _MOST} more")
    return "\n".join(lines)


def comparison_markdown(comparison: Comparison) -> str:
    """Return a comparison as Markdown."""
    lines = [f"# ckpt-lab: {headline(comparison)}", "", _time_text(comparison)]
    if comparison.settings:
        lines += ["", "| setting | before | now |", "|---|---|---|"]
        lines += [
            f"| {markdown(name)} | {markdown_code(before)} | {markdown_code(after)} |"
            for name, (before, after) in comparison.settings.items()
        ]
    for section in _sections(comparison):
        lines += ["", f"## {section.title}: {len(section.changes)}", ""]
        lines += ["| case | change | cause |", "|---|---|---|"]
        lines += [
            f"| {markdown_code(_label(change.row))} | {markdown(section.what(change))} "
            f"| {markdown(_cause(change))} |"
            for change in section.changes[:_MOST]
        ]
        if len(section.changes) > _MOST:
            lines += ["", f"and {len(section.changes) - _MOST} more"]
    return "\n".join(lines)


class _Section(NamedTuple):
    title: str
    changes: Sequence[Change]
    what: Callable[[Change], str]


def _sections(comparison: Comparison) -> list[_Section]:
    sections = (
        _Section("Newly failing", comparison.newly_failing, _outcomes),
        _Section("Failing otherwise", comparison.failing_otherwise, _outcomes),
        _Section("Fixed", comparison.fixed, _outcomes),
        _Section("No longer run", comparison.only_before, _outcomes),
        _Section("Not run before", comparison.only_after, _outcomes),
        _Section("Other noise", comparison.noise, _noises),
        _Section("Slower", comparison.slower, _times),
        _Section("Faster", comparison.faster, _times),
    )
    return [section for section in sections if section.changes]


def _time_text(comparison: Comparison) -> str:
    if comparison.time_ratio is None:
        return "no case is as expected in both, so times are not compared"
    before, after = comparison.seconds
    return (
        f"time of the cases as expected in both: {before:.1f} s before, {after:.1f} s now, "
        f"{comparison.time_ratio:.2f} times as long in the median"
    )


def _label(row: Row) -> str:
    return f"{row.case} seed {row.seed}" if row.seed else row.case


def _outcomes(change: Change) -> str:
    before = change.before.outcome if change.before else "not run"
    return f"{before} before, {change.after.outcome if change.after else 'not run'} now"


def _noises(change: Change) -> str:
    before, after = (row.noise or 0.0 if row else 0.0 for row in (change.before, change.after))
    return f"noise {before:.3g} before, {after:.3g} now"


def _times(change: Change) -> str:
    before, after = (row.seconds if row else 0.0 for row in (change.before, change.after))
    return f"{before:.2f} s before, {after:.2f} s now"


def _cause(change: Change) -> str:
    row = change.after if change.after and not change.after.passed else change.before
    if row is None or row.passed or not row.findings:
        return ""
    return row.findings[0].cause
