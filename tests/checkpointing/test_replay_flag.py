"""`is_replaying()` is true in replays, and only there: side effects can happen once."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import wcn_ckpt
import wcn_ckpt.nn.modules
from tests.checkpointing.steps import STYLES, Block
from wcn_ckpt import configure_gradient_checkpointing, is_replaying


class Recording(nn.Module):
    """Notes the flag in each of its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[bool] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(is_replaying())
        return x.sin()


class Router(nn.Module):
    """Counts tokens per expert in a buffer, and appends its auxiliary loss, once a forward."""

    tokens: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(6, 2)
        self.experts = nn.ModuleList(nn.Linear(6, 6) for _ in range(2))
        self.register_buffer("tokens", torch.zeros(2, dtype=torch.long))
        self.calls = 0
        self.auxiliary: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        scores = self.gate(x).softmax(-1)
        chosen = scores.argmax(-1)
        # Computed in replays too: they must save what the forward saved.
        auxiliary = scores.mean(0).square().sum()
        if not is_replaying():
            self.tokens += torch.bincount(chosen, minlength=2)
            self.calls += 1
            self.auxiliary.append(auxiliary)
        outs = torch.stack([expert(x) for expert in self.experts], 1)
        return outs[torch.arange(len(x)), chosen] * scores.gather(1, chosen[:, None])


def enabled(*layers: nn.Module) -> Block:
    torch.manual_seed(0)
    block = Block(nn.Sequential(nn.Linear(6, 6), *layers, nn.Linear(6, 6), nn.Tanh()))
    configure_gradient_checkpointing(block)
    return block


def test_it_is_exported_where_blocks_are_written() -> None:
    assert wcn_ckpt.is_replaying is is_replaying
    assert wcn_ckpt.nn.modules.is_replaying is is_replaying
    assert not is_replaying()


REPLAYS = {
    "backward": [False, True],
    "retained": [False, True, True, True],
    "autograd_grad": [False, True],
    "joint": [False, False, True, True],
    "sequential": [False, True, False, True],
    "bf16_autocast": [False, True],
    "forward_only": [False],
}


@pytest.mark.parametrize("style", REPLAYS)
def test_the_flag_in_the_body(style: str) -> None:
    recording = Recording()
    model = enabled(recording)
    STYLES[style](model, torch.randn(9, 6, requires_grad=True))

    assert recording.seen == REPLAYS[style]
    assert not is_replaying()


def test_the_flag_in_double_backward() -> None:
    recording = Recording()
    STYLES["double_backward"](enabled(recording), torch.randn(9, 6, requires_grad=True))

    assert recording.seen[0] is False
    assert len(recording.seen) > 1
    assert all(recording.seen[1:])


def test_the_flag_in_hooks_of_every_kind() -> None:
    seen: dict[str, list[bool]] = {"pre": [], "post": [], "backward": [], "tensor": []}
    layer = nn.Linear(6, 6)
    layer.register_forward_pre_hook(lambda *_: seen["pre"].append(is_replaying()))
    layer.register_forward_hook(lambda *_: seen["post"].append(is_replaying()))
    layer.register_full_backward_hook(lambda *_: seen["backward"].append(is_replaying()))
    layer.weight.register_hook(lambda _: seen["tensor"].append(is_replaying()))  # type: ignore[no-untyped-call]
    enabled(layer)(torch.randn(9, 6)).sum().backward()

    assert seen == {
        "pre": [False, True],
        "post": [False, True],
        "backward": [False],
        "tensor": [False],
    }


def test_nested_boundaries_are_replaying_at_every_depth() -> None:
    outer, middle, inner = Recording(), Recording(), Recording()
    model = enabled(outer, enabled(middle, enabled(inner)))
    model(torch.randn(9, 6)).sum().backward()

    for recording in (outer, middle, inner):
        assert recording.seen[0] is False
        assert len(recording.seen) > 1
        assert all(recording.seen[1:])
    assert not is_replaying()


