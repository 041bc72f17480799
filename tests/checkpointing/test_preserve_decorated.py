"""Functions that torch's checkpoint decorates keep their state, as its direct calls do."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from tests.checkpointing.foreign import train
from tests.checkpointing.steps import differences
from wcn_ckpt import preserve_replay_state
from wcn_ckpt.checkpointing.functions import plain_checkpoint
from wcn_ckpt.checkpointing.takeover import take_over

decorate: Any = checkpoint
DECORATES = inspect.signature(checkpoint).parameters["function"].default is None
decorating = pytest.mark.skipif(not DECORATES, reason="this torch's checkpoint is no decorator")


@decorating
@pytest.mark.parametrize("style", ["Method", "Stored", "Unnamed"])
def test_training_is_bitwise_that_without_checkpointing(style: str) -> None:
    from tests.checkpointing import decorated

    build = getattr(decorated, style)
    expected, model = train(build()), build()
    model.grad_checkpointing = True
    assert differences(expected, train(model))  # on its own, state is written twice

    model = build()
    model.grad_checkpointing = True
    with preserve_replay_state(model) as preserved:
        assert not differences(expected, train(model))
    assert preserved.calls in (3, 6)


@decorating
def test_a_reentrant_decorator_is_refused_when_it_is_called() -> None:
    from tests.checkpointing.decorated import Reentrant

    model = Reentrant()
    model.grad_checkpointing = True
    with preserve_replay_state(model), pytest.raises(ValueError, match="use_reentrant=True"):
        model(torch.randn(6, 4, requires_grad=True))


@decorating
def test_what_is_compiled_stays_with_torch() -> None:
    decorated = decorate(use_reentrant=False)(torch.sin)
    seen: list[object] = []
    give_back = take_over(lambda function, *args, **kwargs: seen.append(function))
    try:
        assert decorated(torch.ones(2)) is None
        compiled = torch.compile(decorated, backend="eager")
        assert torch.equal(compiled(torch.ones(2)), torch.ones(2).sin())
    finally:
        give_back()
    assert seen == [torch.sin]
    assert torch.equal(decorated(torch.ones(2)), torch.ones(2).sin())


def test_calls_are_given_back_to_whoever_got_them_before() -> None:
    def doubled(function: object, x: Tensor, **_: object) -> Tensor:
        return 2 * x

    def passed_on(function: object, *args: object, **kwargs: object) -> object:
        return plain_checkpoint(function, *args, **kwargs)

    x = torch.ones(2)
    first = take_over(doubled)
    try:
        second = take_over(passed_on)
        assert torch.equal(checkpoint(torch.sin, x, use_reentrant=False), x.sin())
        second()
        assert torch.equal(checkpoint(torch.sin, x, use_reentrant=False), 2 * x)
    finally:
        first()
    assert torch.equal(checkpoint(torch.sin, x, use_reentrant=False), x.sin())


def test_a_call_without_a_function_is_torchs() -> None:
    give_back = take_over(lambda *_, **__: pytest.fail("no function was called"))
    try:
        if DECORATES:
            assert callable(decorate(use_reentrant=False))
        else:
            with pytest.raises(TypeError, match="missing 1 required positional argument"):
                decorate(use_reentrant=False)
    finally:
        give_back()
