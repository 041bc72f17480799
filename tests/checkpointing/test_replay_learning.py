"""What a boundary learns from its forwards, is told by the user, and says when it came too late."""

from __future__ import annotations

import copy
import pickle
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.checkpointing.stateful import Codebook, OwnNorm, Rebinding, with_tail
from tests.checkpointing.steps import (
    STYLES,
    Block,
    differences,
    observe,
    ordinary_and_checkpointed,
)
from wcn_ckpt import (
    GradientCheckpointingMixin,
    UnpreservedStateError,
    UnpreservedStateWarning,
    configure_gradient_checkpointing,
    replay_options,
)

LATE: dict[str, tuple[type[nn.Module], str]] = {
    "in place": (Codebook, "book"),
    "rebound": (Rebinding, "n"),
    "by F.batch_norm": (OwnNorm, "mean"),
}


def stateful(model: nn.Module) -> Any:
    return model.get_submodule("body.1")


def block_of(layer: nn.Module) -> Block:
    torch.manual_seed(0)
    return Block(with_tail(layer))


def step(model: nn.Module, seed: int) -> None:
    torch.manual_seed(seed)
    model(torch.randn(9, 6)).square().sum().backward()


@pytest.mark.parametrize("quiet_forwards", [1, 2, 3, 5])
@pytest.mark.parametrize("kind", LATE)
def test_a_buffer_first_written_later_is_named_once_and_kept_from_then_on(
    kind: str, quiet_forwards: int
) -> None:
    cls, name = LATE[kind]
    block = block_of(cls())
    stateful(block).active = False
    configure_gradient_checkpointing(block)
    for seed in range(quiet_forwards):
        step(block, seed)

    stateful(block).active = True
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for seed in range(10, 18):
            step(block, seed)
    about_it = [str(w.message) for w in caught if f"body.1.{name}" in str(w.message)]
    assert len(about_it) == 1
    assert all(w.category is UnpreservedStateWarning for w in caught)

    ordinary, checkpointed = ordinary_and_checkpointed(block)
    x = torch.randn(9, 6)
    assert differences(observe(ordinary, "retained", x), observe(checkpointed, "retained", x)) == []


@pytest.mark.parametrize("quiet_forwards", [1, 2, 3])
@pytest.mark.parametrize("kind", ["in place", "rebound"])
def test_a_late_write_that_moves_a_version_is_not_doubled_even_the_first_time(
    kind: str, quiet_forwards: int
) -> None:
    values = []
    for enable in (False, True):
        block = block_of(LATE[kind][0]())
        configure_gradient_checkpointing(block, enable)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnpreservedStateWarning)
            for seed in range(quiet_forwards + 3):
                stateful(block).active = seed >= quiet_forwards
                step(block, seed)
        values.append(getattr(stateful(block), LATE[kind][1]))

    assert torch.equal(*values)


