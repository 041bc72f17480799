"""Attention inside the windows of a grid, or inside whole clouds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch

from wcn_ckpt.geometry import Geometry
from wcn_ckpt.geometry.coordinates import Triple, positive_triple
from wcn_ckpt.geometry.origins import Origin
from wcn_ckpt.geometry.windows import (
    WindowOffset,
    check_window_offset,
    resolve_window_offset,
    rows_by_window,
    window_shift,
)
from wcn_ckpt.nn.functional.grouped_attention import RowGroups, group_rows
from wcn_ckpt.nn.modules.attention import GroupedAttention
from wcn_ckpt.nn.modules.base import G

EncodingMethod = Literal["counting_sort", "ravel", "ravel_fast", "morton"]


class SpaceAttention(GroupedAttention):
    """Attention inside cubic windows of a cloud.

    A row's window is `floor((c - origin + shift) / window_size)`, with `shift` the fraction of the
    edge that the offset names, rounded to whole cells.

    Args:
        dim: channels of input and output.
        window_size: edge of a window in cells, one integer or one per axis; `"all"` makes each
            cloud one window.
        num_heads: see `GroupedAttention`, as all that are not named here.
        qkv_bias: see there.
        qk_scale: see there.
        attn_drop: see there.
        proj_drop: see there.
        offset: the offset where forward is given None: `"zero"`; `"x"`, `"y"`, `"z"`, `"xy"`,
            `"xz"`, `"yz"` or `"xyz"` for half an edge along those axes; `"random"`; or three
            fractions.
        combine_consecutive_ones: not supported: it would join rows of different windows.
        use_rope: see there.
        rope_base: see there.
        use_batched_qkv: see there.
        encoding_method: accepted for compatibility, without effect.
        origin: see there.

    Raises:
        TypeError: a value is of the wrong type.
        ValueError: a value is out of range or a name is unknown.
    """

    def __init__(
        self,
        dim: int,
        window_size: int | Sequence[int] | str | None = None,
        num_heads: int = 8,
        qkv_bias: bool = False,
        qk_scale: float | None = None,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        offset: WindowOffset | Sequence[float] = "zero",
        combine_consecutive_ones: bool = False,
        use_rope: bool = True,
        rope_base: float = 250,
        use_batched_qkv: bool = True,
        encoding_method: EncodingMethod = "counting_sort",
        origin: Origin = "cloud",
    ) -> None:
        """See the class."""
        super().__init__(
            dim,
            num_heads,
            qkv_bias,
            qk_scale,
            attn_drop,
            proj_drop,
            use_batched_qkv,
            use_rope,
            rope_base,
            origin,
        )
        if combine_consecutive_ones:
            raise ValueError(
                f"combine_consecutive_ones={combine_consecutive_ones!r} would let rows of "
                "different windows, even of different clouds, attend to each other; leave it False"
            )
        if encoding_method not in get_args(EncodingMethod):
            raise ValueError(
                f"encoding_method must be one of {list(get_args(EncodingMethod))}, got "
                f"{encoding_method!r}"
            )
        self.window_size = _parse_window_size(window_size)
        self.offset = check_window_offset(offset)

    def resolve(self, x: Geometry, order: Any) -> WindowOffset:
        """Return the name of an offset, or the fractions that were drawn.

        Raises:
            TypeError: it is neither a name nor a sequence of numbers.
            ValueError: there is no such name, or not three finite numbers.
        """
        return resolve_window_offset(self.offset if order is None else order)

    def forward(self, x: G, coord_offset: WindowOffset | Sequence[float] | None = "zero") -> G:
        """Attend inside windows.

        Args:
            x: N rows with `dim` channels.
            coord_offset: an offset as the constructor takes it; None for the constructor's.
                `"random"` draws one here; inside a checkpoint boundary pass fractions that were
                drawn outside, as the blocks do.

        Returns:
            The same rows with new features.

        Raises:
            TypeError: `x` is no geometry, or the offset is neither a name nor numbers.
            ValueError: channels do not fit, or there is no such offset.
        """
        self._check_input(x)
        offset = self.resolve(x, coord_offset)
        coords = x.batched_coordinates
        size = self.window_size
        if size is None:
            return self._attend_inside(x, coords.cache.get("clouds as groups", lambda: _clouds(x)))
        shift = window_shift(offset, size)

        def build() -> RowGroups:
            rows, counts = rows_by_window(coords, size, shift, self.origin)
            return group_rows(counts.cpu(), rows)

        # Offsets without a name are drawn at random, and would fill the cache.
        if not isinstance(offset, str):
            return self._attend_inside(x, build())
        key = ("windows", size, shift, self.origin)
        return self._attend_inside(x, coords.cache.get(key, build))


class AllAttention(SpaceAttention):
    """Attention between all rows of a cloud.

    The arguments are those of `SpaceAttention`; `window_size` is taken as `"all"`, and offsets
    have no effect.
    """

    def __init__(self, dim: int, window_size: object = "all", *args: Any, **kwargs: Any) -> None:
        """See the class."""
        super().__init__(dim, "all", *args, **kwargs)

    def resolve(self, x: Geometry, order: Any) -> Any:
        """Return the order as it is: it has no effect."""
        return order

    def forward(self, x: G, coord_offset: object = None) -> G:
        """Attend inside clouds.

        Args:
            x: N rows with `dim` channels.
            coord_offset: without effect.

        Raises:
            TypeError: `x` is no geometry.
            ValueError: channels do not fit.
        """
        return super().forward(x, "zero")


def _parse_window_size(window_size: int | Sequence[int] | str | None) -> Triple | None:
    if window_size == "all":
        return None
    if window_size is None or isinstance(window_size, str):
        raise ValueError(
            "window_size must be the edge of a window in cells, one integer or three, or 'all', "
            f"got {window_size!r}"
        )
    return positive_triple(window_size, "window_size")


def _clouds(x: G) -> RowGroups:
    lengths = x.offsets.diff().to(torch.int64)
    return group_rows(lengths[lengths > 0], torch.arange(len(x), device=x.device))
