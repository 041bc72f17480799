"""Norm layers below a boundary keep their running statistics, with nothing declared."""

from __future__ import annotations

import copy
import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.checkpointing.steps import (
    STYLES,
    Block,
    assert_checkpointing_changes_nothing,
    differences,
    observe,
    ordinary_and_checkpointed,
)
from wcn_ckpt import replay_options
from wcn_ckpt.nn.modules import configure_gradient_checkpointing


class ReadingBatchNorm(nn.BatchNorm1d):
    """Normalises with statistics that it has just updated: read and written."""

    def forward(self, input: Tensor) -> Tensor:
        normalised = super().forward(input)
        assert self.running_mean is not None
        return normalised - self.running_mean


class Rows(nn.Module):
    """Runs a norm on (1, C, N) views of an (N, C) input."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(x.t().unsqueeze(0))
        return out.squeeze(0).t()


def batch_norm(**options: Any) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6, **options), nn.Tanh(), nn.Linear(6, 6))


def nested() -> nn.Module:
    inner = Block(batch_norm())
    return nn.Sequential(nn.Linear(6, 6), inner, nn.BatchNorm1d(6), Block(batch_norm()))


def tied() -> nn.Module:
    first, second = nn.BatchNorm1d(6), nn.BatchNorm1d(6)
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        second._buffers[name] = first._buffers[name]
    return nn.Sequential(first, nn.Linear(6, 6), second)


def called_twice() -> nn.Module:
    norm = nn.BatchNorm1d(6)
    return nn.Sequential(norm, nn.Linear(6, 6), norm)


def partly_frozen() -> nn.Module:
    body = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.BatchNorm1d(6))
    body[1].eval()
    return body


BODIES = {
    "momentum 0.1": batch_norm(),
    "momentum 1": batch_norm(momentum=1.0),
    "cumulative": batch_norm(momentum=None),
    "no statistics": batch_norm(track_running_stats=False),
    "instance norm": nn.Sequential(
        nn.Linear(6, 6), Rows(nn.InstanceNorm1d(6, track_running_stats=True))
    ),
    "reading subclass": nn.Sequential(nn.Linear(6, 6), ReadingBatchNorm(6), nn.Linear(6, 6)),
    "nested boundaries": nested(),
    "tied buffers": tied(),
    "norm called twice": called_twice(),
    "norm in eval": partly_frozen(),
    "dropout": nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5), nn.BatchNorm1d(6)),
    "double": batch_norm().double(),
}


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("name", BODIES)
def test_checkpointing_changes_nothing(name: str, style: str) -> None:
    torch.manual_seed(0)
    dtype = torch.float64 if name == "double" else torch.float32

    assert_checkpointing_changes_nothing(Block(BODIES[name]), style, torch.randn(9, 6, dtype=dtype))


@pytest.mark.parametrize("style", ["backward", "joint", "retained"])
def test_lazy_norms_keep_their_state_from_the_first_step(style: str) -> None:
    seen = []
    for enable in (False, True):
        torch.manual_seed(0)
        block = Block(nn.Sequential(nn.Linear(6, 6), nn.LazyBatchNorm1d(), nn.Tanh()))
        configure_gradient_checkpointing(block, enable)
        x = torch.randn(9, 6)
        block(x).sum().backward()
        seen.append(observe(block, style, x))

    assert differences(*seen) == []


def test_a_shared_block_called_twice_counts_two_logical_calls() -> None:
    block = Block(batch_norm())
    configure_gradient_checkpointing(block)

    block(block(torch.randn(9, 6))).sum().backward()

    assert block.body.get_submodule("1").num_batches_tracked == 2


def test_a_plain_graph_through_the_same_norm_stays_usable() -> None:
    """Restoring with `copy_` would bump versions: "modified by an inplace operation"."""
    torch.manual_seed(0)
    ordinary, checkpointed = ordinary_and_checkpointed(Block(batch_norm()))
    x = torch.randn(9, 6)

    grads = []
    for model in (ordinary, checkpointed):
        enabled = model.use_checkpoint
        model.use_checkpoint = False
        plain = model(x).square().sum()
        model.use_checkpoint = enabled
        (model(x + 1).square().sum()).backward()
        plain.backward()
        grads.append([p.grad for p in model.parameters()])

    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))
    assert all(
        torch.equal(a, b) for a, b in zip(ordinary.buffers(), checkpointed.buffers(), strict=True)
    )


def test_originals_keep_identity_value_and_version_through_a_replay() -> None:
    block = Block(batch_norm())
    configure_gradient_checkpointing(block)
    loss = block(torch.randn(9, 6)).sum()
    before = [(id(b), b._version, b.clone()) for b in block.buffers()]

    loss.backward()

    for (identity, version, value), buffer in zip(before, block.buffers(), strict=True):
        assert (id(buffer), buffer._version) == (identity, version)
        assert torch.equal(buffer, value)


class FailsInReplay(nn.Module):
    """Raises in its second call, after the norm before it has run."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls == 2:
            raise RuntimeError("recompute failed")
        return x.sin()


def test_an_error_in_the_replay_propagates_and_leaves_the_state_alone() -> None:
    block = Block(nn.Sequential(nn.BatchNorm1d(6), FailsInReplay(), nn.BatchNorm1d(6)))
    configure_gradient_checkpointing(block)
    loss = block(torch.randn(9, 6, requires_grad=True)).sum()
    before = [(id(b), b.clone()) for b in block.buffers()]

    with pytest.raises(RuntimeError, match="recompute failed"):
        loss.backward(retain_graph=True)
    loss.backward()

    assert [id(b) for b in block.buffers()] == [identity for identity, _ in before]
    assert all(torch.equal(b, old) for b, (_, old) in zip(block.buffers(), before, strict=True))


