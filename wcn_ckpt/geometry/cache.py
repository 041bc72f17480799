"""Tables derived from coordinates, kept for as long as the coordinates live unchanged.

A table (sort order, kernel map, coarser sites) is a pure function of coordinates, so a cache may
be emptied at any time without changing a result.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

T = TypeVar("T")

SPATIAL_CACHE = "_spatial_cache"


def lasting_attributes(attributes: dict[str, Any]) -> dict[str, Any]:
    """Return a geometry's free attributes without the tables that depend on its coordinates."""
    return {name: value for name, value in attributes.items() if name != SPATIAL_CACHE}


class TableCache:
    """Remembers tables of one coordinate tensor, alone or paired with another one's.

    Writing into a coordinate tensor in place makes its tables stale; they are built again.
    Partners are held weakly: a pair's table goes when either side does.
    """

    def __init__(self, tensor: Tensor) -> None:
        """Start empty for the coordinates `tensor`."""
        self._tensor = tensor
        self._own: dict[Hashable, Any] = {}
        self._paired: WeakKeyDictionary[TableCache, dict[Hashable, Any]] = WeakKeyDictionary()

    def get(self, key: Hashable, build: Callable[[], T]) -> T:
        """Return the table `key`, calling `build` where it is missing or stale."""
        return _look_up(self._own, key, self._version(), build)

    def get_paired(self, partner: TableCache, key: Hashable, build: Callable[[], T]) -> T:
        """Return the table `key` of these coordinates together with the partner's."""
        versions = (self._version(), partner._version())
        return _look_up(self._paired.setdefault(partner, {}), key, versions, build)

    def clear(self) -> None:
        """Forget every table."""
        self._own.clear()
        self._paired.clear()

    def _version(self) -> int:
        # An inference tensor has no version counter, and only inference mode can write to it.
        return 0 if self._tensor.is_inference() else self._tensor._version


def _look_up(
    tables: dict[Hashable, Any], key: Hashable, version: Hashable, build: Callable[[], T]
) -> T:
    known = tables.get(key)
    if known is None or known[0] != version:
        # A table built under inference mode could not be saved for a later backward.
        with torch.inference_mode(False), torch.no_grad():
            known = tables[key] = (version, build())
    table: T = known[1]
    return table
