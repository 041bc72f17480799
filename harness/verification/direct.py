"""A check of a model of Transformers that uses nothing of the lab but the model: two plain steps.

It is what a person would write to find out whether gradient checkpointing changes a model: the
same weights, the same batch, one step without and one with the flag, and a look at everything that
the step leaves behind; with dropout and without. It confirms the verdicts of verify in a table of
known models.
"""

from __future__ import annotations

import copy
import random
import sys

import torch
from torch import nn

from harness.structures import tensors
from harness.verification import randomness, tiny


def changed_by_the_flag(name: str, *, preserve: bool = False) -> list[str]:
    """Return what one training step leaves otherwise when gradient checkpointing is on.

    Args:
        name: A class of Transformers.
        preserve: Call ``wcn_ckpt.preserve_replay_state`` before the flag is set.

    Returns:
        Names of buffers, and of parameters by their gradient, that are not bitwise equal; empty
        where checkpointing changes nothing.
    """
    changed = [
        item
        for dropout in ("on", "off")
        for item in _changed(name, preserve=preserve, dropout=dropout)
    ]
    return list(dict.fromkeys(changed))


def _changed(name: str, *, preserve: bool, dropout: str) -> list[str]:
    torch.manual_seed(0)
    plain = tiny.build(name).train()
    randomness.dropout(plain, dropout)
    flagged = copy.deepcopy(plain)
    batch = tiny.inputs(plain)
    if preserve:
        import wcn_ckpt

        wcn_ckpt.preserve_replay_state(flagged)
    switch = getattr(flagged, "activation_checkpointing_enable", None)
    (switch or flagged.gradient_checkpointing_enable)()  # type: ignore[operator]  # a method
    for model in (plain, flagged):
        _seed()
        output = model(**batch)
        loss = torch.stack(
            [part.float().square().mean() for part in tensors(output) if part.requires_grad]
        )
        loss.sum().backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return [*_other_buffers(plain, flagged), *_other_gradients(plain, flagged)]


def _seed() -> None:
    torch.manual_seed(1)
    random.seed(1)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(1)


def _other_buffers(plain: nn.Module, flagged: nn.Module) -> list[str]:
    theirs = dict(flagged.named_buffers())
    return [name for name, value in plain.named_buffers() if not torch.equal(value, theirs[name])]


def _other_gradients(plain: nn.Module, flagged: nn.Module) -> list[str]:
    theirs = dict(flagged.named_parameters())
    return [
        f"gradient of {name}"
        for name, value in plain.named_parameters()
        if not _same(value.grad, theirs[name].grad)
    ]


def _same(first: torch.Tensor | None, second: torch.Tensor | None) -> bool:
    if first is None or second is None:
        return first is second
    return torch.equal(first, second)