@pytest.mark.parametrize("early_stop", [True, False])
def test_state_is_kept_with_and_without_early_stop(early_stop: bool) -> None:
    block = Block(nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6)))
    with torch.utils.checkpoint.set_checkpoint_early_stop(early_stop):
        configure_gradient_checkpointing(block)
        block(torch.randn(9, 6)).sum().backward()

    assert block.body.get_submodule("1").num_batches_tracked == 1


def test_a_norm_added_after_the_first_step_is_seen() -> None:
    body = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6))
    block = Block(body)
    configure_gradient_checkpointing(block)
    block(torch.randn(9, 6)).sum().backward()
    body.append(nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6)))
    body[0] = nn.BatchNorm1d(6)

    block(torch.randn(9, 6)).sum().backward()

    counts = [int(m.num_batches_tracked) for m in block.modules() if isinstance(m, nn.BatchNorm1d)]
    assert counts == [1, 2, 1]


def test_norms_moved_to_another_dtype_are_followed() -> None:
    block = Block(batch_norm())
    configure_gradient_checkpointing(block)
    block(torch.randn(9, 6)).sum().backward()
    block.double()

    block(torch.randn(9, 6, dtype=torch.float64)).sum().backward()

    assert block.body.get_submodule("1").num_batches_tracked == 2
    assert block.body.get_submodule("1").running_mean.dtype == torch.float64


def test_statistics_are_scratch_only_while_replaying() -> None:
    seen: list[tuple[int, int]] = []

    class Spy(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(tuple(id(b) for b in norm.buffers())[:2])
            return x

    norm = nn.BatchNorm1d(6)
    block = Block(nn.Sequential(norm, Spy(), nn.Linear(6, 6), nn.Tanh()))
    configure_gradient_checkpointing(block)
    own = tuple(id(b) for b in norm.buffers())[:2]

    block(torch.randn(9, 6)).sum().backward()

    assert seen[0] == own
    assert not set(seen[1]) & set(own)
    assert len(set(seen[1])) == 2


def test_deepcopied_blocks_are_independent() -> None:
    block = Block(batch_norm())
    configure_gradient_checkpointing(block)
    block(torch.randn(9, 6)).sum().backward()
    twin = copy.deepcopy(block)

    twin(torch.randn(9, 6)).sum().backward()

    assert twin.use_checkpoint
    assert block.body.get_submodule("1").num_batches_tracked == 1
    assert twin.body.get_submodule("1").num_batches_tracked == 2


def test_nothing_is_kept_after_the_graph_is_dropped() -> None:
    """The boundary holds neither inputs nor scratch, without help from the garbage collector."""
    kept: list[weakref.ref[Tensor]] = []

    class Spy(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            kept.extend(weakref.ref(b) for b in (norm.running_mean, norm.running_var))
            return x

    norm = ReadingBatchNorm(6)
    scratch = nn.BatchNorm1d(6)
    block = Block(nn.Sequential(nn.Linear(6, 6), norm, Spy(), scratch, nn.Linear(6, 6)))
    configure_gradient_checkpointing(block)
    block(torch.randn(9, 6)).sum().backward()
    gc.disable()
    try:
        kept.clear()
        x = torch.randn(9, 6)
        loss = block(x).sum()
        kept.append(weakref.ref(x))
        loss.backward(retain_graph=True)
        del x, loss
        own = {id(norm.running_mean), id(norm.running_var)}
        alive = [ref() for ref in kept if ref() is not None and id(ref()) not in own]
    finally:
        gc.enable()

    assert alive == []


class ReadsStatistics(nn.Module):
    """Reads the statistics of a norm layer that it holds, after their update."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x: Tensor) -> Tensor:
        out = self.norm(self.linear(x))
        return out.sin() * (self.norm.running_var + 1).clone()


@pytest.mark.parametrize("style", STYLES)
def test_statistics_that_other_code_reads_are_kept_when_declared(style: str) -> None:
    torch.manual_seed(0)
    block = Block(ReadsStatistics())
    replay_options(block, state=["running_mean", "running_var", "num_batches_tracked"])

    assert_checkpointing_changes_nothing(block, style, torch.randn(9, 6))


@pytest.mark.parametrize("style", ["backward", "retained", "joint", "sequential"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_quantisation_aware_layer_reads_the_statistics_of_its_norm(style: str) -> None:
    qat = pytest.importorskip("torch.ao.nn.intrinsic.qat", reason="torch without torch.ao")
    quantization = pytest.importorskip("torch.ao.quantization", reason="torch without torch.ao")
    torch.manual_seed(0)
    config = quantization.get_default_qat_qconfig("fbgemm")
    layer = qat.ConvBn2d(2, 2, 3, padding=1, qconfig=config)

    assert_checkpointing_changes_nothing(Block(layer), style, torch.randn(3, 2, 5, 5))


@pytest.mark.parametrize(
    "change",
    [
        lambda block: block.eval(),
        lambda block: block.body[1].eval(),
        lambda block: block.body[2].train(),
    ],
    ids=["block in eval", "norm in eval", "norm in training"],
)
def test_modes_switched_before_backward_leave_the_statistics_of_the_forward(change: Any) -> None:
    block = Block(partly_frozen().train())
    block.body[2].eval()
    configure_gradient_checkpointing(block)
    for _ in range(3):  # the third forward is not watched
        loss = block(torch.randn(9, 6, requires_grad=True)).sum()
        before = copy.deepcopy(block.state_dict())
        change(block)
        loss.backward()
        assert differences(before, block.state_dict()) == []
        block.train()
        block.body[2].eval()
