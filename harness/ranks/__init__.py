"""Ranks: processes that start once, form a process group and run many tasks."""

from __future__ import annotations

from harness.ranks.launch import Ranks
from harness.ranks.pool import BACKENDS, MOST_RANKS, RankPool, RankResult, RankStartError

__all__ = ["BACKENDS", "MOST_RANKS", "RankPool", "RankResult", "RankStartError", "Ranks"]
