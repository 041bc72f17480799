"""State, hooks, names, copies: faults that users of other checkpoints reported."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.checkpointing.public import block_of, both, equal, grads
from tests.checkpointing.steps import Block
from wcn_ckpt import configure_gradient_checkpointing, is_replaying


@pytest.mark.parametrize("momentum", [0.1, 1.0, None])
@pytest.mark.parametrize(
    "report", ["pytorch#96136", "YOLO-Master#262", "Samudra#572", "discuss.pytorch.org/t/17738"]
)
def test_norm_statistics_are_updated_once(report: str, momentum: float | None) -> None:
    norm = nn.BatchNorm1d(3, momentum=momentum)
    block_of(norm)(torch.randn(8, 3, requires_grad=True)).sum().backward()

    assert norm.num_batches_tracked == 1


def test_evaluation_after_training_is_equal_pytorch_62471() -> None:
    def run(enable: bool) -> Tensor:
        block = block_of(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), enable)
        x = torch.randn(16, 4)
        for _ in range(20):
            block(x).square().sum().backward()
        configure_gradient_checkpointing(block, False)
        out: Tensor = block.eval()(x)
        return out

    assert torch.equal(*both(run))


def test_a_cumulative_mean_weighs_plain_and_checkpointed_steps_alike_samudra_572() -> None:
    def run(enable: bool) -> Tensor | None:
        norm = nn.BatchNorm1d(1, momentum=None)
        block_of(norm, enable)(torch.zeros(4, 1, requires_grad=True)).sum().backward()
        norm(torch.full((4, 1), 9.0))
        return norm.running_mean

    assert both(run) == (torch.tensor([4.5]), torch.tensor([4.5]))


def test_checkpointing_toggled_in_training_insightface_2053() -> None:
    def run(enable: bool) -> list[Tensor]:
        block = Block(nn.BatchNorm1d(2))
        for step in range(4):
            configure_gradient_checkpointing(block, enable and step % 2 == 0)
            block(torch.randn(8, 2) + step).sum().backward()
        return list(block.buffers())

    assert equal(*both(run))


def test_a_shared_norm_counts_logical_calls_efficient_densenet_73() -> None:
    norm = nn.BatchNorm1d(2)
    block = block_of(norm)
    block(block(torch.randn(8, 2, requires_grad=True))).square().sum().backward()

    assert norm.num_batches_tracked == 2


def test_a_gradient_penalty_counts_once_pytorch_42212() -> None:
    def run(enable: bool) -> list[Any]:
        block = block_of(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Tanh()), enable)
        x = torch.randn(8, 3, requires_grad=True)
        y = block(x)
        (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        (g.norm() + y.sum()).backward()
        return [*grads(block), *block.buffers()]

    assert equal(*both(run))


def test_forward_only_collects_statistics_fairscale_1035() -> None:
    norm = nn.BatchNorm1d(2)
    block_of(norm)(torch.randn(8, 2, requires_grad=True))

    assert norm.num_batches_tracked == 1


def test_no_grad_runs_once_fairscale_709() -> None:
    block = block_of(nn.BatchNorm1d(2))
    with torch.no_grad():
        block(torch.randn(4, 2))

    assert block.calls == 1
    assert block.body.num_batches_tracked == 1


def test_trackers_and_hooks_skip_replays_megatron_1514_torchtitan_1114() -> None:
    entries: list[str] = []

    def note(what: str) -> None:
        if not is_replaying():
            entries.append(what)

    layer = nn.Linear(3, 3)
    layer.register_forward_pre_hook(lambda *_: note("pre"))
    layer.register_forward_hook(lambda *_: note("post"))
    block_of(nn.Sequential(layer, nn.Sigmoid(), nn.Linear(3, 3)))(torch.ones(2, 3)).sum().backward()

    assert entries == ["pre", "post"]


def test_names_and_types_stay_pytorch_117399_77224_124546_torchtune_1077() -> None:
    model = nn.Sequential(block_of(nn.Linear(2, 2)), block_of(nn.BatchNorm1d(2)))
    plain = copy.deepcopy(model)
    configure_gradient_checkpointing(plain, False)
    model(torch.randn(4, 2)).sum().backward()

    assert list(model.state_dict()) == list(plain.state_dict())
    for names in ("named_parameters", "named_buffers", "named_modules"):
        assert [n for n, _ in getattr(model, names)()] == [n for n, _ in getattr(plain, names)()]
    plain.load_state_dict(model.state_dict())
    converted = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    assert isinstance(converted.get_submodule("1.body"), nn.SyncBatchNorm)
    assert isinstance(converted[1], Block)


def test_a_deepcopy_runs_its_own_weights_fairscale_816() -> None:
    block = block_of(nn.Linear(2, 2))
    block(torch.ones(1, 2)).sum().backward()
    twin = copy.deepcopy(block)
    twin.zero_grad()
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    out = twin(torch.ones(1, 2))
    out.sum().backward()

    assert not out.any()
    assert twin.body.weight.grad is not None


class OnlineRouter(nn.Module):
    """A bias that each forward moves decides between two experts."""

    bias: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.gate = nn.Linear(4, 2)
        self.register_buffer("bias", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        chosen = int((self.gate(x).mean(0) + self.bias).argmax())
        with torch.no_grad():
            self.bias[chosen] -= 100.0
        out: Tensor = self.experts[chosen](x)
        return out.tanh()


@pytest.mark.parametrize("report", ["VeOmni#979", "torchtitan#1117"])
def test_a_router_chooses_the_same_expert_again(report: str) -> None:
    def run(enable: bool) -> list[Any]:
        block = block_of(OnlineRouter(), enable)
        for _ in range(3):
            block(torch.ones(3, 4)).square().sum().backward()
        return [*grads(block), *block.buffers()]

    assert equal(*both(run))
