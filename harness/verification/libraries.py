"""Models that a library knows by name: classes of Transformers, models of timm and torchvision."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
from typing import Any

import torch
from torch import nn

from harness.verification import tiny
from harness.verification.naming import TargetError

_IMAGES = 2
_SIDE = 64
"""Pixels a side, for a model that takes any size."""


def build(name: str) -> nn.Module:
    """Build a small model with random weights.

    Args:
        name: A class of Transformers such as ``BertModel``, a model of timm such as ``resnet18``,
            or a builder of ``torchvision.models``; the library may be put in front, as in
            ``timm.resnet18``.

    Raises:
        TargetError: If no installed library has it, or it cannot be built.
    """
    library, plain = _find(name)
    try:
        if library == "transformers":
            return tiny.build(plain)
        if library == "timm":
            return _import("timm").create_model(plain, pretrained=False)  # type: ignore[no-any-return]
        return getattr(_import("torchvision.models"), plain)(weights=None)  # type: ignore[no-any-return]
    except Exception as error:
        raise TargetError(
            f"{library} could not build {plain}: {type(error).__name__}: {error}; name a callable "
            "that builds it, as in 'file.py:build'"
        ) from error


def inputs(name: str, model: nn.Module) -> Any:
    """Make inputs for a model that :func:`build` made.

    Args:
        name: As for :func:`build`.
        model: The model.

    Raises:
        TargetError: If none are known for it.
    """
    library, plain = _find(name)
    if library == "transformers":
        return tiny.inputs(model)
    return torch.randn(_IMAGES, *_image_shape(model))


def _image_shape(model: nn.Module) -> tuple[int, int, int]:
    """Return channels, height and width: small, unless the model takes one size alone."""
    of_timm: dict[str, Any] = getattr(model, "pretrained_cfg", {})
    channels, *sides = of_timm.get("input_size", (3, _SIDE, _SIDE))
    if of_timm.get("fixed_input_size", False):
        return channels, *sides
    side = getattr(model, "image_size", _SIDE)  # torchvision's VisionTransformer has it
    return channels, side, side


def _find(name: str) -> tuple[str, str]:
    """Return the library that has a model, and the model's name in it."""
    prefix, _, plain = name.rpartition(".")
    libraries = {"transformers": _transformers_has, "timm": _timm_has, "torchvision": _vision_has}
    if plain == "py":
        raise TargetError(f"{name!r} is a file: name what is in it, '{name}:CALLABLE'")
    if prefix and prefix not in libraries:
        raise TargetError(
            f"{name!r} names nothing: write 'package.module:callable' with a colon, or "
            f"{', '.join(f'{library}.{plain}' for library in libraries)}"
        )
    missing = []
    for library, has in libraries.items():
        if prefix in ("", library):
            if importlib.util.find_spec(library) is None:
                missing.append(library)
            elif has(plain):
                return library, plain
    close = _close_names(plain) if "transformers" not in missing else []
    found = [library for library in libraries if library not in missing and prefix in ("", library)]
    looked = f"no model {plain!r}" + (f" in {' or '.join(found)}" if found else "")
    absent = f"; not installed: {', '.join(missing)}" if missing else ""
    absent += f"; did you mean {close[0]}?" if close else ""
    raise TargetError(
        f"{looked}{absent}; for a model of your own write 'package.module:callable' or "
        "'file.py:callable'"
    )


def _close_names(name: str) -> list[str]:
    return difflib.get_close_matches(name, dir(_import("transformers")), n=1, cutoff=0.8)


def _transformers_has(name: str) -> bool:
    found = getattr(_import("transformers"), name, None)
    return isinstance(found, type) and issubclass(found, nn.Module)


def _timm_has(name: str) -> bool:
    return bool(_import("timm").is_model(name))


def _vision_has(name: str) -> bool:
    return callable(getattr(_import("torchvision.models"), name, None))


def _import(module: str) -> Any:
    return importlib.import_module(module)
