"""The Hugging Face switch of models, and the helper for any tree."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.checkpointing.steps import Block
from wcn_ckpt.nn.modules import (
    GradientCheckpointingMixin,
    GradientCheckpointingModelMixin,
    configure_gradient_checkpointing,
)


class Model(GradientCheckpointingModelMixin, nn.Module):
    def __init__(self, depth: int = 3) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(Block(nn.Linear(4, 4)) for _ in range(depth)))

    def forward(self, x: Tensor) -> Any:
        return self.blocks(x)


def flags(model: nn.Module) -> list[bool]:
    return [m.gradient_checkpointing for m in model.modules() if isinstance(m, Block)]


def functions(model: nn.Module) -> list[Any]:
    return [m._gradient_checkpointing_func for m in model.modules() if isinstance(m, Block)]


def test_enable_and_disable_switch_every_boundary() -> None:
    model = Model()
    assert model.supports_gradient_checkpointing
    assert not model.is_gradient_checkpointing
    model.gradient_checkpointing_enable()
    assert flags(model) == [True] * 3
    assert model.is_gradient_checkpointing and model.use_checkpoint
    model.gradient_checkpointing_disable()
    assert flags(model) == [False] * 3
    assert not model.is_gradient_checkpointing


def test_kwargs_reach_every_boundary_and_are_reset_by_the_next_call() -> None:
    model = Model()
    kwargs = {"preserve_rng_state": False}
    model.gradient_checkpointing_enable(kwargs)
    assert kwargs == {"preserve_rng_state": False}
    for function in functions(model):
        assert function.keywords == {"preserve_rng_state": False, "use_reentrant": False}

    model.gradient_checkpointing_disable()
    assert functions(model)[0].keywords == {"preserve_rng_state": False, "use_reentrant": False}
    model.gradient_checkpointing_enable()
    assert functions(model)[0].keywords == {"use_reentrant": False}


def test_reentrant_kwargs_are_refused_before_any_change() -> None:
    model = Model()
    with pytest.raises(ValueError, match="use_reentrant=False"):
        model.gradient_checkpointing_enable({"use_reentrant": True})
    assert flags(model) == [False] * 3


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"use_rentrant": False}, ValueError, "'use_rentrant'"),
        ([("use_reentrant", False)], TypeError, "dict"),
        ("yes", TypeError, "'yes'"),
        (
            {"preserve_rng_state": "x"},
            TypeError,
            "preserve_rng_state must be True or False, got 'x'",
        ),
        ({"early_stop": 1}, TypeError, "early_stop must be True or False, got 1"),
        ({"context_fn": 3}, TypeError, "context_fn must be a function"),
    ],
)
def test_bad_kwargs_are_named(kwargs: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Model().gradient_checkpointing_enable(kwargs)


def test_use_checkpoint_of_a_container_reads_and_switches_all() -> None:
    model = Model()
    model.use_checkpoint = True
    assert flags(model) == [True] * 3
    model.blocks[0].use_checkpoint = False
    assert model.use_checkpoint
    model.use_checkpoint = False
    assert flags(model) == [False] * 3


def test_assigning_use_checkpoint_before_there_are_children_does_nothing() -> None:
    class Early(GradientCheckpointingModelMixin, nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.use_checkpoint = True

    assert Early().use_checkpoint is False


@pytest.mark.parametrize(
    "method", ["gradient_checkpointing_enable", "gradient_checkpointing_disable"]
)
def test_a_model_without_boundaries_is_an_error(method: str) -> None:
    with pytest.raises(ValueError, match=r"Model has no gradient-checkpointing boundary"):
        getattr(Model(depth=0), method)()


def test_a_leaf_aggregates_below_itself_but_its_alias_is_its_own() -> None:
    outer = Block(Block(nn.Linear(4, 4)))
    outer.body.use_checkpoint = True

    assert outer.is_gradient_checkpointing
    assert outer.use_checkpoint is False


def test_configure_counts_each_boundary_once() -> None:
    shared = Block(nn.Linear(4, 4))
    tree = nn.Sequential(shared, shared, Block(Block(nn.Linear(4, 4))))

    assert configure_gradient_checkpointing(tree) == 3
    assert configure_gradient_checkpointing(tree, False) == 3
    assert flags(tree) == [False] * 3


def test_configure_drives_foreign_modules_with_the_attribute() -> None:
    class Foreign(nn.Module):
        gradient_checkpointing = False

    foreign = Foreign()
    assert configure_gradient_checkpointing(nn.Sequential(foreign), True, checkpoint) == 1
    assert foreign.gradient_checkpointing is True
    assert foreign._gradient_checkpointing_func.keywords == {"use_reentrant": False}


def test_configure_without_boundaries_raises_unless_told_not_to() -> None:
    with pytest.raises(ValueError, match=r"Linear has no gradient-checkpointing boundary"):
        configure_gradient_checkpointing(nn.Linear(2, 2))
    assert configure_gradient_checkpointing(nn.Linear(2, 2), strict=False) == 0


def test_configure_refuses_what_is_no_module() -> None:
    with pytest.raises(TypeError, match=r"needs an nn\.Module, got 3"):
        configure_gradient_checkpointing(3)


def test_a_bad_function_changes_nothing() -> None:
    model = Model()
    with pytest.raises(ValueError, match="use_reentrant=False"):
        configure_gradient_checkpointing(
            model, True, functools.partial(checkpoint, use_reentrant=True)
        )
    with pytest.raises(TypeError, match="callable, got 'checkpoint'"):
        configure_gradient_checkpointing(model, True, "checkpoint")
    assert flags(model) == [False] * 3


def test_transformers_5_names() -> None:
    model = Model()
    model.activation_checkpointing_enable({"preserve_rng_state": False}, every_n_layers=2)
    assert flags(model) == [True, False, True]
    assert model.is_activation_checkpointing
    assert functions(model)[1].keywords["preserve_rng_state"] is False
    model.activation_checkpointing_disable()
    assert not model.is_activation_checkpointing

    with pytest.raises(ValueError, match="every_n_layers must be at least 1, got 0"):
        model.activation_checkpointing_enable(every_n_layers=0)
    for bad in ("2", 1.5, True):
        with pytest.raises(TypeError, match="every_n_layers must be an int"):
            model.activation_checkpointing_enable(every_n_layers=bad)
    with pytest.raises(ValueError, match="offload=True"):
        model.activation_checkpointing_enable(offload=True)


@pytest.mark.parametrize(
    "bare",
    [checkpoint, functools.partial(checkpoint), functools.partial(checkpoint, use_reentrant=None)],
)
def test_assigning_torch_checkpoint_makes_it_non_reentrant(bare: Any) -> None:
    block = Block(nn.Linear(4, 4))
    block._gradient_checkpointing_func = bare
    assert block._gradient_checkpointing_func.keywords == {"use_reentrant": False}


def test_assigning_a_partial_keeps_its_other_keywords() -> None:
    block = Block(nn.Linear(4, 4))
    block._gradient_checkpointing_func = functools.partial(checkpoint, determinism_check="none")
    assert block._gradient_checkpointing_func.keywords == {
        "determinism_check": "none",
        "use_reentrant": False,
    }


def test_assigning_a_reentrant_function_is_refused() -> None:
    block = Block(nn.Linear(4, 4))
    with pytest.raises(ValueError, match="use_reentrant=False"):
        block._gradient_checkpointing_func = functools.partial(checkpoint, use_reentrant=True)
    assert block._gradient_checkpointing_func.keywords == {"use_reentrant": False}


def test_any_other_callable_is_stored_unchanged() -> None:
    block = Block(nn.Linear(4, 4))

    def custom(fn: Any, *args: Any) -> Any:
        return fn(*args)

    block._gradient_checkpointing_func = custom
    assert block._gradient_checkpointing_func is custom


def test_the_leaf_mixin_is_a_model_mixin() -> None:
    assert issubclass(GradientCheckpointingMixin, GradientCheckpointingModelMixin)
    assert not issubclass(GradientCheckpointingMixin, nn.Module)


def test_preserve_rng_state_false_reaches_torch() -> None:
    """Documented by torch: dropout then differs in the replay, so its masks may disagree."""
    block = Block(nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5)))
    block.activation_checkpointing_enable({"preserve_rng_state": False})
    torch.manual_seed(0)
    block(torch.ones(8, 64)).sum().backward()
    after = torch.get_rng_state()
    torch.manual_seed(0)
    block.use_checkpoint = False
    block(torch.ones(8, 64)).sum().backward()

    assert not torch.equal(after, torch.get_rng_state())


def test_a_module_as_checkpoint_function_is_not_registered_below_the_boundary() -> None:
    class Checkpointing(nn.Linear):
        def forward(self, fn: Any, *args: Any) -> Any:
            return fn(*args)

    block = Block(nn.Linear(4, 4))
    keys = list(block.state_dict())
    block._gradient_checkpointing_func = Checkpointing(1, 1)

    assert list(block.state_dict()) == keys
    assert isinstance(block._gradient_checkpointing_func, Checkpointing)
