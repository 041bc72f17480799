"""The pytest plugin: fixtures that run cases on ranks kept alive for a whole worker.

It is there wherever ``wcn-ckpt[lab]`` is installed, and imports nothing until a test uses it. Under
``pytest -n`` each worker has ranks of its own, started on first use and stopped when it ends::

    def test_block(ckpt_lab):
        ckpt_lab.assert_equivalent(build_block, make_batch)


    @pytest.mark.ckpt_lab(build_block, make_batch, suite="pr")
    def test_block_case_by_case(ckpt_lab, ckpt_lab_case):
        ckpt_lab.check(ckpt_lab_case)
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

import pytest

from harness.needed import what_is_missing

if TYPE_CHECKING:
    from harness.ranks import Ranks
    from harness.row import Row
    from harness.testing import CkptLab
    from matrix.case import Case

RANKS = 2
"""Number of ranks of the pool."""

_MARKER = "ckpt_lab"
_CASE = "ckpt_lab_case"


class CheckCase(Protocol):
    """Runs a case and fails the test where it is not as expected."""

    def __call__(self, case: Case, *, arm: str = "checkpointed", seed: int = 0) -> Row:
        """Run ``case`` with a named arm and seed; return its row."""


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers",
        f"{_MARKER}(factory, inputs, suite='smoke', ...): one item for each case of a module, or "
        f"with subject='name' of a registered subject; the test takes the fixture {_CASE}",
    )
    if "TORCHELASTIC_RUN_ID" in os.environ:
        from harness import pytest_torchrun

        config.pluginmanager.register(pytest_torchrun)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one item of a marked test for each case."""
    if _CASE not in metafunc.fixturenames:
        return
    marker = metafunc.definition.get_closest_marker(_MARKER)
    if marker is None:
        raise pytest.Collector.CollectError(
            f"{metafunc.definition.nodeid} takes {_CASE} but has no marker: decorate it with "
            f"@pytest.mark.{_MARKER}(factory, inputs, suite='smoke')"
        )
    missing = what_is_missing()
    if missing is not None:
        raise pytest.Collector.CollectError(missing)
    from harness.testing import cases_of, cases_of_subject
    from harness.verification.local_ranks import LocalRank

    try:
        if "subject" in marker.kwargs:
            cases = cases_of_subject(*marker.args, **marker.kwargs)
        else:
            cases = cases_of(LocalRank(), *marker.args, **marker.kwargs)
    except (TypeError, ValueError) as error:
        raise pytest.Collector.CollectError(f"{metafunc.definition.nodeid}: {error}") from error
    metafunc.parametrize(_CASE, cases, ids=[case.id for case in cases])


@pytest.fixture(scope="session")
def rank_pool() -> Iterator[Ranks]:
    """Two local ranks, or those that torchrun started."""
    missing = what_is_missing()
    if missing is not None:
        pytest.fail(missing, pytrace=False)
    from harness.ranks.launch import open_groups, resolve_size

    size = resolve_size(None)
    with open_groups(size, size, "gloo") as (group,):
        yield group


@pytest.fixture
def ckpt_lab(rank_pool: Ranks) -> CkptLab:
    """Return the lab: it asserts that checkpointing changes nothing that a module computes."""
    from harness.testing import CkptLab

    return CkptLab(rank_pool)


@pytest.fixture
def check_case(rank_pool: Ranks) -> CheckCase:
    """Return a function that runs a case on the ranks and fails where it is not as expected."""
    from harness.arms import arm_named
    from harness.testing import CkptLab, LabCase

    lab = CkptLab(rank_pool)

    def check(case: Case, *, arm: str = "checkpointed", seed: int = 0) -> Row:
        return lab.check(LabCase(case=case, arm=arm_named(arm), seed=seed))

    return check
