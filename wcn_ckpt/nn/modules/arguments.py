"""Checks of the arguments that blocks and models are called with."""

from __future__ import annotations

from torch import Tensor, nn

from wcn_ckpt.geometry import Geometry, Voxels
from wcn_ckpt.geometry.autocast import autocast_dtype


def check_voxels(module: nn.Module, x: object, channels: int, name: str = "x") -> None:
    """Check that an argument is voxels with so many floating point channels.

    Raises:
        TypeError: it is not `Voxels`, or its features are not floating point.
        ValueError: the number of channels is another one.
    """
    if not isinstance(x, Voxels):
        raise TypeError(
            f"{name} of {type(module).__name__} must be Voxels, got {type(x).__name__}; "
            "points become voxels with Points.to_voxels(voxel_size)"
        )
    check_geometry(module, x, channels, name)


def check_geometry(module: nn.Module, x: object, channels: int, name: str = "x") -> None:
    """Check that an argument is a geometry with so many floating point channels.

    Raises:
        TypeError: it is no geometry, or its features are not floating point.
        ValueError: the number of channels is another one.
    """
    if not isinstance(x, Geometry):
        raise TypeError(
            f"{name} of {type(module).__name__} must be Voxels, got {type(x).__name__}; "
            "a tensor of features becomes one with Voxels(coordinates, features, offsets)"
        )
    if x.num_channels != channels:
        raise ValueError(
            f"{name} of {type(module).__name__} must have {channels} channels, got {x.num_channels}"
        )
    if not x.dtype.is_floating_point:
        raise TypeError(
            f"features of {name} must be floating point, got {x.dtype}; cast them first"
        )


def check_tensor(
    module: nn.Module, x: object, shape: tuple[int | str, ...], name: str = "x"
) -> None:
    """Check that an argument is a floating point tensor of a shape.

    Args:
        module: whose argument it is.
        x: the argument.
        shape: a number where the size must be that number, a letter where it is free.
        name: name of the argument.

    Raises:
        TypeError: it is no tensor, or not floating point.
        ValueError: the shape is another one.
    """
    if not isinstance(x, Tensor):
        raise TypeError(
            f"{name} of {type(module).__name__} must be a tensor, got {type(x).__name__}"
        )
    fits = x.ndim == len(shape) and all(
        isinstance(want, str) or have == want for have, want in zip(x.shape, shape, strict=True)
    )
    if not fits:
        wanted = ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "")
        raise ValueError(
            f"{name} of {type(module).__name__} must have shape ({wanted}), got {tuple(x.shape)}"
        )
    if not x.is_floating_point():
        raise TypeError(f"{name} must be floating point, got {x.dtype}; cast it first")


def check_same_dtype(module: nn.Module, x: Tensor, weight: Tensor, name: str = "x") -> None:
    """Check that an input and the weight that it meets first agree, unless autocast casts both.

    Raises:
        TypeError: the dtypes differ.
    """
    if x.dtype != weight.dtype and autocast_dtype(x) is None:
        raise TypeError(
            f"{name} is {x.dtype} but the first layer of {type(module).__name__} is "
            f"{weight.dtype}; cast the input, or run under torch.autocast"
        )
