"""The command that continues a run."""

from __future__ import annotations

import shlex
from dataclasses import fields
from pathlib import Path
from typing import Any

from harness.request import RunRequest
from harness.shards import Shard

_OPTIONS = {"subjects": "--subject", "axes": "--axis"}
"""Options whose names are not those of their fields."""

_LEFT_OUT = ("out", "resume", "stop_early")


def resume_command(request: RunRequest, folder: Path, *, torchrun: bool = False) -> str:
    """Return what to type to continue a run.

    Args:
        request: The options of the run.
        folder: Its results folder.
        torchrun: Whether torchrun started the ranks; its own options are not known here.

    Returns:
        The command, quoted for a shell.
    """
    words = ["torchrun", "...", "-m", "harness"] if torchrun else ["ckpt-lab"]
    words.append("run")
    for item in fields(request):
        value = getattr(request, item.name)
        if item.name not in _LEFT_OUT and value != item.default:
            option = _OPTIONS.get(item.name, f"--{item.name.replace('_', '-')}")
            words += _typed(option, value)
    return shlex.join([*words, "--resume", "--out", str(folder)])


def _typed(option: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [option if value else option.replace("--", "--no-", 1)]
    if isinstance(value, tuple):
        return [word for part in value for word in (option, str(part))]
    return [option, value.text if isinstance(value, Shard) else str(value)]
