from __future__ import annotations

import re
from dataclasses import replace

import pytest

from harness.faults import FAMILIES, FAULTS, Fault
from harness.faults.choice import faults_named
from harness.faults.kill_matrix import cases_for
from harness.faults.subjects import OWN_SUBJECTS
from harness.importing import load
from harness.request import check_source
from matrix.constraints import constraints_on, exclusion
from matrix.subjects import SUBJECTS
from matrix.suites import suite_named

every_fault = pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)


def test_there_are_at_least_thirty_kinds_and_every_family_has_some() -> None:
    assert len(FAULTS) >= 30
    assert {fault.family for fault in FAULTS} == set(FAMILIES)


def test_names_are_unique_and_can_be_typed() -> None:
    names = [fault.name for fault in FAULTS]

    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z0-9-]+", name) for name in names)


def test_own_subjects_have_names_of_their_own_and_are_all_used() -> None:
    names = [subject.name for subject in (*SUBJECTS, *OWN_SUBJECTS)]

    assert len(set(names)) == len(names)
    assert set(OWN_SUBJECTS) <= {subject for fault in FAULTS for subject in fault.subjects}


@every_fault
def test_its_cases_exist_and_are_allowed(fault: Fault) -> None:
    assert fault.cases
    for case in fault.cases:
        assert exclusion(case.cell, constraints_on([case.subject])) is None


@every_fault
def test_its_report_is_a_link(fault: Fault) -> None:
    assert re.fullmatch(r"https://[\w./#-]+", fault.report_address)


@every_fault
def test_its_arm_and_blocks_can_be_loaded(fault: Fault) -> None:
    check_source(fault.arm)
    assert callable(load(fault.arm))
    for subject in fault.subjects:
        assert callable(load(subject.factory))


@every_fault
def test_the_smoke_suite_has_cases_that_it_can_reach(fault: Fault) -> None:
    if fault.needs_cuda:
        pytest.skip("the smoke suite runs on the CPU")
    assert cases_for(fault, suite_named("smoke"))


def test_a_report_that_is_no_link_is_refused() -> None:
    with pytest.raises(ValueError, match="neither 'owner/repository#number' nor an address"):
        replace(FAULTS[0], report="somewhere")


def test_an_axis_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="no axis 'wrap'"):
        _ = replace(FAULTS[0], axes={"wrap": ("ddp",)}).cases


def test_faults_are_chosen_by_name_in_the_order_of_the_catalogue() -> None:
    names = [FAULTS[3].name, FAULTS[1].name]

    assert faults_named(names) == (FAULTS[1], FAULTS[3])
    assert faults_named(()) == FAULTS


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("double-updat", "'double-update'"), ("codebook", "'codebook-moved'"), ("zzz", "reentrant,")],
)
def test_a_mistyped_name_gets_the_nearest_ones(name: str, nearest: str) -> None:
    with pytest.raises(ValueError, match=f"no fault '{name}'; .*{nearest}"):
        faults_named([name])
