"""The smoke suite, one item per case."""

from __future__ import annotations

import pytest

from harness.pytest_plugin import CheckCase
from matrix.case import Case
from matrix.suites import select, suite_named


@pytest.mark.parametrize("case", select(suite_named("smoke")).cases, ids=lambda case: case.id)
def test_checkpointed_equals_ordinary(case: Case, check_case: CheckCase) -> None:
    check_case(case)
