from __future__ import annotations

from dataclasses import replace

import pytest
from torch import nn

from harness.wrapping import wrap
from matrix.programs import Backward, Forward, Program

STEP = Program(
    wrapper="none", broadcast_buffers=False, autocast=None, steps=(Forward(0), Backward((0,)))
)


def test_no_wrapper_is_the_module_itself() -> None:
    module = nn.Linear(1, 1)

    assert wrap(module, STEP) is module


def test_an_unknown_wrapper_is_named() -> None:
    with pytest.raises(ValueError, match="no wrapper 'fsdp'; valid wrappers: none, ddp"):
        wrap(nn.Linear(1, 1), replace(STEP, wrapper="fsdp"))
