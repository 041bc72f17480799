"""What verify was asked: checked and made ready for ranks. Nothing here imports torch."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class VerifyRequest:
    """The options of verify."""

    target: Any
    """What the model is named by: a name, a callable, or a model's class."""
    inputs: Any = None
    """What its inputs are named by; None where the model's library knows some."""
    ranks: int = 2
    """Number of local ranks."""
    boundaries: tuple[str, ...] = ()
    """Classes or patterns of paths that become boundaries."""
    axes: tuple[str, ...] = ()
    """``name=v1,v2``; an axis that is not named keeps all its values."""
    loss: Any = None
    """A ``function(output)``, or its importable name."""
    preserve: bool = False
    """Judge the model's own checkpointing after ``preserve_replay_state``."""
    suggest: bool = False
    """Measure candidates for boundaries too."""
    budget: int | None = None
    """Bytes that may be kept for backward; picks among the suggested boundaries."""
    out: Path | None = None
    """Folder that the reports are written to; None for none."""
    seed: int = 0
    device: str = "cpu"
    case_timeout: float = 120.0
    """Seconds until a case counts as hung."""

    @property
    def asked(self) -> dict[str, Any]:
        """What was asked, for ``run.json``."""
        return {"command": self.command, "axes": list(self.axes)}

    @property
    def command(self) -> str:
        """The command line that asks the same, without options that only report."""
        words = ["ckpt-lab", "verify", str(self.target)]
        for option, value in (
            ("--inputs", self.inputs),
            ("--loss", self.loss),
            ("--ranks", self.ranks if self.ranks != 2 else None),
            ("--seed", self.seed or None),
            ("--device", self.device if self.device != "cpu" else None),
        ):
            if value is not None:
                words += [option, str(value)]
        for boundary in self.boundaries:
            words += ["--boundary", boundary]
        if self.preserve:
            words.append("--preserve")
        return shlex.join(words)


_UNITS = {"": 1, "B": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def parse_bytes(text: str) -> int:
    """Return the number of bytes in a text such as ``8GiB``, ``500MB`` or ``1e6``.

    ``KB``, ``MB`` and ``GB`` are powers of 1000, ``KiB``, ``MiB`` and ``GiB`` of 1024.

    Raises:
        ValueError: If it is no positive size.
    """
    body = text.strip()
    number = body.rstrip("iBbKkMmGgTt")
    unit = body[len(number) :].strip()
    letter = unit[:1].upper()
    binary = unit[1:2].lower() == "i"
    try:
        factor = _UNITS[letter]
        if letter not in ("", "B") and not binary:
            factor = 1000 ** ("KMGT".index(letter) + 1)
        size = int(float(number) * factor)
    except (KeyError, ValueError, OverflowError):
        size = 0
    if size <= 0 or unit.lower() not in _SPELLED:
        raise ValueError(f"{text!r} is no size; write it like 8GiB, 500MB or 1000000")
    return size


_SPELLED = {"", "b", *(f"{letter}{rest}" for letter in "kmgt" for rest in ("", "b", "ib"))}
