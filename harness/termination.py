"""Signals that ask the program to end: they end it as an interrupt does, with its reports."""

from __future__ import annotations

import signal
from types import FrameType
from typing import NoReturn


def interrupt_when_terminated() -> None:
    """Raise ``KeyboardInterrupt`` on SIGTERM, as job schedulers send it, and on SIGHUP.

    A signal that the program was started to ignore (``nohup``) stays ignored.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt(signal.Signals(number).name)
