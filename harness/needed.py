"""What the lab needs besides torch, and what to say where it is missing."""

from __future__ import annotations

import importlib.util

_PACKAGES = (
    *("covertable", "deepdiff", "jinja2", "matplotlib", "numpy", "plyfile", "pypcd4", "rich"),
    *("typer",),
)
"""What the extra ``lab`` installs."""


def what_is_missing() -> str | None:
    """Return how to install what the lab needs, if it is not there."""
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if not missing:
        return None
    return (
        f"ckpt-lab needs the extra 'lab' ({', '.join(missing)} not found); install it with:\n"
        '    pip install "wcn-ckpt[lab]"'
    )
