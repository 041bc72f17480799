"""No table of rows, window or phase ends up on torch's default device instead of its data's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from harness.importing import load
from matrix.subjects import SUBJECTS, Subject

OURS = [s for s in SUBJECTS if s.arguments.get("of", s.factory).startswith("wcn_ckpt")]


def result(subject: Subject, default_device: str) -> list[Tensor]:
    torch.manual_seed(0)
    module = load(subject.factory)(**subject.arguments)
    made = load(subject.inputs)(seed=0, rank=0, microbatch=0, **subject.input_arguments)
    arguments: tuple[Any, ...] = made if isinstance(made, tuple) else (made,)
    module.gradient_checkpointing_enable()
    with torch.device(default_device):
        outputs = [t for t in pytree.tree_leaves(module(*arguments)) if isinstance(t, Tensor)]
        torch.stack([t.sum() for t in outputs if t.requires_grad]).sum().backward()
    gradients = [p.grad for p in module.parameters() if p.grad is not None]
    return [*outputs, *gradients]


@pytest.mark.parametrize("subject", OURS, ids=lambda subject: subject.name)
def test_another_default_device_changes_nothing(subject: Subject) -> None:
    expected, found = result(subject, "cpu"), result(subject, "meta")

    assert [t.device.type for t in found] == ["cpu"] * len(expected)
    assert all(map(torch.equal, expected, found))
