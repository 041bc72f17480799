from __future__ import annotations

import torch
from torch import nn

from matrix.configure import bn_momentum, running_stats


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
