"""What a person names, made into models and inputs; runs on ranks."""

from __future__ import annotations

import copy
import inspect
import random
import sys
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from harness.importing import load
from harness.verification import libraries
from harness.verification.naming import Target, TargetError, error_text, name_of

_MADE: weakref.WeakSet[nn.Module] = weakref.WeakSet()
"""Models that a callable returned, as long as they live."""


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
    named = _loaded(target, "TARGET")
    if isinstance(named, nn.Module):
        return copy.deepcopy(named)  # each arm trains one of its own
    made = _called(named, 0, "TARGET")
    if isinstance(made, nn.Module) and made in _MADE:
        raise TargetError(
            f"TARGET {name_of(target)} returned the same {type(made).__name__} twice; build a new "
            "one in each call, or name the model itself"
        )
    if isinstance(made, nn.Module):
        _MADE.add(made)
    else:
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
        text = str(error) if isinstance(error, ValueError) else error_text(error)
        raise TargetError(f"{option}: {text}") from error


def _called(value: Any, seed: int, option: str) -> Any:
    if not callable(value) or isinstance(value, nn.Module):
        return value
    try:
        return value(seed=seed) if _takes_seed(value) else value()
    except Exception as error:
        missing = _without_default(value)
        hint = (
            f"; it needs {', '.join(missing)}: name a function that takes nothing and makes it"
            if missing
            else ""
        )
        raise TargetError(f"{option}: {name_of(value)} raised {error_text(error)}{hint}") from error


def _takes_seed(function: Callable[..., Any]) -> bool:
    return "seed" in _parameters(function)


def _without_default(function: Callable[..., Any]) -> list[str]:
    """Return the parameters that a call must give; ``seed`` is given."""
    return [
        name
        for name, parameter in _parameters(function).items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        and name != "seed"
    ]


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}
