"""What a model drops at random is found and switched off."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from harness.verification import randomness


class StochasticDepth(nn.Module):
    """As torchvision has it: the probability is called ``p``."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.bernoulli(torch.full_like(x, 1 - self.p)) if self.training else x


class Layer(nn.Module):
    def __init__(self, attention_dropout: float) -> None:
        super().__init__()
        self.attention_dropout = attention_dropout

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(x, self.attention_dropout, self.training)


class Norm(nn.Module):
    """Its ``p`` drops nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.p = 1.0


@pytest.mark.parametrize(
    "module", [nn.Dropout(0.5), nn.Dropout(1), StochasticDepth(0.5), Layer(0.5)], ids=repr
)
def test_what_is_dropped_at_random_is_switched_off(module: nn.Module) -> None:
    model, x = nn.Sequential(module), torch.ones(64)
    randomness.dropout(model, "on")
    assert randomness.draws(model)
    assert not torch.equal(model(x), x)

    randomness.dropout(model, "off")
    assert not randomness.draws(model)
    assert torch.equal(model(x), x)


@pytest.mark.parametrize("module", [nn.Dropout(0.0), StochasticDepth(0.0), Norm()], ids=repr)
def test_nothing_is_found_where_nothing_is_dropped(module: nn.Module) -> None:
    assert not randomness.draws(nn.Sequential(module))
