"""Imports of packages that only the lab needs."""

from __future__ import annotations

import importlib
from typing import Any


def import_extra(module: str, purpose: str) -> Any:
    """Import a module of the extra `lab`.

    Args:
        module: its full name.
        purpose: what needs it, for the message.

    Raises:
        ModuleNotFoundError: it is not installed; the message names the extra.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{purpose} needs {module.partition('.')[0]}, which is not installed; "
            "install it with: pip install 'wcn-ckpt[lab]'",
            name=error.name,
        ) from error
