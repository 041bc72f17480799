"""Names of what is verified: checked, made of callables, and shown. Nothing here imports torch."""

from __future__ import annotations

import importlib.util
import re
import sys
from typing import Any

from harness.importing import check_source

Target = Any
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


def error_text(error: BaseException) -> str:
    """Return the type of an error, and the first line of its message if it has one."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def name_of(target: Target) -> str:
    """Return a target as a person reads it."""
    if isinstance(target, str):
        return target
    name = getattr(target, "__qualname__", None) or type(target).__name__
    if "<" in name:
        return "the model"
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
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _reached(module: Any, name: str) -> Any:
    for part in name.split("."):
        module = getattr(module, part, None)
    return module
