"""The lab: runs the cases of a matrix on local ranks and judges what each rank saw."""

from __future__ import annotations
