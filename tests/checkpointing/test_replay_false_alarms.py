"""The guard says nothing, and nothing changes, in any training that ordinary autograd allows."""

from __future__ import annotations

import pytest

from tests.checkpointing.training import (
    ACCUMULATIONS,
    OPTIMIZERS,
    SUBJECTS,
    arms,
    changed,
    train,
)
from wcn_ckpt import replay_options


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("accumulation", ACCUMULATIONS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("subject", SUBJECTS)
def test_training_is_the_same_and_nothing_is_refused(
    subject: str, optimizer: str, accumulation: str, precision: str
) -> None:
    ordinary, checkpointed = arms(subject)
    replay_options(checkpointed, strict_state=True)
    for model in (ordinary, checkpointed):
        train(model, optimizer, accumulation, precision)

    assert changed(ordinary, checkpointed) == []


@pytest.mark.parametrize("accumulation", ["sequential", "joint"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("subject", SUBJECTS)
def test_an_optimizer_step_in_backward_is_no_moved_ground(
    subject: str, optimizer: str, accumulation: str
) -> None:
    ordinary, checkpointed = arms(subject)
    for model in (ordinary, checkpointed):
        train(model, optimizer, accumulation, in_backward=True)

    assert changed(ordinary, checkpointed) == []
