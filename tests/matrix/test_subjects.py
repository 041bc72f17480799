from __future__ import annotations

import pytest
from torch import nn

from harness.importing import load
from matrix.subjects import SUBJECTS, Subject, subject_named


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)
def test_a_subject_builds_and_runs_on_its_inputs(subject: Subject) -> None:
    module = load(subject.factory)(**subject.arguments)
    inputs = load(subject.inputs)(seed=0, rank=0, microbatch=0, **subject.input_arguments)

    assert isinstance(module, nn.Module)
    assert module(inputs) is not None


def test_downsample_is_there_where_the_name_says_so() -> None:
    for subject in SUBJECTS:
        module = load(subject.factory)(**subject.arguments)
        assert (module.downsample is not None) == subject.name.endswith("-down")


def test_a_name_must_be_typeable() -> None:
    with pytest.raises(ValueError, match="'my block' cannot stand in a case id"):
        Subject(name="my block", factory="a:b", inputs="c:d", doc="")


def test_an_unknown_subject_is_named_with_the_valid_ones() -> None:
    with pytest.raises(ValueError, match="no subject 'mink'; valid subjects: basic, basic-down"):
        subject_named("mink")