@pytest.mark.parametrize("quiet_forwards", [2, 4, 5])
def test_a_late_write_in_place_whose_entry_value_is_lost_is_an_error_in_strict_mode(
    quiet_forwards: int,
) -> None:
    block = block_of(Codebook())
    stateful(block).active = False
    configure_gradient_checkpointing(block)
    replay_options(block, strict_state=True)
    for seed in range(quiet_forwards):
        step(block, seed)
    stateful(block).active = True

    with (
        pytest.raises(UnpreservedStateError, match=r"body\.1\.book"),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", UnpreservedStateWarning)
        for seed in range(10, 14):
            step(block, seed)


@pytest.mark.parametrize("layer", [Codebook, OwnNorm, Rebinding])
def test_learning_switched_off_warns_once_by_module_path_and_buffer(
    layer: type[nn.Module],
) -> None:
    block = block_of(layer())
    configure_gradient_checkpointing(block)
    replay_options(block, learn=False)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for seed in range(6):
            step(block, seed)

    assert [w.category for w in caught] == [UnpreservedStateWarning]
    assert "body.1." in str(caught[0].message)
    assert "Block" in str(caught[0].message)


@pytest.mark.parametrize("layer", [Codebook, OwnNorm, Rebinding])
def test_learning_switched_off_is_an_error_in_strict_mode(layer: type[nn.Module]) -> None:
    block = block_of(layer())
    configure_gradient_checkpointing(block)
    replay_options(block, learn=False, strict_state=True)

    with pytest.raises(UnpreservedStateError, match=r"body\.1\."):
        step(block, 0)


def test_strict_mode_says_nothing_where_everything_is_kept() -> None:
    block = block_of(nn.Sequential(Codebook(), OwnNorm(), nn.BatchNorm1d(6), Rebinding()))
    configure_gradient_checkpointing(block)
    replay_options(block, strict_state=True)

    for seed in range(5):
        step(block, seed)


DECLARATIONS: dict[str, Any] = {
    "a name": "book",
    "a path": "body.1.book",
    "several": ["book", "absent"],
    "a set": {"book"},
    "a generator": (name for name in ("book",)),
    "a mapping": {"book": "read_and_written"},
    "a mapping by path": {"body.1.book": "read_and_written"},
}


@pytest.mark.parametrize("frozen_parameter", [False, True])
@pytest.mark.parametrize("form", [name for name in DECLARATIONS if name != "a generator"])
@pytest.mark.parametrize("style", STYLES)
def test_declared_state_is_kept_without_learning(
    form: str, style: str, frozen_parameter: bool
) -> None:
    block = block_of(Codebook(frozen_parameter=frozen_parameter))
    replay_options(block, learn=False, state=DECLARATIONS[form], strict_state=True)
    ordinary, checkpointed = ordinary_and_checkpointed(block)
    x = torch.randn(9, 6)

    assert differences(observe(ordinary, style, x), observe(checkpointed, style, x)) == []


@pytest.mark.parametrize("style", STYLES)
def test_state_declared_in_the_constructor(style: str) -> None:
    class Declared(Block):
        def __init__(self, enable: bool) -> None:
            super().__init__(with_tail(OwnNorm()))
            self._init_gradient_checkpointing(
                enable,
                state={"mean": "written", "var": "written"},
                learn=False,
                guard=True,
                strict_state=True,
            )

    seen = []
    x = torch.randn(9, 6)
    for enable in (False, True):
        torch.manual_seed(0)
        seen.append(observe(Declared(enable), style, x))

    assert differences(*seen) == []


def test_an_iterator_of_names_is_read_once_for_all_boundaries() -> None:
    model = nn.Sequential(Block(with_tail(Codebook())), Block(with_tail(Codebook())))

    assert replay_options(model, state=DECLARATIONS["a generator"], learn=False) == 2
    configure_gradient_checkpointing(model)
    replay_options(model, strict_state=True)
    step(model, 0)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"state": 3}, TypeError, "3"),
        ({"state": [3]}, TypeError, "string, got 3"),
        ({"state": {"book": "sometimes"}}, ValueError, "'sometimes' for 'book'"),
        ({"learn": 1}, TypeError, "learn must be True or False, got 1"),
        ({"guard": "yes"}, TypeError, "guard .* 'yes'"),
        ({"strict_state": 0}, TypeError, "strict_state .* 0"),
        ({"allow_compile": 1.0}, TypeError, r"allow_compile .* 1\.0"),
    ],
)
def test_bad_options_are_named_and_change_nothing(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    block = block_of(Codebook())
    before = block._replay_options
    with pytest.raises(error, match=message):
        replay_options(block, **options)
    assert block._replay_options == before


def test_options_need_a_module_with_boundaries() -> None:
    with pytest.raises(TypeError, match=r"nn\.Module, got 3"):
        replay_options(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="Linear has no boundary"):
        replay_options(nn.Linear(2, 2), learn=False)


def test_options_are_not_keywords_of_torch() -> None:
    block = block_of(Codebook())
    with pytest.raises(ValueError, match="strict_state"):
        block.gradient_checkpointing_enable({"strict_state": True})


def test_a_forward_that_raises_teaches_nothing() -> None:
    class Refusing(nn.Module):
        refuses = True

        def forward(self, x: Tensor) -> Tensor:
            if self.refuses:
                raise ArithmeticError("planted")
            return x

    block = block_of(nn.Sequential(Refusing(), Codebook()))
    layer = stateful(block)
    configure_gradient_checkpointing(block)
    with pytest.raises(ArithmeticError):
        step(block, 0)
    layer[0].refuses = False

    ordinary, _ = ordinary_and_checkpointed(block)
    x = torch.randn(9, 6)
    assert differences(observe(ordinary, "retained", x), observe(block, "retained", x)) == []


def test_a_forward_that_raises_after_its_write_is_followed_by_right_ones() -> None:
    class RefusingOnce(nn.Module):
        refuses = True

        def forward(self, x: Tensor) -> Tensor:
            if self.refuses:
                self.refuses = False
                raise ArithmeticError("planted")
            return x

    block = block_of(nn.Sequential(Codebook(), RefusingOnce(), OwnNorm()))
    configure_gradient_checkpointing(block)
    with pytest.raises(ArithmeticError):
        step(block, 0)

    ordinary, _ = ordinary_and_checkpointed(block)
    x = torch.randn(9, 6)
    assert differences(observe(ordinary, "joint", x), observe(block, "joint", x)) == []


@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
@pytest.mark.parametrize("when", ["between steps", "between forward and backward"])
def test_copies_learn_for_themselves_and_leave_the_original_alone(how: str, when: str) -> None:
    layers = nn.Sequential(Codebook(), OwnNorm(), nn.BatchNorm1d(6), Rebinding())
    block, expected = block_of(layers), block_of(copy.deepcopy(layers))
    expected.load_state_dict(block.state_dict())
    configure_gradient_checkpointing(block)

    def copied() -> nn.Module:
        if how == "deepcopy":
            return copy.deepcopy(block)
        twin: nn.Module = pickle.loads(pickle.dumps(block))
        return twin

    x = torch.randn(9, 6)
    for model in (expected, block):
        step(model, 0)
    if when == "between steps":
        twin = copied()
    loss = block(x).sum()
    if when == "between forward and backward":
        twin = copied()
    loss.backward()
    expected(x).sum().backward()
    if when == "between steps":
        twin(x)

    a, b = observe(expected, "retained", x), observe(block, "retained", x)
    c = observe(twin, "retained", x)
    assert differences(a, b) == []
    assert differences(a, c) == []


@pytest.mark.parametrize("style", STYLES)
def test_a_module_replaced_after_learning_is_learned_anew(style: str) -> None:
    block = block_of(nn.Sequential(nn.Identity()))
    configure_gradient_checkpointing(block)
    step(block, 0)
    stateful(block)[0] = Codebook()
    ordinary, _ = ordinary_and_checkpointed(block)
    x = torch.randn(9, 6)

    assert differences(observe(ordinary, style, x), observe(block, style, x)) == []


def test_learning_sees_only_what_the_forward_writes_not_what_happens_between_steps() -> None:
    block = block_of(Codebook())
    layer = stateful(block)
    layer.active = False
    configure_gradient_checkpointing(block)
    replay_options(block, strict_state=True)
    for seed in range(5):
        step(block, seed)
        layer.book.add_(1)


def test_a_boundary_that_is_disabled_and_enabled_again_in_training() -> None:
    seen = []
    for schedule in ([False] * 5, [True, False, True, False, True]):
        block = block_of(nn.Sequential(Codebook(), OwnNorm(), nn.BatchNorm1d(6)))
        for seed, enable in enumerate(schedule):
            configure_gradient_checkpointing(block, enable)
            step(block, seed)
        seen.append(observe(block, "forward_only", torch.ones(9, 6)))

    assert differences(*seen) == []


def test_a_subclass_that_forgets_to_initialise_has_default_options() -> None:
    class Forgetful(GradientCheckpointingMixin, nn.Module):
        def forward(self, x: Tensor) -> Any:
            return self._gradient_checkpointed_call(torch.sin, x)

    assert replay_options(Forgetful(), strict_state=True) == 1


class Registering(nn.Module):
    """Has nothing but a linear layer until its first forward."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.linear, self.what = nn.Linear(3, 3), what

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        if self.what == "buffer":
            if not hasattr(self, "count"):
                self.register_buffer("count", torch.zeros(()))
            self.count = self.count + 1
            return x * self.count
        if not hasattr(self, "added"):
            self.added = nn.BatchNorm1d(3) if self.what == "module" else nn.Parameter(torch.ones(3))
        out: Tensor = self.added(x) if self.what == "module" else x * self.added
        return out


@pytest.mark.parametrize("what", ["buffer", "module", "parameter"])
@pytest.mark.parametrize("joint", [False, True])
def test_a_forward_registers_what_it_needs(what: str, joint: bool) -> None:
    seen = []
    for enable in (False, True):
        torch.manual_seed(0)
        block = Block(Registering(what))
        configure_gradient_checkpointing(block, enable)
        losses = []
        for _ in range(3):
            losses.append(block(torch.randn(4, 3)).tanh().square().sum())
            if not joint:
                losses.pop().backward()
        if joint:
            sum(losses, torch.zeros(())).backward()
        seen.append([*(p.grad for p in block.parameters()), *block.buffers()])

    assert all(torch.equal(a, b) for a, b in zip(*seen, strict=True))
