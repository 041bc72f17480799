"""An enabled boundary that records gradients in eval mode checkpoints nothing, and says so once."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn

from tests.checkpointing.steps import Block
from wcn_ckpt import InactiveBoundaryWarning, configure_gradient_checkpointing


def two_blocks() -> nn.Module:
    model = nn.Sequential(*(Block(nn.Sequential(nn.Linear(4, 4), nn.Tanh())) for _ in range(2)))
    configure_gradient_checkpointing(model)
    return model


def caught(work: Any) -> list[warnings.WarningMessage]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        work()
    return found


@pytest.mark.parametrize("report", ["diffusers#9850", "trl#1066", "EveryDream2trainer#246"])
def test_eval_with_gradients_is_named_once_per_boundary(report: str) -> None:
    block = Block(nn.Linear(4, 4))
    configure_gradient_checkpointing(block)
    block.eval()
    found = caught(lambda: [block(torch.ones(2, 4)).sum().backward() for _ in range(5)])

    assert [w.category for w in found] == [InactiveBoundaryWarning]
    assert "Block" in str(found[0].message) and "eval" in str(found[0].message)
    assert block.calls == 5


def test_the_warning_is_an_ordinary_one_that_can_be_filtered() -> None:
    block = Block(nn.Linear(4, 4))
    configure_gradient_checkpointing(block)
    block.eval()
    with pytest.raises(InactiveBoundaryWarning), warnings.catch_warnings():
        warnings.simplefilter("error")
        block(torch.ones(2, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InactiveBoundaryWarning)
        block(torch.ones(2, 4))


@pytest.mark.parametrize("quiet", ["no_grad", "inference_mode", "training", "disabled"])
def test_nothing_is_said_where_nothing_is_lost(quiet: str) -> None:
    model = two_blocks()
    model.train(quiet == "training")
    if quiet == "disabled":
        configure_gradient_checkpointing(model, False)
    context = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode}
    with context.get(quiet, torch.enable_grad)():
        assert caught(lambda: model(torch.ones(2, 4))) == []


def test_evaluation_between_epochs_is_quiet_and_training_goes_on() -> None:
    model = two_blocks()

    def epochs() -> None:
        for _ in range(3):
            model.train()
            model(torch.ones(2, 4)).sum().backward()
            model.eval()
            with torch.no_grad():
                model(torch.ones(2, 4))

    assert caught(epochs) == []
    assert [block.calls for block in model] == [9, 9]


def test_a_block_in_eval_inside_a_training_model_is_named() -> None:
    model = two_blocks()
    model[1].eval()

    assert [w.category for w in caught(lambda: model(torch.ones(2, 4)))] == [
        InactiveBoundaryWarning
    ]
