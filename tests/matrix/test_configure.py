from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.profiler import profile

from matrix.blocks import DropoutBlock
from matrix.configure import bn_momentum, enable, running_stats


def test_momentum_reaches_every_batch_norm() -> None:
    module = nn.Sequential(nn.BatchNorm1d(2), nn.Sequential(nn.BatchNorm1d(3)))

    bn_momentum(module, None)

    assert [m.momentum for m in module.modules() if isinstance(m, nn.BatchNorm1d)] == [None, None]


def test_switching_running_statistics_off_equals_building_without_them() -> None:
    module, built = nn.BatchNorm1d(2), nn.BatchNorm1d(2, track_running_stats=False)

    running_stats(module, False)

    assert list(module.state_dict()) == list(built.state_dict())
    assert list(module.buffers()) == list(built.buffers()) == []
    x = torch.randn(5, 2, generator=torch.Generator().manual_seed(0))
    assert torch.equal(module.eval()(x), built.eval()(x))


def test_keeping_running_statistics_changes_nothing() -> None:
    module = nn.BatchNorm1d(2)

    running_stats(module, True)

    assert module.track_running_stats
    assert len(list(module.buffers())) == 3


@pytest.mark.parametrize("how", ["model_call", "injected", "user_context", "rng_not_preserved"])
def test_every_way_to_enable_reaches_the_boundary(how: str) -> None:
    block = DropoutBlock(4)

    enable(block, how)

    assert block.gradient_checkpointing


def test_the_constructor_needs_no_call() -> None:
    block = DropoutBlock(4, use_checkpoint=True)

    enable(block, "constructor")

    assert block.gradient_checkpointing


@pytest.mark.parametrize("how", ["model_call", "injected", "user_context"])
def test_a_module_without_boundaries_is_left_alone(how: str) -> None:
    enable(nn.Linear(1, 1), how)


def test_the_users_contexts_surround_forward_and_replay() -> None:
    block = DropoutBlock(4)
    enable(block, "user_context")

    with profile() as seen:
        block(torch.ones(2, 4, requires_grad=True)).sum().backward()

    assert {"user forward", "user replay"} <= {event.key for event in seen.key_averages()}


def test_random_numbers_are_drawn_anew_where_they_are_not_preserved() -> None:
    def input_gradient(how: str) -> torch.Tensor:
        torch.manual_seed(0)
        block = DropoutBlock(64)
        enable(block, how)
        x = torch.ones(8, 64, requires_grad=True)
        block(x).sum().backward()
        assert x.grad is not None
        return x.grad

    assert torch.equal(input_gradient("model_call"), input_gradient("injected"))
    assert not torch.equal(input_gradient("model_call"), input_gradient("rng_not_preserved"))
