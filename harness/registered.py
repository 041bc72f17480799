"""Subjects that installed packages register.

A package registers its blocks under the entry-point group ``ckpt_lab.subjects``; each entry names a
:class:`matrix.subject.Subject` or several of them::

    [project.entry-points."ckpt_lab.subjects"]
    my-blocks = "my_package.lab:SUBJECTS"

They are run where they are asked for by name.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points

from matrix.case import Case, parse_case
from matrix.subject import Subject
from matrix.subjects import SUBJECTS, subject_named

GROUP = "ckpt_lab.subjects"
"""The entry-point group."""


class RegistrationError(ValueError):
    """What a package registered is no subject."""


@functools.cache
def registered_subjects() -> tuple[Subject, ...]:
    """Return the subjects of all installed packages; imports what they name.

    Raises:
        RegistrationError: If an entry cannot be loaded or is no subject, or a name is taken.
    """
    taken = {subject.name: "the lab" for subject in SUBJECTS}
    found: list[Subject] = []
    for entry in entry_points(group=GROUP):
        source = f"{entry.name} = {entry.value} of {entry.dist.name if entry.dist else 'a package'}"
        for subject in _subjects_of(entry, source):
            if subject.name in taken:
                raise RegistrationError(
                    f"subject {subject.name!r}, registered by {source}, has the name of one of "
                    f"{taken[subject.name]}; give it another"
                )
            taken[subject.name] = source
            found.append(subject)
    return tuple(found)


def any_subject_named(name: str) -> Subject:
    """Return a subject of the lab or of an installed package.

    Raises:
        ValueError: If there is none; the message lists the valid names.
    """
    return subject_named(name, _candidates(name))


def parse_any_case(case_id: str) -> Case:
    """Return the case with an id, on a subject of the lab or of an installed package.

    Raises:
        ValueError: If the subject, an axis or a value does not exist, or an axis is named twice.
    """
    return parse_case(case_id, _candidates(case_id.partition(",")[0]))


def _candidates(name: str) -> tuple[Subject, ...]:
    """The lab's own subjects, and the others only where they are needed: they import torch."""
    if any(subject.name == name for subject in SUBJECTS):
        return SUBJECTS
    return SUBJECTS + registered_subjects()


def _subjects_of(entry: EntryPoint, source: str) -> list[Subject]:
    try:
        value = entry.load()
    except Exception as error:
        raise RegistrationError(
            f"{source} cannot be loaded: {type(error).__name__}: {error}"
        ) from error
    subjects = list(value) if isinstance(value, Iterable) else [value]
    for subject in subjects:
        if not isinstance(subject, Subject):
            raise RegistrationError(
                f"{source} must be a matrix.subject.Subject or several, got {subject!r:.200}"
            )
    return subjects
