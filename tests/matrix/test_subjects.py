from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from harness.importing import load
from matrix.axes import AXES
from matrix.blocks import MyBlock
from matrix.subjects import NO_BATCH_NORM, SUBJECTS, Subject, subject_named
from wcn_ckpt.nn.modules import GradientCheckpointingMixin

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)
def test_a_subject_builds_and_runs_on_its_inputs(subject: Subject) -> None:
    module = load(subject.factory)(**subject.arguments)

    assert isinstance(module, nn.Module)
    assert module(*arguments_of(subject)) is not None


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)
def test_a_subject_can_be_built_with_checkpointing_on(subject: Subject) -> None:
    module = load(subject.factory)(**subject.arguments, use_checkpoint=True)

    flags = [m.gradient_checkpointing for m in module.modules() if is_boundary(m)]
    assert flags and all(flags)


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)
def test_buffers_follow_data_where_the_subject_says_so(subject: Subject) -> None:
    def buffers(rank: int) -> list[torch.Tensor]:
        torch.manual_seed(0)
        module = load(subject.factory)(**subject.arguments)
        module(*arguments_of(subject, rank))
        return list(module.buffers())

    pairs = zip(buffers(0), buffers(1), strict=True)
    assert any(not torch.equal(a, b) for a, b in pairs) == subject.buffers_follow_data


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)
def test_batch_norm_axes_are_left_out_where_there_is_no_batch_norm(subject: Subject) -> None:
    module = load(subject.factory)(**subject.arguments)
    has_one = any(isinstance(child, _BatchNorm) for child in module.modules())

    assert has_one == subject.batch_norm == (NO_BATCH_NORM not in subject.narrowings)


def test_options_name_axes_that_are_optional() -> None:
    optional = {axis.name for axis in AXES if axis.option is not None}

    assert {name for subject in SUBJECTS for name in subject.options} == optional


def test_the_readme_block_is_the_one_in_the_readme() -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = re.findall(r"^class MyBlock.*?(?=^```|^\S)", page, flags=re.MULTILINE | re.DOTALL)[0]
    namespace: dict[str, Any] = {"nn": nn, "GradientCheckpointingMixin": GradientCheckpointingMixin}
    exec(shown, namespace)
    torch.manual_seed(0)
    theirs = namespace["MyBlock"](16)
    torch.manual_seed(0)
    ours = MyBlock(16)
    x = torch.randn(8, 16)

    assert [name for name, _ in ours.named_modules()] == [n for n, _ in theirs.named_modules()]
    assert torch.equal(ours(x), theirs(x))


def arguments_of(subject: Subject, rank: int = 0) -> tuple[Any, ...]:
    made = load(subject.inputs)(seed=0, rank=rank, microbatch=0, **subject.input_arguments)
    return made if isinstance(made, tuple) else (made,)


def is_boundary(module: nn.Module) -> bool:
    return hasattr(module, "_gradient_checkpointed_call")


def test_downsample_is_there_where_the_name_says_so() -> None:
    blocks = [s for s in SUBJECTS if s.name.startswith(("basic", "bottleneck"))]
    assert len(blocks) == 4
    for subject in blocks:
        module = load(subject.factory)(**subject.arguments)
        assert (module.downsample is not None) == subject.name.endswith("-down")


def test_a_name_must_be_typeable() -> None:
    with pytest.raises(ValueError, match="'my block' cannot stand in a case id"):
        Subject(name="my block", factory="a:b", inputs="c:d", doc="")


def test_an_unknown_subject_is_named_with_the_valid_ones() -> None:
    valid = "did you mean 'minkunet'. valid subjects: basic, basic-down"
    with pytest.raises(ValueError, match=f"no subject 'mink'; {valid}"):
        subject_named("mink")
