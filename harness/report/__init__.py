"""Reports of a run, for people and for other programs."""

from __future__ import annotations
