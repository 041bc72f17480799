"""What a person names, made into models and inputs; runs on ranks."""

from __future__ import annotations

import inspect
import random
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from harness.importing import check_source, load
from harness.verification import libraries

Target = str | Callable[..., Any] | Any
"""An importable name, a name that a library knows, a callable, or a value."""

_PLAIN_NAME = re.compile(r"[A-Za-z_][\w.]*")


class TargetError(ValueError):
    """What was named cannot be made into a model or inputs; the message is one clear line."""


def check_target(text: str, option: str) -> None:
    """Refuse a name that cannot be one, without importing anything.

    Args:
        text: What was typed.
        option: Where it was typed, for the message.

    Raises:
        TargetError: If it is no name, or its module or file is not there.
    """
    if ":" in text:
        try:
            check_source(text)
        except ValueError as error:
            raise TargetError(f"{option}: {error}") from None
    elif not _PLAIN_NAME.fullmatch(text):
        raise TargetError(
            f"{option}: {text!r} names nothing; write 'package.module:callable', 'file.py:name', "
            "or the name of a class of Transformers or of a model of timm or torchvision"
        )


def build_model(target: Target) -> nn.Module:
    """Build the model that a target names.

    Args:
        target: What was named. A callable that takes a ``seed`` gets 0.

    Returns:
        A new model.

    Raises:
        TargetError: If it cannot be built.
    """
    if isinstance(target, str) and ":" not in target:
        return libraries.build(target)
    made = _called(_loaded(target, "TARGET"), 0, "TARGET")
    if not isinstance(made, nn.Module):
        raise TargetError(
            f"TARGET {name_of(target)} must give a torch.nn.Module, got {made!r:.100} of type "
            f"{type(made).__name__}"
        )
    return made


def build_inputs(target: Target | None, model_target: Target, seed: int) -> Any:
    """Make the inputs that a target names.

    Args:
        target: What was named: a callable, which gets ``seed`` if it takes one, or a value. None
            where the library of the model knows inputs for it.
        model_target: What the model was named by.
        seed: Seed of the draw; torch's, Python's and NumPy's generators are seeded with it too.

    Returns:
        The inputs: a tuple of arguments, a mapping of keywords, or the one argument.

    Raises:
        TargetError: If they cannot be made.
    """
    with torch.random.fork_rng(devices=[]):
        state, numpy = random.getstate(), sys.modules.get("numpy")
        torch.manual_seed(seed)
        random.seed(seed)
        if numpy is not None:
            kept = numpy.random.get_state()
            numpy.random.seed(seed)
        try:
            if target is not None:
                return _called(_loaded(target, "--inputs"), seed, "--inputs")
            if isinstance(model_target, str) and ":" not in model_target:
                return libraries.inputs(model_target, build_model(model_target))
        finally:
            random.setstate(state)
            if numpy is not None:
                numpy.random.set_state(kept)
    raise TargetError("--inputs is missing: name the inputs of the model's forward")


def name_of(target: Target) -> str:
    """Return a target as a person reads it."""
    if isinstance(target, str):
        return target
    name = getattr(target, "__qualname__", None) or type(target).__name__
    return f"{getattr(target, '__module__', '')}:{name}".lstrip(":")


def importable_name(target: Any) -> str | None:
    """Return a name under which other processes find a callable; None where they cannot.

    Args:
        target: A function or class.
    """
    name = getattr(target, "__qualname__", None)
    module = getattr(target, "__module__", None)
    if name is None or module is None or "<" in name:
        return None
    found = sys.modules.get(module)
    if module != "__main__" and getattr(found, "__spec__", None) is not None:
        if _reached(found, name) is target and _is_importable(module):
            return f"{module}:{name}"
    path = getattr(found, "__file__", None)
    if path and path.endswith(".py") and _reached(found, name) is target:
        return f"{path}:{name}"
    return None


def _is_importable(module: str) -> bool:
    import importlib.util

    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _reached(module: Any, name: str) -> Any:
    for part in name.split("."):
        module = getattr(module, part, None)
    return module


def _loaded(target: Target, option: str) -> Any:
    if not isinstance(target, str):
        return target
    try:
        return load(target)
    except Exception as error:
        raise TargetError(f"{option}: {type(error).__name__}: {error}") from error


def _called(value: Any, seed: int, option: str) -> Any:
    if not callable(value) or isinstance(value, nn.Module):
        return value
    try:
        return value(seed=seed) if _takes_seed(value) else value()
    except Exception as error:
        raise TargetError(
            f"{option}: {name_of(value)} raised {type(error).__name__}: {error}"
        ) from error


def _takes_seed(function: Callable[..., Any]) -> bool:
    try:
        parameters: Mapping[str, inspect.Parameter] = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False
    return "seed" in parameters
