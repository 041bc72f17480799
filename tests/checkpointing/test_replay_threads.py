"""Two threads in one block get a clear error or the right numbers; different blocks never meet."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.checkpointing.stateful import Codebook, OwnNorm, with_tail
from tests.checkpointing.steps import Block
from wcn_ckpt import (
    ConcurrentReplayError,
    ReplayError,
    configure_gradient_checkpointing,
    is_replaying,
)


def in_thread(work: Callable[[], Any]) -> list[Any]:
    """Run work in another thread to its end; return its value or what it raised."""
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    return results


class Meeting(nn.Module):
    """Calls back in the middle of a replay, once."""

    def __init__(self) -> None:
        super().__init__()
        self.meet: Callable[[], Any] | None = None
        self.met: list[Any] = []

    def forward(self, x: Tensor) -> Tensor:
        if is_replaying() and self.meet is not None:
            meet, self.meet = self.meet, None
            self.met = in_thread(meet)
        return x.sin()

    def __deepcopy__(self, memo: dict[int, Any]) -> Meeting:
        return Meeting()


STATE: dict[str, Callable[[], nn.Module]] = {
    "norm": lambda: nn.BatchNorm1d(6),
    "own norm": OwnNorm,
    "codebook": Codebook,
}


def meeting_block(state: str) -> tuple[Block, Meeting]:
    torch.manual_seed(0)
    meeting = Meeting()
    block = Block(with_tail(STATE[state](), meeting))
    configure_gradient_checkpointing(block)
    block(torch.randn(9, 6)).sum().backward()
    return block, meeting


def buffers(block: nn.Module) -> dict[str, Any]:
    return {name: (id(b), b.clone()) for name, b in block.named_buffers()}


def unchanged(before: dict[str, Any], after: dict[str, Any]) -> bool:
    return before.keys() == after.keys() and all(
        before[n][0] == after[n][0] and torch.equal(before[n][1], after[n][1]) for n in before
    )


@pytest.mark.parametrize("state", STATE)
def test_a_second_replay_of_a_block_is_refused_and_the_first_goes_on(state: str) -> None:
    block, meeting = meeting_block(state)
    x = torch.randn(9, 6)
    first, second = block(x).sum(), block(x + 1).sum()
    before = buffers(block)
    meeting.meet = second.backward
    block.zero_grad()
    first.backward(retain_graph=True)

    assert len(meeting.met) == 1
    assert isinstance(meeting.met[0], ConcurrentReplayError)
    assert issubclass(ConcurrentReplayError, ReplayError)
    assert "thread" in str(meeting.met[0])
    assert unchanged(before, buffers(block))
    got = [p.grad for p in block.parameters()]
    block.zero_grad()
    first.backward()
    assert all(
        a is not None and b is not None and torch.equal(a, b)
        for a, b in zip(got, (p.grad for p in block.parameters()), strict=True)
    )


@pytest.mark.parametrize("state", STATE)
@pytest.mark.parametrize("through", ["the block", "another boundary"])
def test_a_forward_while_another_thread_replays_is_never_lost(state: str, through: str) -> None:
    """Its update would land in the stand-ins of the replay."""
    block, meeting = meeting_block(state)
    other = Block(block.body)
    configure_gradient_checkpointing(other)
    x = torch.randn(9, 6)
    loss = block(x).sum()
    before = buffers(block)

    meeting.meet = lambda: (block if through == "the block" else other)(x + 1)
    loss.backward()

    assert isinstance(meeting.met[0], ConcurrentReplayError)
    assert unchanged(before, buffers(block))


@pytest.mark.parametrize("state", STATE)
def test_after_a_refusal_the_block_works_again(state: str) -> None:
    block, meeting = meeting_block(state)
    x = torch.randn(9, 6)
    first, second = block(x).sum(), block(x + 1).sum()
    meeting.meet = second.backward
    first.backward()
    assert isinstance(meeting.met[0], ConcurrentReplayError)
    twin = copy.deepcopy(block)
    configure_gradient_checkpointing(twin, False)

    for model in (block, twin):
        model.zero_grad()
        model(x).square().sum().backward()
    for a, b in zip(block.parameters(), twin.parameters(), strict=True):
        assert a.grad is not None and b.grad is not None
        assert torch.equal(a.grad, b.grad)
    for a, b in zip(block.buffers(), twin.buffers(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("state", STATE)
def test_different_blocks_replay_in_two_threads(state: str) -> None:
    block, meeting = meeting_block(state)
    other, _ = meeting_block(state)
    x = torch.randn(9, 6)
    loss, other_loss = block(x).sum(), other(x).sum()
    meeting.meet = other_loss.backward
    loss.backward()

    assert meeting.met == [None]
    for a, b in zip(block.parameters(), other.parameters(), strict=True):
        assert a.grad is not None and b.grad is not None
        assert torch.equal(a.grad, b.grad)


def test_boundaries_without_state_replay_in_two_threads() -> None:
    torch.manual_seed(0)
    meeting = Meeting()
    block = Block(nn.Sequential(nn.Linear(6, 6), meeting, nn.Linear(6, 6)))
    configure_gradient_checkpointing(block)
    x = torch.randn(9, 6)
    first, second = block(x).sum(), block(x).sum()
    meeting.meet = second.backward
    first.backward()

    assert meeting.met == [None]


def test_two_boundaries_that_share_a_norm_are_refused_too() -> None:
    torch.manual_seed(0)
    norm, meeting = nn.BatchNorm1d(6), Meeting()
    first = Block(nn.Sequential(norm, meeting, nn.Linear(6, 6), nn.Tanh()))
    second = Block(nn.Sequential(nn.Linear(6, 6), norm, nn.Linear(6, 6), nn.Tanh()))
    model = nn.ModuleList([first, second])
    configure_gradient_checkpointing(model)
    x = torch.randn(9, 6, requires_grad=True)
    losses = [first(x).sum(), second(x).sum()]
    count = int(norm.num_batches_tracked)
    meeting.meet = losses[1].backward
    losses[0].backward()

    assert isinstance(meeting.met[0], ConcurrentReplayError)
    assert int(norm.num_batches_tracked) == count == 2


def test_backward_on_another_thread_keeps_state_and_gradient() -> None:
    results = []
    for enable in (False, True):
        torch.manual_seed(0)
        block = Block(with_tail(nn.BatchNorm1d(6), Codebook(), OwnNorm(), nn.Dropout(0.3)))
        configure_gradient_checkpointing(block, enable)
        x = torch.randn(9, 6, requires_grad=True)
        for _ in range(3):
            assert in_thread(block(x).square().sum().backward) == [None]
        results.append([x.grad, *block.buffers(), *(p.grad for p in block.parameters())])

    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


class Pausing(nn.Module):
    """Stops in the middle: in a forward until a replay is inside or over, there until released."""

    def __init__(self) -> None:
        super().__init__()
        self.start: Callable[[], Any] | None = None
        self.inside, self.released = threading.Event(), threading.Event()
        self.outcome: list[Any] = []

    def forward(self, x: Tensor) -> Tensor:
        if is_replaying():
            self.inside.set()
            assert self.released.wait(60)
        elif self.start is not None:
            start, self.start = self.start, None
            self.thread = threading.Thread(target=self._run, args=(start,))
            self.thread.start()
            assert self.inside.wait(60)
        return x.sin()

    def _run(self, start: Callable[[], Any]) -> None:
        try:
            self.outcome.append(start())
        except Exception as error:
            self.outcome.append(error)
        self.inside.set()


@pytest.mark.parametrize("state", STATE)
def test_a_replay_that_begins_in_the_middle_of_a_forward_takes_no_update_from_it(
    state: str,
) -> None:
    """One of the two is refused; or both run, and the forward's update is in the buffers."""
    results = []
    for concurrent in (False, True):
        torch.manual_seed(0)
        pausing = Pausing()
        pausing.released.set()
        block = Block(with_tail(pausing, STATE[state]()))
        configure_gradient_checkpointing(block)
        x = torch.randn(9, 6)
        loss = block(x).sum()
        if concurrent:
            pausing.inside.clear()
            pausing.released.clear()
            pausing.start = loss.backward
        try:
            block(x + 1)
        except ConcurrentReplayError:
            return
        finally:
            pausing.released.set()
            if concurrent:
                pausing.thread.join(60)
        results.append(list(block.buffers()))

    assert pausing.outcome == [None] or isinstance(pausing.outcome[0], ConcurrentReplayError)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_many_threads_on_one_block_count_every_forward_that_was_not_refused() -> None:
    """Refusals are counted; no update and no buffer is ever lost."""
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(6)
    block = Block(with_tail(norm))
    configure_gradient_checkpointing(block)
    identities = [id(b) for b in block.buffers()]
    forwards, errors = [0], []
    lock = threading.Lock()

    def work(seed: int) -> None:
        for _ in range(40):
            try:
                with lock:
                    loss = block(torch.ones(9, 6) * seed).sum()
                    forwards[0] += 1
                loss.backward()
            except ConcurrentReplayError:
                pass
            except Exception as error:
                errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)

    assert errors == []
    assert [id(b) for b in block.buffers()] == identities
    assert int(norm.num_batches_tracked) == forwards[0]
    loss = block(torch.ones(9, 6)).sum()
    loss.backward()
    assert int(norm.num_batches_tracked) == forwards[0] + 1


def test_a_generator_of_its_own_is_not_set_back_by_a_replay_in_another_thread() -> None:
    replaying, drawn = threading.Event(), threading.Event()
    seen: list[Tensor] = []

    class Waiting(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            out = nn.functional.dropout(x, 0.5).sin()
            if is_replaying():
                replaying.set()
                assert drawn.wait(10)
            return out * x

    def draw() -> None:
        generator = torch.Generator().manual_seed(3)
        seen.append(torch.rand(2, generator=generator))
        assert replaying.wait(10)
        seen.append(torch.rand(2, generator=generator))
        drawn.set()

    block = Block(Waiting())
    configure_gradient_checkpointing(block)
    out = block(torch.ones(4, requires_grad=True)).sum()
    thread = threading.Thread(target=draw)
    thread.start()
    out.backward()
    thread.join()

    generator = torch.Generator().manual_seed(3)
    assert torch.equal(torch.stack(seen), torch.rand(4, generator=generator).reshape(2, 2))
