"""The loss of a step: over whatever a model returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from harness.importing import load
from harness.structures import dense


def default_loss(returned: Sequence[Tensor], generator: torch.Generator) -> Tensor:
    """Return the sum of the randomly weighted means of floating-point and complex outputs.

    The weights are random because a plain sum behind a BatchNorm has a gradient of nearly zero.

    Args:
        returned: Everything that a model returned.
        generator: Where the weights, uniform in [0, 1), are drawn from.

    Returns:
        The loss, shape ().

    Raises:
        ValueError: If nothing in ``returned`` is floating-point or complex.
    """
    plain = map(dense, returned)
    real = [torch.view_as_real(tensor) if tensor.is_complex() else tensor for tensor in plain]
    terms = [
        (tensor.float() * torch.rand(tensor.shape, generator=generator).to(tensor.device)).mean()
        for tensor in real
        if tensor.is_floating_point()
    ]
    if not terms:
        kinds = ", ".join(sorted({str(tensor.dtype) for tensor in returned})) or "no tensor at all"
        raise ValueError(
            "there is nothing to make a loss of: the model returned no floating-point tensor, but "
            f"{kinds}; give a loss with --loss module:function"
        )
    return torch.stack(terms).sum()


def own_loss(function: str | Callable[[Any], Any], output: Any) -> Tensor:
    """Return the loss that a function of the user's own makes of an output.

    Args:
        function: The function, or its importable name.
        output: What the model returned.

    Returns:
        The loss, shape ().

    Raises:
        TypeError: If it returns no tensor with one element.
    """
    loss = (load(function) if isinstance(function, str) else function)(output)
    name = function if isinstance(function, str) else getattr(function, "__name__", "given")
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        what = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"{loss!r:.100}"
        raise TypeError(f"the loss {name!r} must return a tensor with one element, got {what}")
    return loss.reshape(())
