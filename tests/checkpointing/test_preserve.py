"""The checkpoint calls that a model makes itself keep its state, however it makes them."""

from __future__ import annotations

import copy
import functools
import gc
import pickle
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.checkpointing.foreign import STYLES, BoundMethod, Model, Timm, Torchvision, train
from tests.checkpointing.steps import STYLES as BACKWARD_STYLES
from tests.checkpointing.steps import Block, differences, observe
from wcn_ckpt import (
    ReplayGuardError,
    UnpreservedStateError,
    is_replaying,
    preserve_replay_state,
    undo_preserve_replay_state,
)


def on(model: Model) -> Model:
    model.grad_checkpointing = True
    return model


def runs(model: Model) -> int:
    return sum(len(layer.calls) for layer in model.layers)


def updates(model: nn.Module) -> list[int]:
    return [int(m.num_batches_tracked) for m in model.modules() if isinstance(m, nn.BatchNorm1d)]


def step(model: nn.Module) -> None:
    model(torch.randn(6, 4, requires_grad=True)).sum().backward()


@pytest.mark.parametrize("style", STYLES)
def test_training_is_bitwise_that_without_checkpointing(style: type[Model]) -> None:
    expected = train(style())
    assert differences(expected, train(on(style())))  # on its own, state is written twice

    model = on(style())
    preserved = preserve_replay_state(model)
    assert not differences(expected, train(model))
    assert runs(model) > 6
    assert preserved.calls in (3, 6)


@pytest.mark.parametrize("backward", BACKWARD_STYLES)
@pytest.mark.parametrize("style", [Timm, Torchvision])
def test_every_style_of_backward_gives_what_it_gives_without(
    style: type[Model], backward: str
) -> None:
    x, model = torch.randn(6, 4), on(style())
    preserve_replay_state(model)

    assert not differences(observe(style(), backward, x), observe(model, backward, x))


@pytest.mark.parametrize("style", [Timm, Torchvision])
def test_norms_in_eval_mode_are_replayed_in_eval_mode(style: type[Model]) -> None:
    expected, model = style(), on(style())
    preserve_replay_state(model)
    for each in (expected, model):
        for layer in each.layers:
            layer.ema.eval()
        each.layers[0].norm.eval()
        each.layers[1].eval()
        torch.manual_seed(3)
        each(torch.randn(6, 4, requires_grad=True)).sum().backward()

    assert [layer.calls for layer in model.layers] == [[True, True], [False, False]]
    for a, b in zip(expected.parameters(), model.parameters(), strict=True):
        assert a.grad is not None and b.grad is not None and torch.equal(a.grad, b.grad)
    for a, b in zip(expected.buffers(), model.buffers(), strict=True):
        assert torch.equal(a, b)


def test_nothing_in_the_model_is_replaced() -> None:
    plain, model = Timm(), Timm()
    preserve_replay_state(model)
    step(on(model))

    assert repr(model) == repr(plain)
    assert list(model.state_dict()) == list(plain.state_dict())
    assert vars(model).keys() == vars(plain).keys()
    assert vars(model.layers[0]).keys() == vars(plain.layers[0]).keys()


def test_other_models_keep_their_own_checkpointing() -> None:
    preserved, other = on(BoundMethod()), on(BoundMethod())
    handle = preserve_replay_state(preserved)
    step(other)
    assert (updates(other), handle.calls) == ([2, 2], 0)
    with torch.no_grad():
        preserved(torch.randn(6, 4))
    assert handle.calls == 0

    reentrant = checkpoint(
        other.layers[0], torch.randn(6, 4, requires_grad=True), use_reentrant=True
    )
    assert isinstance(reentrant, Tensor)


@pytest.mark.parametrize(
    "copied",
    [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))],
    ids=["deepcopy", "pickle"],
)
def test_a_copy_is_preserved_on_its_own(copied: Any) -> None:
    model = on(Timm())
    preserved = preserve_replay_state(model, learn=False, state="mean")
    other = copied(model)
    preserved.undo()

    step(other)
    assert updates(other) == [1, 1]
    step(model)
    assert updates(model) == [2, 2]

    assert undo_preserve_replay_state(other) == 1
    assert undo_preserve_replay_state(other) == 0
    step(other)
    assert updates(other) == [3, 3]


def test_undo_and_the_context_manager() -> None:
    model = on(Timm())
    with preserve_replay_state(model) as preserved:
        loss = model(torch.randn(6, 4)).sum()
        assert repr(preserved) == "<replay state of Timm: 2 checkpoint calls kept>"
    loss.backward()  # what was recorded inside is replayed after
    assert updates(model) == [1, 1]
    assert not model._forward_pre_hooks

    step(model)
    assert updates(model) == [3, 3]
    preserved.undo()
    preserve_replay_state(model)
    step(model)
    assert updates(model) == [4, 4]


def test_a_layer_called_without_its_model_is_kept_too() -> None:
    model = BoundMethod()
    preserve_replay_state(model)
    layer = model.layers[0]
    checkpoint(layer, torch.randn(6, 4), use_reentrant=False).sum().backward()

    assert updates(model) == [1, 0]


def test_a_layer_that_was_put_in_afterwards_is_found() -> None:
    model = on(BoundMethod())
    preserve_replay_state(model)
    new = copy.deepcopy(model.layers[0])
    model.layers[0] = new
    step(model)

    assert updates(model) == [1, 1]


