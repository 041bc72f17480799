"""The summary of a run as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from harness.baseline import Known
from harness.checklist.points import Checklist
from harness.report.checklists import checklist_markdown
from harness.report.escape import markdown, markdown_code, one_line
from harness.report.tally import expected_reasons, summary_line, tabulate
from harness.row import Row

SUMMARY_FILE = "summary.md"
_MOST_DETAILED = 50

_TEMPLATE = """\
# ckpt-lab: {{ headline }}

{% for name, value in facts.items() -%}
- {{ name }}: {{ value | join_lines | cell }}
{% endfor %}
{% if checklist %}{{ checklist }}

{% endif -%}
## Cases by axis value and subject

| axis value |{% for subject in table.subjects %} {{ subject | cell }} |{% endfor %}
|---|{% for subject in table.subjects %}---|{% endfor %}
{% for label, cells in table.lines -%}
| {{ label | cell }} |{% for cell in cells %} {{ cell.text }} |{% endfor %}
{% endfor %}
{%- if expected %}
## Expected differences
{% for reason, count in expected.items() %}
- {{ count }} cases: {{ reason | cell }}
{%- endfor %}
{% endif %}
{%- if vanished %}
## No longer found
{% for known in vanished %}
- {{ known.text | cell }}
{%- endfor %}
{% endif %}
{%- if failing %}
## Findings
{% for row in failing %}
### {{ row.outcome }}: {{ row.case | code }}

    {{ row.replay_command | line }}

| rank | point | path | expected | got | largest difference | allowed | where | cause | remedy |
|---|---|---|---|---|---|---|---|---|---|
{% for finding in row.findings -%}
| {{ finding.rank }} | {{ finding.point | cell }} | {{ finding.path | code }} \
| {{ finding.expected | cell }} \
| {{ finding.got | cell }} | {{ finding.max_abs | number }} \
| {{ finding.tolerance | number }} ({{ finding.tolerance_source | cell }}) \
| {{ finding.origin | cell }} | {{ finding.cause | cell }} | {{ finding.remedy | cell }} |
{% endfor %}
{%- endfor %}
{%- if rest %}
### {{ rest | length }} more cases
{% for row in rest %}
- {{ row.outcome }}: {{ row.case | code }}
{%- endfor %}
{% endif %}
{%- endif %}
"""


def write_summary(
    folder: Path,
    rows: Sequence[Row],
    facts: Mapping[str, Any],
    vanished: Sequence[Known] = (),
    checklists: Sequence[Checklist] = (),
) -> Path:
    """Write ``summary.md``.

    Args:
        folder: The results folder.
        rows: The rows of the run.
        facts: What was asked and what it covers, name -> text.
        vanished: Known findings that no case shows any more.
        checklists: Answers to the six points, of each model or family.

    Returns:
        Where it was written.
    """
    environment = Environment(undefined=StrictUndefined, autoescape=False)
    environment.filters["cell"] = markdown
    environment.filters["code"] = markdown_code
    environment.filters["line"] = one_line
    environment.filters["number"] = _number
    environment.filters["join_lines"] = lambda value: "; ".join(str(value).splitlines())
    failing = [row for row in rows if not row.passed]
    text = environment.from_string(_TEMPLATE).render(
        headline=summary_line(rows),
        facts=facts,
        checklist=checklist_markdown(checklists),
        table=tabulate(rows),
        expected=expected_reasons(rows),
        vanished=vanished,
        failing=failing[:_MOST_DETAILED],
        rest=failing[_MOST_DETAILED:],
    )
    path = folder / SUMMARY_FILE
    path.write_text(text, encoding="utf-8")
    return path


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"
