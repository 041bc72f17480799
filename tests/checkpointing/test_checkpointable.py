"""Blocks that nobody prepared become boundaries in place, and stop being them again."""

from __future__ import annotations

import copy
import functools
import gc
import inspect
import pickle
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from tests.checkpointing.foreign import Layer, Model, train
from tests.checkpointing.steps import STYLES, Block, differences, observe
from wcn_ckpt import (
    GradientCheckpointingModelMixin,
    ReplayGuardError,
    configure_gradient_checkpointing,
    is_replaying,
    make_checkpointable,
    replay_options,
    undo_checkpointable,
)


class Seen:
    """A forward hook that counts, and can be pickled."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, *_: Any) -> None:
        self.calls += 1


def made(enable: bool = True) -> Model:
    model = Model()
    make_checkpointable(model, Layer, use_checkpoint=enable)
    return model


def updates(model: nn.Module) -> list[int]:
    return [int(m.num_batches_tracked) for m in model.modules() if isinstance(m, nn.BatchNorm1d)]


def runs(model: Model) -> list[int]:
    return [len(layer.calls) for layer in model.layers]


def step(model: nn.Module) -> None:
    model(torch.randn(6, 4, requires_grad=True)).sum().backward()


def test_training_is_bitwise_that_of_the_ordinary_model() -> None:
    model = made()

    assert not differences(train(Model()), train(model))
    assert runs(model) == [6, 6]


@pytest.mark.parametrize("style", STYLES)
def test_every_style_of_backward_gives_what_it_gives_without(style: str) -> None:
    x = torch.randn(6, 4)

    assert not differences(observe(Model(), style, x), observe(made(), style, x))


def test_a_boundary_starts_disabled_and_is_switched_like_any_other() -> None:
    model = Model()
    assert len(make_checkpointable(model, Layer)) == 2
    step(model)
    assert runs(model) == [1, 1]

    assert configure_gradient_checkpointing(model) == 2
    model.layers[1].gradient_checkpointing = False
    step(model)
    assert runs(model) == [3, 2]

    model.eval()
    with torch.no_grad():
        model(torch.randn(6, 4))
    assert runs(model) == [4, 3]


def test_a_model_around_boundaries_switches_them_with_keywords() -> None:
    class Ours(GradientCheckpointingModelMixin, Model):
        pass

    model = Ours()
    make_checkpointable(model, Layer)
    model.gradient_checkpointing_enable({"preserve_rng_state": False})

    assert model.is_gradient_checkpointing
    assert model.layers[0]._gradient_checkpointing_func.keywords["preserve_rng_state"] is False


def test_a_reentrant_function_stored_by_hand_is_refused_in_the_forward() -> None:
    model = made()
    model.layers[0]._gradient_checkpointing_func = functools.partial(
        torch.utils.checkpoint.checkpoint, use_reentrant=True
    )

    with pytest.raises(ValueError, match="use_reentrant=False"):
        step(model)


def test_class_names_state_dict_and_signature_stay() -> None:
    plain, model = Model(), made()
    layer = model.layers[0]

    assert type(layer) is Layer and isinstance(layer, Layer)
    assert repr(model) == repr(plain)
    assert list(model.state_dict()) == list(plain.state_dict())
    assert [name for name, _ in model.named_modules()] == [n for n, _ in plain.named_modules()]
    assert inspect.signature(layer.forward) == inspect.signature(plain.layers[0].forward)
    assert Layer.forward is type(layer).forward


def test_hooks_run_once_around_a_boundary_and_again_inside() -> None:
    model, outside, inside = made(), Seen(), Seen()
    model.layers[0].register_forward_hook(outside)
    model.layers[0].linear.register_forward_hook(inside)
    step(model)

    assert (outside.calls, inside.calls) == (1, 2)


@pytest.mark.parametrize(
    "copied",
    [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))],
    ids=["deepcopy", "pickle"],
)
def test_a_copy_is_a_boundary_bound_to_itself(copied: Any) -> None:
    model = made()
    step(model)
    other = copied(model)
    assert other.layers[0].forward.__self__ is other.layers[0]

    step(other)
    assert (runs(model), runs(other)) == ([2, 2], [4, 4])
    assert (updates(model), updates(other)) == ([1, 1], [2, 2])

    assert undo_checkpointable(other) == 2
    assert undo_checkpointable(other) == 0
    step(other)
    assert runs(other) == [5, 5]
    assert updates(model) == [1, 1]


def test_undo_leaves_nothing_behind() -> None:
    model = Model()
    before = [dict(vars(layer)) for layer in model.layers]
    boundaries = make_checkpointable(model, Layer, use_checkpoint=True)
    step(model)
    boundaries.undo()
    boundaries.undo()

    assert [vars(layer).keys() for layer in model.layers] == [entries.keys() for entries in before]
    with pytest.raises(ValueError, match="no gradient-checkpointing boundary"):
        configure_gradient_checkpointing(model)


def test_the_boundaries_are_a_context_manager() -> None:
    model = Model()
    with make_checkpointable(model, Layer, use_checkpoint=True) as boundaries:
        loss = model(torch.randn(6, 4)).sum()
        assert boundaries.names == ("layers.0", "layers.1")
        assert repr(boundaries) == "<2 made boundaries: 'layers.0', 'layers.1'>"
    loss.backward()  # what was recorded inside is replayed after

    assert runs(model) == [2, 2]
    assert updates(model) == [1, 1]
    step(model)
    assert runs(model) == [3, 3]


def test_undo_does_not_touch_what_another_call_made() -> None:
    model = Model()
    first = make_checkpointable(model, Layer)
    undo_checkpointable(model)
    make_checkpointable(model, lambda name, module: name == "layers.0")
    first.undo()

    assert [hasattr(layer, "gradient_checkpointing") for layer in model.layers] == [True, False]


@pytest.mark.parametrize(
    ("selected", "names"),
    [
        (Layer, ("layers.0", "layers.1")),
        ((nn.Linear, nn.Dropout), ("0.linear", "0.dropout", "1.linear", "1.dropout")),
        ([nn.Linear], ("0.linear", "1.linear")),
        (lambda module: isinstance(module, nn.BatchNorm1d), ("0.norm", "1.norm")),
        (lambda module, wanted=Layer: type(module) is wanted, ("layers.0", "layers.1")),
        (lambda name, module: name.endswith("1"), ("layers.1",)),
        (lambda *module: isinstance(module[0], nn.Dropout), ("0.dropout", "1.dropout")),
        (lambda name, module: name == "", ("",)),
    ],
)
def test_modules_are_selected_by_class_or_predicate(selected: Any, names: Any) -> None:
    boundaries = make_checkpointable(Model(), selected, use_checkpoint=True)

    assert tuple(name.removeprefix("layers.") for name in boundaries.names) == tuple(
        name.removeprefix("layers.") for name in names
    )


@pytest.mark.parametrize("wrong", ["Layer", 3, None, [], [3], lambda: True, lambda a, b, c: a])
def test_other_selections_are_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match="a class, several classes, or a function"):
        make_checkpointable(Model(), wrong)


def test_what_is_no_module_or_selects_nothing_is_refused() -> None:
    with pytest.raises(TypeError, match="got 3"):
        make_checkpointable(3, Layer)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="got 3"):
        undo_checkpointable(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"modules of these classes: BatchNorm1d, Dropout, Ema"):
        make_checkpointable(Model(), nn.Conv2d)


def test_the_whole_model_and_nested_and_shared_blocks() -> None:
    def nested() -> nn.Module:
        model = Model()
        model.layers.append(model.layers[0])
        return model

    plain, model = nested(), nested()
    boundaries = make_checkpointable(
        model,
        lambda module: isinstance(module, Model | Layer | nn.BatchNorm1d),
        use_checkpoint=True,
    )

    assert boundaries.names == ("", "layers.0", "layers.0.norm", "layers.1", "layers.1.norm")
    assert not differences(train(plain), train(model))


class GraphOfItsOwn(nn.Module):
    gradient_checkpointing = False

    def forward(self, x: Tensor) -> Tensor:
        return x


class WithProperty(nn.Module):
    @property
    def forward(self) -> Any:  # type: ignore[override]
        return torch.sin


class WithStatic(nn.Module):
    @staticmethod
    def forward(x: Tensor) -> Tensor:  # type: ignore[override]
        return x


class WithPartial(nn.Module):
    forward = functools.partial(torch.add, other=1)  # type: ignore[assignment]


class Generator(nn.Module):
    def forward(self, x: Tensor) -> Any:
        yield x


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (lambda: torch.jit.script(nn.Linear(4, 4)), "scripted module"),
        (lambda: torch.fx.symbolic_trace(nn.Linear(4, 4)), "rebuilt from its code"),
        (lambda: torch.compile(nn.Linear(4, 4)), r"returned by torch\.compile"),
        (lambda: nn.DataParallel(nn.Linear(4, 4)), "shallow copies"),
        (lambda: checkpoint_wrapper(nn.Linear(4, 4)), "checkpoints the block inside it already"),
        (lambda: Block(nn.Linear(4, 4)), "a boundary already"),
        (GraphOfItsOwn, r"preserve_replay_state\(model\)"),
        (lambda: nn.ModuleList([nn.Linear(4, 4)]), "has no forward"),
        (WithProperty, "property"),
        (WithStatic, "staticmethod"),
        (WithPartial, "partial"),
        (Generator, "generator"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*torch.jit.script")
def test_what_cannot_be_kept_right_is_refused_with_the_reason(module: Any, reason: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4), module())

    with pytest.raises(ValueError, match=f"'1' cannot be made a boundary: .*{reason}"):
        make_checkpointable(model, lambda name, module: name in ("0", "1"))
    assert "forward" not in vars(model[0])


def test_a_boundary_is_not_made_twice() -> None:
    with pytest.raises(ValueError, match="a boundary already"):
        make_checkpointable(made(), Layer)


def _doubled(module: Layer, x: Tensor) -> Tensor:
    return 2 * Layer.forward(module, x)


def test_a_forward_of_the_instance_is_called_copied_and_put_back() -> None:
    model = Model()
    for layer in model.layers:
        layer.forward = functools.partial(_doubled, layer)  # type: ignore[method-assign]
    replaced = model.layers[0].forward
    expected = train(copy.deepcopy(model))
    make_checkpointable(model, Layer, use_checkpoint=True)
    other = copy.deepcopy(model)

    assert not differences(expected, train(other))
    assert (runs(model), runs(other)) == ([0, 0], [6, 6])
    undo_checkpointable(model)
    assert model.layers[0].forward is replaced


def test_a_forward_that_was_replaced_afterwards_stops_the_undo() -> None:
    model = made()
    layer = model.layers[1]
    ours = layer.forward
    layer.forward = functools.partial(ours)  # type: ignore[method-assign]
    with pytest.raises(ValueError, match=r"'layers\.1' was replaced after make_checkpointable"):
        undo_checkpointable(model)
    assert hasattr(model.layers[0], "gradient_checkpointing")

    layer.forward = ours  # type: ignore[method-assign]
    assert undo_checkpointable(model) == 2


def test_replay_options_guard_and_is_replaying_take_part() -> None:
    model, flags = made(), []
    model.layers[0].linear.register_forward_hook(lambda *_: flags.append(is_replaying()))
    step(model)
    assert flags == [False, True]

    loss = model(torch.randn(6, 4)).sum()
    with torch.no_grad():
        model.layers[1].linear.weight.add_(1)
    with pytest.raises(ReplayGuardError, match=r"Layer cannot be replayed: .*'linear\.weight'"):
        loss.backward()

    assert replay_options(model, guard=False) == 2
    loss = model(torch.randn(6, 4)).sum()
    with torch.no_grad():
        model.layers[1].linear.weight.add_(1)
    loss.backward()


def test_a_dropped_model_is_freed_at_once() -> None:
    model = made()
    step(model)
    dead = weakref.ref(model.layers[0])
    gc.disable()
    try:
        del model
        assert dead() is None
    finally:
        gc.enable()


def test_a_forward_whose_module_is_gone_says_so() -> None:
    forward = made().layers[0].forward

    with pytest.raises(ReferenceError, match="no longer exists"):
        forward(torch.randn(6, 4))


def test_a_lazy_block_materialises_first() -> None:
    model = nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d())
    make_checkpointable(model, (nn.LazyLinear, nn.LazyBatchNorm1d), use_checkpoint=True)
    step(model)

    assert (type(model[0]), type(model[1])) == (nn.Linear, nn.BatchNorm1d)
    assert updates(model) == [1]


class Plain(nn.Module):
    def __init__(self, norm: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4) if norm else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(self.linear(x)).tanh()
        return out


@pytest.mark.parametrize(("enable", "norm"), [(False, True), (True, False), (True, True)])
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
def test_a_boundary_is_traced_in_one_graph(enable: bool, norm: bool) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    plain = nn.Sequential(Plain(norm), nn.Linear(4, 4))
    model = copy.deepcopy(plain)
    make_checkpointable(model, Plain, use_checkpoint=enable)
    replay_options(model, allow_compile=norm)
    x = torch.randn(6, 4)
    expected, got = plain(x), torch.compile(model, backend="aot_eager", fullgraph=True)(x)
    expected.sum().backward()
    got.sum().backward()

    assert torch.equal(expected, got)
    assert updates(model) == updates(plain)
    torch.testing.assert_close(model[0].linear.weight.grad, plain[0].linear.weight.grad)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
def test_state_under_compile_is_refused_as_for_other_boundaries() -> None:
    torch._dynamo.reset()
    model = nn.Sequential(Plain(norm=True))
    make_checkpointable(model, Plain, use_checkpoint=True)

    with pytest.raises(RuntimeError, match="Plain is a .* boundary that keeps"):
        torch.compile(model, backend="aot_eager")(torch.randn(6, 4))