def test_boundaries_of_ours_inside_are_left_alone() -> None:
    model = nn.Sequential(Block(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))))
    preserved = preserve_replay_state(model)
    model[0].use_checkpoint = True
    step(model)

    assert (updates(model), model[0].calls, preserved.calls) == ([1], 2, 0)


def test_guard_flag_and_context_function_take_part() -> None:
    model, flags, entered = on(BoundMethod()), [], []
    preserve_replay_state(model)
    model.layers[0].linear.register_forward_hook(lambda *_: flags.append(is_replaying()))
    step(model)
    assert flags == [False, True]

    loss = model(torch.randn(6, 4)).sum()
    with torch.no_grad():
        model.layers[1].linear.weight.add_(1)
    with pytest.raises(ReplayGuardError, match=r"Layer cannot .*'layers\.1\.linear\.weight'"):
        loss.backward()

    class Noting:
        def __enter__(self) -> None:
            entered.append(is_replaying())

        def __exit__(self, *_: Any) -> None: ...

    out = checkpoint(
        model.layers[0],
        torch.randn(6, 4),
        use_reentrant=False,
        context_fn=lambda: (Noting(), Noting()),
        preserve_rng_state=True,
        early_stop=False,
    )
    out.sum().backward()
    assert len(entered) == 2


def test_a_changed_keyword_tensor_is_refused() -> None:
    model = BoundMethod()
    preserve_replay_state(model)
    scale = torch.ones(())
    function = functools.partial(model.layers[0].__call__, scale=scale)
    loss = checkpoint(function, torch.randn(6, 4), use_reentrant=False).sum()
    scale.mul_(2)

    with pytest.raises(ReplayGuardError, match="keyword argument 'scale'"):
        loss.backward()


def test_strict_state_raises_where_nothing_is_kept() -> None:
    model = on(BoundMethod())
    preserve_replay_state(model, learn=False, strict_state=True)

    with pytest.raises(UnpreservedStateError, match=r"'layers\.\d\.ema\.mean'"):
        step(model)


class Reentrant(Model):
    use_reentrant: bool | None = True

    def checkpointed(self, x: Tensor) -> Tensor:
        return checkpoint(self.layers[0], x, use_reentrant=self.use_reentrant)  # type: ignore[no-any-return]


@pytest.mark.parametrize("value", [True, None])
def test_a_reentrant_call_is_refused_with_the_cure(value: bool | None) -> None:
    model = on(Reentrant())
    model.use_reentrant = value
    preserve_replay_state(model)

    with pytest.raises(ValueError, match=rf"Layer makes .*use_reentrant={value}.*timm"):
        step(model)


def test_a_model_whose_flag_is_reentrant_is_refused_at_once() -> None:
    model = Model()
    layer = model.layers[1]
    layer._gradient_checkpointing_func = functools.partial(checkpoint, use_reentrant=True)
    layer.gradient_checkpointing = False
    preserve_replay_state(model).undo()

    layer.gradient_checkpointing = True
    with pytest.raises(ValueError, match=r"'layers\.1' cannot keep .* reentrant .*use_reentrant"):
        preserve_replay_state(model)
    layer._gradient_checkpointing_func = checkpoint
    with pytest.raises(ValueError, match="reentrant"):
        preserve_replay_state(model)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")
def test_what_cannot_be_kept_right_is_refused_with_the_reason() -> None:
    with pytest.raises(TypeError, match="got 3"):
        preserve_replay_state(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="got 3"):
        undo_preserve_replay_state(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="guard must be True or False"):
        preserve_replay_state(Timm(), guard=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"'0' cannot keep .* runs compiled code"):
        preserve_replay_state(nn.Sequential(torch.jit.script(nn.Linear(4, 4))))
    with pytest.raises(ValueError, match=r"The OptimizedModule cannot keep .*torch\.compile"):
        preserve_replay_state(torch.compile(nn.Linear(4, 4)))  # type: ignore[arg-type]


def test_a_model_is_preserved_once() -> None:
    model = Timm()
    preserve_replay_state(model)

    with pytest.raises(ValueError, match="was called on it, or on a model around it"):
        preserve_replay_state(model.layers)
    with pytest.raises(ValueError, match="was called on it, or on a model around it"):
        preserve_replay_state(nn.Sequential(model))


@pytest.mark.parametrize("fullgraph", [True, False])
def test_training_under_compile_is_refused(fullgraph: bool) -> None:
    torch._dynamo.reset()
    model = on(BoundMethod())
    preserve_replay_state(model)
    compiled = torch.compile(model, backend="eager", fullgraph=fullgraph)

    with pytest.raises(RuntimeError, match=r"runs under torch\.compile, which traces"):
        compiled(torch.randn(6, 4))

    with torch.no_grad():
        assert torch.compile(nn.Sequential(nn.Linear(4, 4)), backend="eager")(
            torch.randn(2, 4)
        ).numel()


def test_a_dropped_model_is_freed_at_once() -> None:
    model = on(BoundMethod())
    handle = preserve_replay_state(model)
    step(model)
    dead = weakref.ref(model)
    gc.disable()
    try:
        del model
        assert dead() is None
        assert "a model that is gone" in repr(handle)
    finally:
        gc.enable()
    handle.undo()
