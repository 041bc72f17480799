"""Local ranks: processes that start once, form a gloo group and run many tasks."""

from __future__ import annotations

from harness.ranks.pool import RankPool, RankResult, RankStartError

__all__ = ["RankPool", "RankResult", "RankStartError"]
