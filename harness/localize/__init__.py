"""Finds the first submodule whose replay differs from its logical forward, and why.

Runs only where the plain judgement has found a difference: the judged arm runs once more with
hooks on every submodule (`recorder`, `torch_checkpoint`, `orphans`), each replay is compared with
its forward (`divergence`), what surrounded both decides the cause (`diagnosis`, `writes`), and
ranks tell each other what they found (`locate`).
"""

from __future__ import annotations

from harness.localize.locate import locate, share
from harness.localize.located import Localization, Located
from harness.localize.recorder import Recorder

__all__ = ["Localization", "Located", "Recorder", "locate", "share"]
