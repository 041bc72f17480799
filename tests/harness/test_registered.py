"""Subjects that installed packages register."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from harness import registered
from harness.request import RunRequest, resolve_case
from matrix.subject import Subject

THEIRS = Subject(name="theirs", factory="a:b", inputs="a:c", doc="theirs")
TAKEN = Subject(name="basic", factory="a:b", inputs="a:c", doc="taken")


@pytest.fixture(autouse=True)
def nothing_remembered() -> Iterator[None]:
    registered.registered_subjects.cache_clear()
    yield
    registered.registered_subjects.cache_clear()


def register(monkeypatch: pytest.MonkeyPatch, **names: str) -> None:
    entries = [
        importlib.metadata.EntryPoint(name, f"{__name__}:{value}", registered.GROUP)
        for name, value in names.items()
    ]
    monkeypatch.setattr(registered, "entry_points", lambda group: entries)
    monkeypatch.setitem(sys.modules, __name__, sys.modules[register.__module__])


SEVERAL = [THEIRS]
NO_SUBJECT = [3]


def test_a_registered_subject_is_selected_and_replayed_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    register(monkeypatch, one="SEVERAL")

    selection = RunRequest(subjects=("theirs",)).select()[0]
    assert {case.subject for case in selection.cases} == {THEIRS}
    assert resolve_case("theirs,wrapper=ddp").subject is THEIRS
    with pytest.raises(ValueError, match="no subject 'other'.*theirs"):
        RunRequest(subjects=("other",)).select()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("NO_SUBJECT", "must be a matrix.subject.Subject or several, got 3"),
        ("TAKEN", "'basic', registered by one = .*, has the name of one of the lab"),
        ("MISSING", "cannot be loaded: AttributeError"),
    ],
)
def test_what_is_no_subject_is_refused(
    monkeypatch: pytest.MonkeyPatch, value: str, message: str
) -> None:
    register(monkeypatch, one=value)

    with pytest.raises(registered.RegistrationError, match=message):
        RunRequest(subjects=("theirs",)).select()


def test_the_subjects_of_the_lab_import_nothing_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(group: str) -> Any:
        raise AssertionError(group)

    monkeypatch.setattr(registered, "entry_points", refuse)
    assert registered.any_subject_named("basic").name == "basic"
