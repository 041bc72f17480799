"""Our checkpointing with one number moved by a small part, to see how small a fault is seen."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook
from torch.utils import _pytree as pytree

from harness.arms.checkpointed import install as install_checkpointed
from wcn_ckpt import is_replaying


def install(module: nn.Module, *, what: str, part: float) -> Callable[[bool], None]:
    """Checkpoint as usual; on the last rank, move one element of something.

    Args:
        module: The newly built subject.
        what: A key of `QUANTITIES`.
        part: By which part of itself the element is moved.

    Returns:
        A switch for all its boundaries.

    Raises:
        ValueError: If there is no such quantity.
    """
    if what not in QUANTITIES:
        raise ValueError(f"no quantity {what!r}; valid quantities: {', '.join(QUANTITIES)}")
    if int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1:
        QUANTITIES[what](module, part)
    return install_checkpointed(module)


def _move(tensor: Tensor, part: float) -> None:
    """Multiply the largest element by one plus the part, in the precision of the tensor."""
    flat = tensor.data.view(-1) if tensor.is_contiguous() else tensor.data.reshape(-1)
    flat[flat.abs().argmax()] *= 1 + part


def _moved(tensor: Tensor, part: float) -> Tensor:
    moved = tensor.clone()
    _move(moved, part)
    return moved


def _buffer(module: nn.Module, part: float) -> None:
    def moved(*_: Any) -> None:
        _move(next(b for b in module.buffers() if b.is_floating_point()), part)

    module.register_forward_hook(moved)


def _output(module: nn.Module, part: float) -> None:
    def moved(module: nn.Module, args: Any, output: Any) -> None:
        for leaf in pytree.tree_leaves(output):
            if isinstance(leaf, Tensor) and leaf.is_floating_point():
                _move(leaf.detach(), part)
                return

    module.register_forward_hook(moved)


def _gradient(module: nn.Module, part: float) -> None:
    def moved(gradient: Tensor) -> Tensor:
        return _moved(gradient, part)

    next(module.parameters()).register_hook(moved)  # type: ignore[no-untyped-call]


def _parameter(module: nn.Module, part: float) -> None:
    parameter = next(module.parameters())

    def moved(optimizer: Optimizer, *_: Any) -> None:
        if any(parameter is p for group in optimizer.param_groups for p in group["params"]):
            _move(parameter, part)
            handle.remove()

    handle = register_optimizer_step_post_hook(moved)


def _replayed_value(module: nn.Module, part: float) -> None:
    layer = next(child for child in module.modules() if not list(child.children()))

    def moved(layer: nn.Module, args: tuple[Any, ...]) -> Any:
        if not is_replaying():
            return None
        given = args[0]
        if isinstance(given, Tensor):
            return (_moved(given, part), *args[1:])
        return (given.replace_features(_moved(given.batched_features.tensor, part)), *args[1:])

    layer.register_forward_pre_hook(moved)


QUANTITIES: dict[str, Callable[[nn.Module, float], None]] = {
    "buffer": _buffer,
    "parameter": _parameter,
    "gradient": _gradient,
    "output": _output,
    "replayed value": _replayed_value,
}
"""What can be moved: after a forward, an optimizer step, or on the way back; or what the first
layer of a block is given in a replay."""
