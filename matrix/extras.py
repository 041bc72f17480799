"""Imports of packages that only the lab needs."""

from __future__ import annotations

import importlib
from typing import Any


def import_extra(module: str, purpose: str, extra: str = "lab") -> Any:
    """Import a module of an extra.

    Args:
        module: its full name.
        purpose: what needs it, for the message.
        extra: the extra that installs it.

    Raises:
        ModuleNotFoundError: it is not installed; the message names the extra.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{purpose} needs {module.partition('.')[0]}, which is not installed; "
            f"install it with: pip install 'wcn-ckpt[{extra}]'",
            name=error.name,
        ) from error
