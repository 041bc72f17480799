"""What there is to try: axes, subjects, constraints, training-step programs and covering suites.

Everything here is data and small functions over data; nothing starts a process or runs a model.
Importing this package does not import ``torch``: functions that act on modules or make inputs are
referred to by importable name (``"module:function"``) and are loaded where the case runs.
"""

from __future__ import annotations

from matrix.axes import AXES, Axis
from matrix.case import Case, parse_case
from matrix.constraints import CONSTRAINTS, Constraint, constraints_on, exclusion
from matrix.covering import Coverage, coverage, covering_rows
from matrix.expectations import (
    ExpectedDifference,
    Fact,
    expected_differences,
    expected_facts,
)
from matrix.programs import (
    AutogradGrad,
    Backward,
    Forward,
    OptimizerStep,
    Program,
    Step,
    build_program,
)
from matrix.subjects import SUBJECTS, Narrowing, Subject
from matrix.suites import SUITES, Plan, Selection, Suite, Thinning, select, suite_named
from matrix.values import Value

__all__ = [
    "AXES",
    "CONSTRAINTS",
    "SUBJECTS",
    "SUITES",
    "AutogradGrad",
    "Axis",
    "Backward",
    "Case",
    "Constraint",
    "Coverage",
    "ExpectedDifference",
    "Fact",
    "Forward",
    "Narrowing",
    "OptimizerStep",
    "Plan",
    "Program",
    "Selection",
    "Step",
    "Subject",
    "Suite",
    "Thinning",
    "Value",
    "build_program",
    "constraints_on",
    "coverage",
    "covering_rows",
    "exclusion",
    "expected_differences",
    "expected_facts",
    "parse_case",
    "select",
    "suite_named",
]
