"""Weights of the original TRELLIS.2 models."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn


def convert_weights(state: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Bring sparse convolution weights into the layout of `SparseConv3d`.

    Args:
        state: the original state, with convolution weights (C_out, K1, K2, K3, C_in).
        model: the model that will load it; it tells which weights are sparse convolutions.

    Returns:
        The state with those weights as (K1 * K2 * K3, C_in, C_out) and all others as they are.
    """
    own = model.state_dict()
    return {
        name: _sparse_layout(weight)
        if weight.ndim == 5 and name.endswith(".weight") and name in own and own[name].ndim == 3
        else weight
        for name, weight in state.items()
    }


def _sparse_layout(weight: Tensor) -> Tensor:
    return weight.permute(1, 2, 3, 4, 0).flatten(0, 2).contiguous()
