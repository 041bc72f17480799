from __future__ import annotations

import pytest
from torch import nn

from harness.arms import ARMS, Arm, arm_named
from harness.importing import load
from wcn_ckpt.nn.modules import BasicBlock


@pytest.mark.parametrize("arm", ARMS, ids=lambda arm: arm.name)
def test_an_arm_adds_nothing_to_the_state_and_can_be_switched(arm: Arm) -> None:
    block = BasicBlock(8, 8)
    keys = list(block.state_dict())

    switch = load(arm.install)(block)
    switch(False)
    switch(True)

    assert list(block.state_dict()) == keys


@pytest.mark.parametrize("name", ["checkpointed", "torch_checkpoint", "snapshot_copy"])
def test_a_subject_without_a_boundary_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="Linear"):
        load(arm_named(name).install)(nn.Linear(1, 1))


def test_an_arm_may_be_given_by_importable_name() -> None:
    assert arm_named("my_arms.py:install").install == "my_arms.py:install"


def test_an_unknown_arm_is_named_with_the_valid_ones() -> None:
    with pytest.raises(ValueError, match="no arm 'fast'; valid arms: checkpointed, ordinary"):
        arm_named("fast")
