"""Short trainings in every accumulation style, under any optimizer; both arms must agree."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.checkpointing.stateful import Codebook, OwnNorm, Rebinding, Twice, new_spectral_norm
from tests.checkpointing.steps import Block
from wcn_ckpt import configure_gradient_checkpointing

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05),
    "sgd with momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "adam, foreach": lambda p: torch.optim.Adam(p, lr=0.01, foreach=True),
    "adamw, fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
}


class Scaled(nn.Module):
    """Multiplies by a buffer that nothing writes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 6))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


def _layers(*state: nn.Module) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(6, 6), Scaled(), *state, nn.Dropout(0.2), nn.Tanh(), nn.Linear(6, 6)
    )


def _frozen_first(block: Block) -> Block:
    block.body.get_submodule("0").requires_grad_(False)
    return block


class SharedWeight(nn.Module):
    """Two boundaries around layers that share one parameter."""

    def __init__(self) -> None:
        super().__init__()
        first, second = nn.Linear(6, 6), nn.Linear(6, 6)
        second.weight = first.weight
        self.blocks = nn.Sequential(
            Block(nn.Sequential(first, nn.Tanh())), Block(nn.Sequential(second, nn.Tanh()))
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.blocks(x)
        return out


SUBJECTS: dict[str, Callable[[], nn.Module]] = {
    "norms": lambda: nn.Sequential(
        Block(_layers(nn.BatchNorm1d(6))), nn.Linear(6, 6), Block(_layers(OwnNorm()))
    ),
    "codebooks": lambda: nn.Sequential(Block(_layers(Codebook())), Block(_layers(Rebinding()))),
    "spectral norm": lambda: nn.Sequential(Block(_layers(new_spectral_norm())), nn.Linear(6, 6)),
    "constants": lambda: nn.Sequential(Block(_layers()), Block(_layers(nn.LayerNorm(6)))),
    "layer norms": lambda: nn.Sequential(
        *(Block(nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6), nn.Dropout(0.2))) for _ in range(2))
    ),
    "nested": lambda: Block(nn.Sequential(_layers(nn.BatchNorm1d(6)), Block(_layers(Codebook())))),
    "shared block": lambda: Twice(Block(_layers(nn.BatchNorm1d(6)))),
    "shared weight": SharedWeight,
}

FROZEN: dict[str, Callable[[], nn.Module]] = {
    "frozen layer": lambda: nn.Sequential(
        _frozen_first(Block(_layers(nn.BatchNorm1d(6)))), Block(_layers())
    ),
    "frozen codebook": lambda: nn.Sequential(
        Block(_layers(Codebook(frozen_parameter=True))), Block(_layers())
    ),
}


def sequential(model: nn.Module, data: list[Tensor]) -> None:
    for x in data:
        model(x).square().mean().backward()


def joint(model: nn.Module, data: list[Tensor]) -> None:
    sum(model(x).square().mean() for x in data).backward()  # type: ignore[union-attr]


def reversed_order(model: nn.Module, data: list[Tensor]) -> None:
    losses = [model(x).square().mean() for x in data]
    for loss in losses:
        loss.backward()


def no_sync(model: nn.Module, data: list[Tensor]) -> None:
    quiet = getattr(model, "no_sync", contextlib.nullcontext)
    with quiet():
        for x in data[:-1]:
            model(x).square().mean().backward()
    model(data[-1]).square().mean().backward()


def retained(model: nn.Module, data: list[Tensor]) -> None:
    for x in data:
        loss = model(x).square().mean()
        loss.backward(retain_graph=True)
        loss.backward()


ACCUMULATIONS = {f.__name__: f for f in (sequential, joint, reversed_order, no_sync, retained)}


def batches(seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(5, 6, generator=generator) for _ in range(2)]


def train(
    model: nn.Module,
    optimizer: str,
    accumulation: str,
    precision: str = "float32",
    in_backward: bool = False,
    seed: int = 0,
    steps: int = 3,
) -> None:
    """Train for some steps; with `in_backward`, each parameter steps when its gradient is ready."""
    torch.manual_seed(3)
    parameters = list(model.parameters())
    if in_backward:
        for parameter in parameters:
            own = OPTIMIZERS[optimizer]([parameter])

            def step(parameter: Tensor, own: torch.optim.Optimizer = own) -> None:
                own.step()
                own.zero_grad()

            parameter.register_post_accumulate_grad_hook(step)
    whole = OPTIMIZERS[optimizer](parameters)
    for step_index in range(steps):
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            ACCUMULATIONS[accumulation](model, batches(seed + step_index))
        if not in_backward:
            whole.step()
            whole.zero_grad()


def arms(subject: str) -> list[nn.Module]:
    """The ordinary arm and the checkpointed one, equal."""
    made = []
    for enable in (False, True):
        torch.manual_seed(0)
        model = (SUBJECTS | FROZEN)[subject]()
        configure_gradient_checkpointing(model, enable)
        made.append(model)
    return made


def values(model: nn.Module) -> dict[str, Tensor]:
    """Everything that training changed, on this rank."""
    found: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        found[name] = getattr(tensor, "to_local", lambda tensor=tensor: tensor)().clone()
    return found


def changed(expected: nn.Module, got: nn.Module) -> list[str]:
    """Names of the values in which two trained models differ."""
    a, b = values(expected), values(got)
    return sorted(name for name in a if not torch.equal(a[name], b[name]))
