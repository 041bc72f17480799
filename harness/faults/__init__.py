"""Faults on purpose: checkpointing and blocks that are broken, each of which the lab must catch.

The catalogue is data: a fault says which arm and which subjects show it, under which axes, which
public report it stands for, and what the lab must find. Nothing here imports ``torch``; the broken
arms and blocks do, on the ranks.
"""

from __future__ import annotations

from harness.faults.catalogue import FAULTS
from harness.faults.fault import FAMILIES, Fault, Sign

__all__ = ["FAMILIES", "FAULTS", "Fault", "Sign"]
