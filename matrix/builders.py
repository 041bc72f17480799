"""Factories of subjects whose constructors start with zeros, or take the axes in other ways."""

from __future__ import annotations

import pkgutil
from typing import Any

import torch
from torch import nn


def awake(of: str, **arguments: Any) -> nn.Module:
    """Build a module in which no layer starts at zero.

    Behind a layer of zeros every gradient is zero, and none could be wrong.

    Args:
        of: Importable name of its class.
        **arguments: Its keyword arguments.

    Returns:
        The module; parameters that were all zero are small random numbers.
    """
    module: nn.Module = pkgutil.resolve_name(of)(**arguments)
    with torch.no_grad():
        for parameter in module.parameters():
            if not parameter.any():
                parameter.normal_(std=0.3)
    return module


def attention_block(
    of: str, fixed_order: str, shuffle_orders: bool = False, **arguments: Any
) -> nn.Module:
    """Build a block that attends along a curve, in windows or in whole clouds.

    Args:
        of: Importable name of its class.
        fixed_order: The curve, or the offset of the windows.
        shuffle_orders: Whether each forward draws its own instead.
        **arguments: Further keyword arguments of the class.

    Returns:
        The block.
    """
    return awake(of, order="random" if shuffle_orders else fixed_order, **arguments)


def sparse_vae(
    of: str, num_blocks: tuple[int, ...], use_checkpoint: bool = False, **arguments: Any
) -> nn.Module:
    """Build an encoder or decoder of TRELLIS.2; its stages are of ConvNeXt blocks.

    Args:
        of: Importable name of its class.
        num_blocks: Blocks of each stage.
        use_checkpoint: Passed to every block, since the class has no such argument.
        **arguments: Further keyword arguments of the class.

    Returns:
        The model.
    """
    return awake(
        of,
        num_blocks=num_blocks,
        block_type=["SparseConvNeXtBlock3d"] * len(num_blocks),
        block_args=[{"use_checkpoint": use_checkpoint}] * len(num_blocks),
        **arguments,
    )


def dual_grid_decoder(**arguments: Any) -> nn.Module:
    """Build a decoder of dual grids whose choice of voxels is not trained.

    Its outputs do not depend on ``to_subdiv`` in a way that has a gradient, and DDP refuses
    parameters that get none.

    Args:
        **arguments: As for :func:`sparse_vae`.

    Returns:
        The model.
    """
    model = sparse_vae(**arguments)
    for name, parameter in model.named_parameters():
        if "to_subdiv" in name:
            parameter.requires_grad_(False)
    return model