@pytest.mark.parametrize("style", REPLAYS)
def test_a_router_counts_each_token_and_each_loss_once(style: str) -> None:
    seen = []
    for enable in (False, True):
        torch.manual_seed(0)
        router = Router()
        block = Block(nn.Sequential(nn.Linear(6, 6), router, nn.Linear(6, 6), nn.Tanh()))
        configure_gradient_checkpointing(block, enable)
        x = torch.randn(9, 6, requires_grad=True)
        for _ in range(3):
            router.auxiliary.clear()
            STYLES[style](block, x)
        losses = [loss.detach() for loss in router.auxiliary]
        seen.append([router.tokens, torch.tensor(router.calls), *losses, *router.parameters()])
        grads = [p.grad for p in router.parameters() if p.grad is not None]
        seen[-1] += grads

    assert len(seen[0]) == len(seen[1])
    assert all(torch.equal(a, b) for a, b in zip(*seen, strict=True))


@pytest.mark.parametrize("apart", [False, True])
def test_an_auxiliary_loss_that_a_block_leaves_in_a_list_gets_its_gradient(apart: bool) -> None:
    grads = []
    for enable in (False, True):
        torch.manual_seed(0)
        router = Router()
        block = Block(nn.Sequential(nn.Linear(6, 6), router, nn.Linear(6, 6)))
        configure_gradient_checkpointing(block, enable)
        x = torch.randn(9, 6, requires_grad=True)
        loss = block(x).square().sum()
        (auxiliary,) = router.auxiliary
        if apart:
            auxiliary.backward(retain_graph=True)
            loss.backward()
        else:
            (loss + auxiliary).backward()
        assert len(router.auxiliary) == 1
        grads.append([x.grad, *(p.grad for p in block.parameters())])

    for expected, got in zip(*grads, strict=True):
        assert expected is got or torch.equal(expected, got)


def test_the_flag_is_raised_on_the_thread_that_runs_backward() -> None:
    recording = Recording()
    loss = enabled(recording)(torch.randn(9, 6)).sum()
    thread = threading.Thread(target=loss.backward)
    thread.start()
    thread.join(60)

    assert recording.seen == [False, True]


def test_other_threads_are_not_replaying() -> None:
    elsewhere: list[bool] = []

    class Asking(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if is_replaying():
                thread = threading.Thread(target=lambda: elsewhere.append(is_replaying()))
                thread.start()
                thread.join(60)
            return x.sin()

    enabled(Asking())(torch.randn(9, 6)).sum().backward()

    assert elsewhere == [False]


@pytest.mark.parametrize("early_stop", [True, False])
def test_the_flag_falls_when_a_replay_fails_or_stops_early(early_stop: bool) -> None:
    class Failing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if is_replaying():
                raise ArithmeticError("planted")
            return x.sin()

    with torch.utils.checkpoint.set_checkpoint_early_stop(early_stop):
        loss = enabled(Failing())(torch.randn(9, 6)).sum()
        with pytest.raises(ArithmeticError):
            loss.backward()
        assert not is_replaying()
        enabled(Recording())(torch.randn(9, 6)).sum().backward()
    assert not is_replaying()


def test_a_boundary_below_a_plain_module_is_not_replaying_before_or_after() -> None:
    before, after = Recording(), Recording()
    model = nn.Sequential(before, enabled(), after)
    model(torch.randn(9, 6)).sum().backward()

    assert before.seen == after.seen == [False]


@pytest.mark.parametrize("learn", [True, False])
@pytest.mark.parametrize("guard", [True, False])
def test_the_flag_does_not_depend_on_the_options(learn: bool, guard: bool) -> None:
    recording = Recording()
    block = enabled(recording)
    wcn_ckpt.replay_options(block, learn=learn, guard=guard)
    block(torch.randn(9, 6)).sum().backward()

    assert recording.seen == [False, True]


def test_the_flag_with_a_custom_context_function_of_the_user() -> None:
    recording = Recording()
    block = enabled(recording)
    entered: list[Any] = []

    def contexts() -> Any:
        class Noting:
            def __enter__(self) -> None:
                entered.append(is_replaying())

            def __exit__(self, *_: object) -> None:
                pass

        return Noting(), Noting()

    block.gradient_checkpointing_enable({"context_fn": contexts})
    block(torch.randn(9, 6)).sum().backward()

    assert recording.seen == [False, True]
    assert len(entered) == 2
