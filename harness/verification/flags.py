"""Gradient checkpointing that a model has already: found, switched, and made an arm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from harness.computations import computes_as_boundary
from harness.verification.inspected import OWN_CALLS
from harness.verification.own_calls import switch_of
from wcn_ckpt.nn.modules import configure_gradient_checkpointing

_ATTRIBUTES = (
    *("gradient_checkpointing", "grad_checkpointing", "use_checkpoint", "use_checkpointing"),
    *("use_gradient_checkpointing", "with_cp", "memory_efficient", "checkpointing"),
)
"""Attributes by which modules switch their own checkpointing, where they are a bool."""


def own_flag(module: nn.Module) -> str | None:
    """Say how a model's own gradient checkpointing is switched on.

    Args:
        module: The model.

    Returns:
        ``torch.utils.checkpoint`` where it was given a switch for calls that it makes without one;
        ``wcn_ckpt`` where its blocks are boundaries of this package; the name of a method, or of an
        attribute, that the model has for it; None if it has no gradient checkpointing of its own.
    """
    if switch_of(module) is not None:
        return OWN_CALLS
    if any(computes_as_boundary(child) for child in module.modules()):
        return "wcn_ckpt"
    if getattr(module, "supports_gradient_checkpointing", False):
        for method in ("gradient_checkpointing_enable", "activation_checkpointing_enable"):
            if callable(getattr(module, method, None)):
                return method
    if callable(getattr(module, "set_grad_checkpointing", None)):
        return "set_grad_checkpointing"
    for name in _ATTRIBUTES:
        if any(isinstance(vars(child).get(name), bool) for child in module.modules()):
            return name
    return None


def switch_own_flag(module: nn.Module, on: bool) -> None:
    """Switch a model's own gradient checkpointing, in the way that its users do.

    Args:
        module: A model for which :func:`own_flag` is not None.
        on: Whether it is to be on.
    """
    flag = own_flag(module)
    method: Callable[..., Any] | None = getattr(module, str(flag), None)
    calls = switch_of(module)
    if calls is not None:
        calls.on = on
    elif flag == "wcn_ckpt":
        configure_gradient_checkpointing(module, on)
    elif flag == "set_grad_checkpointing" and method is not None:
        method(on)
    elif str(flag).endswith("_enable"):
        family = str(flag).removesuffix("_enable")
        # Newer releases of Transformers warn of the older name.
        for name in (f"activation_checkpointing_{_END[on]}", f"{family}_{_END[on]}"):
            if callable(getattr(module, name, None)):
                getattr(module, name)()
                return
    else:
        for child in module.modules():
            if isinstance(vars(child).get(str(flag)), bool):
                setattr(child, str(flag), on)


_END = {True: "enable", False: "disable"}


def install(module: nn.Module, preserve: bool = False) -> Callable[[bool], None]:
    """Switch on the gradient checkpointing that a model has; an arm of the lab.

    Args:
        module: The newly built model, with its checkpointing off.
        preserve: Whether to make it safe with ``wcn_ckpt.preserve_replay_state`` first.

    Returns:
        The switch.
    """
    if preserve:
        import wcn_ckpt

        wcn_ckpt.preserve_replay_state(module)
    switch_own_flag(module, True)
    return lambda on: switch_own_flag(module, on)
