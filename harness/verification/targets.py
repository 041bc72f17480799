"""What a person names, made into models and inputs; runs on ranks."""

from __future__ import annotations

import inspect
import random
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from harness.importing import load
from harness.verification import libraries
from harness.verification.naming import Target, TargetError, name_of


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
