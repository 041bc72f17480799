"""Norm layers that a boundary runs and that are in no tree of modules: in a list, for instance."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.checkpointing.steps import Block
from wcn_ckpt import GradientCheckpointingMixin, preserve_replay_state, replay_options
from wcn_ckpt.checkpointing.replay import found_norms
from wcn_ckpt.checkpointing.replay.memory import memory_of


class Holding(GradientCheckpointingMixin, nn.Module):
    """Holds a norm in an attribute that registers nothing, and runs it if asked to."""

    def __init__(
        self, norm: nn.Module, hold: Callable[[nn.Module], Any], runs: bool = True
    ) -> None:
        super().__init__()
        self._init_gradient_checkpointing(True)
        self.linear = nn.Linear(6, 6)
        object.__setattr__(self, "held", hold(norm))
        self.runs = runs

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self._gradient_checkpointed_call(self._forward, x)
        return out

    def _forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        return self.norm(x).tanh() if self.runs else x.tanh()

    @property
    def norm(self) -> nn.Module:
        held = self.held
        if isinstance(held, dict):
            held = held["norm"]
        elif isinstance(held, list | tuple):
            held = held[0]
        inner = held[1] if isinstance(held, nn.Sequential) else held
        assert isinstance(inner, nn.Module)
        return inner


HOLDS: dict[str, Callable[[nn.Module], Any]] = {
    "list": lambda norm: [norm],
    "tuple": lambda norm: (norm, None),
    "dict": lambda norm: {"norm": norm},
    "the module itself": lambda norm: norm,
    "inside a module in a list": lambda norm: [nn.Sequential(nn.Identity(), norm)],
}
NORMS: dict[str, Callable[[], nn.Module]] = {
    "batch norm": lambda: nn.BatchNorm1d(6),
    "batch norm without a momentum": lambda: nn.BatchNorm1d(6, momentum=None),
    "lazy batch norm": lambda: nn.LazyBatchNorm1d(),
    "instance norm": lambda: nn.InstanceNorm1d(6, track_running_stats=True),
}


def trained(block: Holding, enable: bool, steps: int = 3) -> dict[str, Tensor]:
    block.gradient_checkpointing = enable
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        block(torch.randn(5, 6, 6, generator=generator)).square().sum().backward()
    state = {name: value.clone() for name, value in block.norm.state_dict().items()}
    state |= {
        f"grad of {name}": p.grad for name, p in block.norm.named_parameters() if p.grad is not None
    }
    return state


def assert_equal(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


@pytest.mark.parametrize("hold", HOLDS.values(), ids=HOLDS)
@pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS)
def test_its_statistics_are_kept_from_the_first_forward(
    norm: Callable[[], nn.Module], hold: Callable[[nn.Module], Any]
) -> None:
    plain, ours = Holding(norm(), hold), Holding(norm(), hold)
    ours.load_state_dict(plain.state_dict())

    assert_equal(trained(plain, False, steps=1), trained(ours, True, steps=1))
    assert_equal(trained(plain, False), trained(ours, True))


def test_a_norm_of_a_module_below_is_kept_also_under_another_boundary() -> None:
    torch.manual_seed(0)
    plain, ours = (Holding(nn.BatchNorm1d(6), HOLDS["list"]) for _ in range(2))
    ours.load_state_dict(plain.state_dict())
    outer = Block(nn.Sequential(nn.Identity(), ours))
    outer.gradient_checkpointing = True

    x = torch.randn(5, 6, 6)
    plain.gradient_checkpointing = False
    plain(x).sum().backward()
    outer(x).sum().backward()

    assert_equal(plain.norm.state_dict(), ours.norm.state_dict())


def test_checkpointing_that_a_model_already_has_keeps_it_too() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = Holding(nn.BatchNorm1d(6), HOLDS["list"])
            self.block.gradient_checkpointing = False

        def forward(self, x: Tensor) -> Any:
            return torch.utils.checkpoint.checkpoint(self.block, x, use_reentrant=False)

    model = Own()
    preserve_replay_state(model)
    model(torch.randn(5, 6, 6)).sum().backward()

    assert model.block.norm.num_batches_tracked == 1


def test_a_module_that_is_held_and_not_run_is_left_alone() -> None:
    parent = nn.Sequential(nn.BatchNorm1d(6))
    block = Holding(parent, HOLDS["list"], runs=False)
    parent.append(block)

    parent(torch.randn(5, 6, 6)).sum().backward()

    memory = memory_of(block)
    assert memory.unregistered == []
    assert memory.plan is not None and memory.plan.norms == []
    assert parent[0].num_batches_tracked == 1


def test_it_is_looked_for_in_forwards_that_learn_and_in_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked: list[int] = []
    look = found_norms.watch_unregistered

    def counted(boundary: nn.Module, held: Any, found: Any) -> Any:
        looked.append(memory_of(boundary).forwards)
        return look(boundary, held, found)

    monkeypatch.setattr(found_norms, "watch_unregistered", counted)
    trained(Holding(nn.BatchNorm1d(6), HOLDS["list"]), True, steps=9)
    assert looked == [1, 2, 4, 8]

    looked.clear()
    unwatched = Holding(nn.BatchNorm1d(6), HOLDS["list"])
    replay_options(unwatched, learn=False)
    trained(unwatched, True, steps=2)
    assert looked == []


def test_in_eval_mode_its_statistics_are_read_and_not_written() -> None:
    block = Holding(nn.BatchNorm1d(6), HOLDS["list"])
    block.norm.eval()

    before = copy.deepcopy(block.norm.state_dict())
    assert_equal(before, {n: v for n, v in trained(block, True).items() if n in before})


class Given(GradientCheckpointingMixin, nn.Module):
    """Runs the norms that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self._init_gradient_checkpointing()
        self.linear = nn.Linear(6, 6)

    def forward(self, x: Tensor, *norms: Any, last: Any = None) -> Tensor:
        out: Tensor = self._gradient_checkpointed_call(self._forward, x, *norms, last=last)
        return out

    def _forward(self, x: Tensor, *norms: Any, last: Any = None) -> Tensor:
        x = self.linear(x)
        for norm in (*norms, *([last] if last is not None else [])):
            x = norm(x).tanh()
        return x


@pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS)
def test_a_norm_that_is_an_argument_is_kept_whenever_another_one_is_given(
    norm: Callable[[], nn.Module],
) -> None:
    state = []
    for enable in (False, True):
        torch.manual_seed(0)
        block, norms = Given(), nn.ModuleList(norm() for _ in range(4))
        block.gradient_checkpointing = enable
        for step in range(7):
            x = torch.randn(5, 6, 6)
            block(x, norms[step % 4], last=norms[(step + 1) % 4]).sum().backward()
        state.append({**norms.state_dict(), "grad": block.linear.weight.grad})

    assert_equal(*state)
