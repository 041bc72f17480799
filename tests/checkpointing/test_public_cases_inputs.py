"""Moved ground and structured inputs: faults that users of other checkpoints reported."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.checkpointing.public import Calling, Weighted, block_of, both, equal, grads
from wcn_ckpt import ReplayGuardError


class Scaling(nn.Module):
    """Reads a buffer whose product autograd saves."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(2))
        self.register_buffer("b", torch.tensor([1.0, 2.0]))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.b * self.w


@pytest.mark.parametrize("report", ["pytorch#110363", "pytorch#70260"])
def test_a_buffer_changed_before_backward_is_refused(report: str) -> None:
    block = block_of(Scaling())
    out = block(torch.ones(2, requires_grad=True))
    block.body.b.mul_(10)

    with pytest.raises(ReplayGuardError, match=r"body\.b"):
        out.sum().backward()


def test_frozen_statistics_refreshed_before_backward_are_refused_pytorch_65907() -> None:
    block = block_of(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Tanh()))
    block.body.eval()
    out = block(torch.ones(3, 2))
    block.body.get_submodule("1").running_var.mul_(9)

    with pytest.raises(ReplayGuardError, match="running_var"):
        out.sum().backward()


def test_a_keyword_changed_before_backward_is_refused_pytorch_197887() -> None:
    block = Calling(Weighted(1.0, 1.0), lambda body, t: (t * body.w).exp(), True)
    x = torch.tensor([1.0, 2.0])
    out = block(t=x)
    x.mul_(10)

    with pytest.raises(ReplayGuardError, match="'t'"):
        out.sum().backward()


def test_weights_loaded_before_backward_are_refused_megatron_6336() -> None:
    block = block_of(nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1)))
    out = block(torch.ones(1, 2))
    block.load_state_dict({key: value * 5 for key, value in block.state_dict().items()})

    with pytest.raises(ReplayGuardError, match="weight|bias"):
        out.sum().backward()


class Reusing(nn.Module):
    """Overwrites a scratch buffer that autograd still needs."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(2))
        self.register_buffer("scratch", torch.empty(2))

    def forward(self, x: Tensor) -> Tensor:
        self.scratch.fill_(2.0)
        first = self.w * self.scratch
        self.scratch.fill_(50.0)
        return x + first + self.w * self.scratch


def test_a_value_overwritten_in_the_block_is_refused_or_right_pytorch_178315() -> None:
    block = block_of(Reusing())
    out = block(torch.ones(2)).sum()
    try:
        out.backward()
    except RuntimeError:
        return
    assert block.body.w.grad is not None
    assert block.body.w.grad.tolist() == [52.0, 52.0]


def test_a_dict_that_blocks_write_back_to_pointcept_161() -> None:
    def write_back(body: nn.Module, p: dict[str, Tensor]) -> dict[str, Tensor]:
        p["feat"] = body(p["feat"]).tanh()
        return p

    def run(enable: bool) -> list[Any]:
        blocks = nn.ModuleList(Calling(nn.Linear(3, 3), write_back, enable) for _ in range(2))
        p = {"feat": torch.ones(2, 3)}
        for block in blocks:
            p = block(p)
        p["feat"].square().sum().backward()
        return grads(blocks)

    assert equal(*both(run))


@dataclasses.dataclass
class Sparse:
    feats: Tensor
    cache: dict[str, Tensor]


def test_an_object_whose_attribute_is_reassigned_deepspeed_6969() -> None:
    def convolve(body: nn.Module, t: Sparse) -> Tensor:
        order = t.cache.setdefault("rule", torch.arange(len(t.feats)).flip(0))
        t.feats = body(t.feats[order]).sigmoid()
        return t.feats

    def run(enable: bool) -> list[Any]:
        block = Calling(nn.Linear(3, 3), convolve, enable)
        given = Sparse(torch.randn(4, 3), {})
        out = block(given)
        left = given.feats
        out.square().sum().backward()
        assert given.feats is left and list(given.cache) == ["rule"]
        return grads(block)

    assert equal(*both(run))


def test_a_nested_tensor_that_the_block_changes_colossalai_1463() -> None:
    def add(body: Any, d: dict[str, Tensor]) -> Tensor:
        d["x"].add_(1.0)
        return (d["x"] * body.w).exp()

    def run(enable: bool) -> Any:
        block = Calling(Weighted(1.0, 2.0), add, enable)
        try:
            block({"x": torch.zeros(2)}).sum().backward()
        except ReplayGuardError as error:
            assert enable and "by the block itself" in str(error)
            return None
        return grads(block)

    expected, got = both(run)
    assert got is None or equal(expected, got)


@pytest.mark.parametrize(
    "report", ["MemoryVLA#18", "transformers#30320", "transformers#28056", "pytorch#155171"]
)
def test_a_cache_that_grows_in_forward(report: str) -> None:
    def attend(body: nn.Module, x: Tensor, cache: list[Tensor]) -> Tensor:
        cache.append(body(x))
        keys = torch.cat(cache)
        return (x @ keys.t()).softmax(-1) @ keys

    def run(enable: bool) -> list[Any]:
        block = Calling(nn.Linear(3, 3), attend, enable)
        cache: list[Tensor] = []
        block(torch.randn(4, 3), cache).square().sum().backward()
        assert len(cache) == 1
        return grads(block)

    assert equal(*both(run))


Named = collections.namedtuple("Named", "a b")


@pytest.mark.parametrize("report", ["verl#7472", "pytorch#124725", "pytorch#85088"])
def test_outputs_keep_their_type(report: str) -> None:
    named = Calling(nn.Tanh(), lambda body, t: Named(body(t), t), True)
    sparse = Calling(nn.Tanh(), lambda body, t: Sparse(body(t), {}), True)
    x = torch.ones(2, requires_grad=True)

    assert type(named(x)) is Named
    assert sparse(x).feats.requires_grad
