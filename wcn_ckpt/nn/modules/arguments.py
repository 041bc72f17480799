"""What blocks and models say about arguments that they cannot work on."""

from __future__ import annotations

from torch import Tensor, nn

from wcn_ckpt.geometry import Geometry, Voxels
from wcn_ckpt.geometry.autocast import autocast_dtype
from wcn_ckpt.nn.modules.checks import check_positive, check_ratio


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


def check_heads(channels: int, num_heads: int) -> None:
    """Check that channels can be shared evenly among heads.

    Raises:
        TypeError: a number is no integer.
        ValueError: a number is not positive, or the channels are not divisible.
    """
    check_positive(channels, "channels")
    check_positive(num_heads, "num_heads")
    if channels % num_heads:
        raise ValueError(
            f"channels={channels} must be divisible by num_heads={num_heads}; "
            f"{num_heads} heads of equal width need a multiple of {num_heads} channels"
        )


def check_count(value: int, name: str) -> None:
    """Check a number of things of which there may be none.

    Raises:
        TypeError: it is no integer.
        ValueError: it is negative.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if value < 0:
        raise ValueError(f"{name} must not be negative, got {value}")


def hidden_width(channels: int, mlp_ratio: float) -> int:
    """Return the width `int(channels * mlp_ratio)` inside a feed-forward network.

    Raises:
        TypeError: a number has the wrong type.
        ValueError: a number is not positive and finite, or the width is below 1.
    """
    check_positive(channels, "channels")
    width = int(channels * check_ratio(mlp_ratio, "mlp_ratio"))
    if width < 1:
        raise ValueError(
            f"mlp_ratio={mlp_ratio} leaves no channel of {channels} inside the feed-forward "
            "network; use a larger ratio"
        )
    return width
