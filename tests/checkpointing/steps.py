"""Training steps in every style a boundary must survive, and what one of them leaves behind."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from wcn_ckpt.nn.modules import GradientCheckpointingMixin, configure_gradient_checkpointing

Observed = dict[str, Tensor]


class Block(GradientCheckpointingMixin, nn.Module):
    """A boundary around any module; counts how often its computation ran."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self._init_gradient_checkpointing()
        self.body = body
        self.calls = 0

    def forward(self, x: Tensor) -> Any:
        return self._gradient_checkpointed_call(self._forward, x)

    def _forward(self, x: Tensor) -> Any:
        self.calls += 1
        return self.body(x)


def backward(model: nn.Module, x: Tensor) -> list[Tensor]:
    model(x).square().sum().backward()
    return []


def retained(model: nn.Module, x: Tensor) -> list[Tensor]:
    loss = model(x).square().sum()
    loss.backward(retain_graph=True)
    loss.backward(retain_graph=True)
    loss.backward()
    return []


def autograd_grad(model: nn.Module, x: Tensor) -> list[Tensor]:
    parameters = [p for p in model.parameters() if p.requires_grad]
    return list(torch.autograd.grad(model(x).square().sum(), [x, *parameters]))


def double_backward(model: nn.Module, x: Tensor) -> list[Tensor]:
    loss = model(x).square().sum()
    (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
    (loss + gradient.square().sum()).backward()
    return [gradient.detach()]


def joint(model: nn.Module, x: Tensor) -> list[Tensor]:
    (model(x).square().sum() + model(x * 0.5 + 1).sum()).backward()
    return []


def sequential(model: nn.Module, x: Tensor) -> list[Tensor]:
    model(x).square().sum().backward()
    model(x * 0.5 + 1).square().sum().backward()
    return []


def bf16_autocast(model: nn.Module, x: Tensor) -> list[Tensor]:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(x).square().sum()
    loss.backward()
    return []


def forward_only(model: nn.Module, x: Tensor) -> list[Tensor]:
    return [model(x).detach()]


STYLES: dict[str, Callable[[nn.Module, Tensor], list[Tensor]]] = {
    style.__name__: style
    for style in (
        backward,
        retained,
        autograd_grad,
        double_backward,
        joint,
        sequential,
        bf16_autocast,
        forward_only,
    )
}


def observe(model: nn.Module, style: str, x: Tensor, steps: int = 2) -> Observed:
    """Run a style for some steps from fixed RNG states, and collect all that it left behind."""
    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)
    model.zero_grad()
    x = x.clone().requires_grad_()
    seen: Observed = {}
    for step in range(steps):
        for index, extra in enumerate(STYLES[style](model, x)):
            seen[f"step{step}.result{index}"] = extra
        seen |= {f"step{step}.{name}": b.clone() for name, b in model.named_buffers()}
    if x.grad is not None:
        seen["input.grad"] = x.grad
    seen |= {f"{n}.grad": p.grad for n, p in model.named_parameters() if p.grad is not None}
    seen |= {f"state_dict.{key}": value.clone() for key, value in model.state_dict().items()}
    seen["torch rng"] = torch.get_rng_state()
    seen["python rng"] = torch.tensor([random.gauss(0, 1), *(random.random() for _ in range(4))])
    seen["numpy rng"] = torch.from_numpy(np.random.standard_normal(5))
    return seen


def ordinary_and_checkpointed(model: nn.Module) -> tuple[nn.Module, nn.Module]:
    """Two equal copies of a model, the second with every boundary enabled."""
    ordinary, checkpointed = copy.deepcopy(model), copy.deepcopy(model)
    configure_gradient_checkpointing(ordinary, False)
    configure_gradient_checkpointing(checkpointed, True)
    return ordinary, checkpointed


def differences(expected: Observed, got: Observed) -> list[str]:
    """Names that are missing on one side or not bitwise equal."""
    return [
        name
        for name in expected.keys() | got.keys()
        if name not in expected
        or name not in got
        or expected[name].dtype != got[name].dtype
        or not torch.equal(expected[name], got[name])
    ]


def assert_checkpointing_changes_nothing(
    model: nn.Module, style: str, x: Tensor, steps: int = 2
) -> None:
    """Both arms agree bitwise and replace the same buffers; the checkpointed one replayed."""
    ordinary, checkpointed = ordinary_and_checkpointed(model)
    before = [dict(arm.named_buffers()) for arm in (ordinary, checkpointed)]
    calls = [m.calls for m in checkpointed.modules() if isinstance(m, Block)]

    expected, got = observe(ordinary, style, x, steps), observe(checkpointed, style, x, steps)

    changed = differences(expected, got)
    assert not changed, f"checkpointing changed {sorted(changed)}"
    after = [dict(arm.named_buffers()) for arm in (ordinary, checkpointed)]
    assert list(after[0]) == list(after[1])
    kept = [
        [name for name, buffer in old.items() if new.get(name) is buffer]
        for old, new in zip(before, after, strict=True)
    ]
    assert kept[0] == kept[1]
    if style != "forward_only" and calls:
        ran = [m.calls for m in checkpointed.modules() if isinstance(m, Block)]
        assert sum(ran) > sum(m.calls for m in ordinary.modules() if isinstance(m, Block))
