"""Attention between the rows of a geometry, inside groups of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from wcn_ckpt.geometry import Geometry, PointOrdering, Serialization, serialize
from wcn_ckpt.geometry.origins import Origin, check_origin, relative_coordinates
from wcn_ckpt.geometry.serialization import resolve_order
from wcn_ckpt.nn.functional.grouped_attention import (
    RowGroups,
    group_rows,
    grouped_attention,
    patch_lengths,
)
from wcn_ckpt.nn.functional.voxel_rope import voxel_rope
from wcn_ckpt.nn.modules.base import G, SpatialModule
from wcn_ckpt.nn.modules.batched_linear import BatchedLinear
from wcn_ckpt.nn.modules.checks import (
    check_heads,
    check_number,
    check_positive,
    check_probability,
    check_ratio,
)

__all__ = ["BatchedLinear", "GroupedAttention", "PatchAttention", "resolved_order"]


class GroupedAttention(SpatialModule):
    """Multi-head self-attention in which a row sees the rows of its group.

    A subclass says which rows are a group. It computes in the dtype of the features; the last
    channels of a head that rotary embedding cannot use pass unrotated.

    Args:
        dim: channels C of input and output.
        num_heads: number of heads H.
        qkv_bias: whether queries, keys and values have a bias.
        qk_scale: factor of the products; `(C / H) ** -0.5` where it is None or 0.
        attn_drop: probability of dropping an attention weight while training.
        proj_drop: probability of dropping a channel of an output row while training.
        use_batched_qkv: whether `qkv` is a `BatchedLinear` (weight (3, C, C)) or an `nn.Linear`.
        use_rope: whether queries and keys are rotated by their cells.
        rope_base: see `wcn_ckpt.nn.functional.voxel_rope`.
        origin: `"cloud"` for results that do not depend on the other clouds; `"batch"` takes
            coordinates from the least corner of the whole batch, as WarpConvNet does.

    Raises:
        TypeError: a value is of the wrong type.
        ValueError: a value is out of range, or `dim` is not divisible by `num_heads`.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        qkv_bias: bool,
        qk_scale: float | None,
        attn_drop: float,
        proj_drop: float,
        use_batched_qkv: bool,
        use_rope: bool,
        rope_base: float,
        origin: Origin,
    ) -> None:
        """See the class."""
        super().__init__()
        check_heads(dim, num_heads, "dim")
        if qk_scale is not None:
            check_number(qk_scale, "qk_scale")
        self.dim = dim
        self.num_heads = num_heads
        self.scale = qk_scale or (dim // num_heads) ** -0.5
        self.attn_drop = check_probability(attn_drop, "attn_drop")
        self.use_rope = use_rope
        self.rope_base = check_ratio(rope_base, "rope_base")
        self.origin: Origin = check_origin(origin)
        self.qkv: nn.Module = (
            BatchedLinear(dim, dim, num_matrices=3, bias=qkv_bias)
            if use_batched_qkv
            else nn.Linear(dim, 3 * dim, bias=qkv_bias)
        )
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(check_probability(proj_drop, "proj_drop"))

    def resolve(self, x: Geometry, order: Any) -> Any:
        """Return an order that means the same groups of `x` whenever it is asked.

        What is random in it is drawn. A block asks before its checkpoint boundary and passes the
        answer in, so that a replay has the same groups.

        Args:
            x: the rows.
            order: what forward takes as its second argument.
        """
        raise NotImplementedError

    def extra_repr(self) -> str:
        """Show the settings that are not modules."""
        rope = f", rope_base={self.rope_base}" if self.use_rope else ""
        return f"dim={self.dim}, num_heads={self.num_heads}, origin={self.origin!r}{rope}"

    def attend(self, qkv: Tensor, groups: RowGroups, dropout_p: float, scale: float) -> Tensor:
        """Return what each row gathers from its group; assign or override it for another kernel.

        Args:
            qkv: (N, 3, H, d) queries, keys and values.
            groups: which rows belong together.
            dropout_p: probability that an attention weight is dropped; 0 in evaluation.
            scale: factor of the products.

        Returns:
            (N, H * d).
        """
        return grouped_attention(qkv, groups, dropout_p, scale)

    def _attend_inside(self, x: G, groups: RowGroups) -> G:
        coords = x.batched_coordinates
        qkv = self.qkv(x.feature_tensor).view(len(x), 3, self.num_heads, self.dim // self.num_heads)
        if self.use_rope:
            cells = relative_coordinates(coords, self.origin)
            turned = voxel_rope(qkv[:, :2], cells, self.rope_base)
            qkv = torch.cat([turned, qkv[:, 2:]], dim=1)
        dropout = self.attn_drop if self.training else 0.0
        out = self.attend(qkv, groups, dropout, self.scale)
        return x.replace_features(self.proj_drop(self.proj(out)))

    def _check_input(self, x: Geometry) -> None:
        if not isinstance(x, Geometry):
            raise TypeError(
                f"{type(self).__name__} takes a geometry (Points or Voxels), got {type(x).__name__}"
            )
        if x.num_channels != self.dim:
            raise ValueError(
                f"{type(self).__name__} takes {self.dim} channels, got {x.num_channels}"
            )
        if not x.dtype.is_floating_point:
            raise TypeError(f"features must be floating point, got {x.dtype}; cast them first")


class PatchAttention(GroupedAttention):
    """Attention inside patches: runs of `patch_size` rows along a space-filling curve.

    The last patch of a cloud is shorter, and no patch crosses clouds. Voxels are ordered by their
    cells, points by cells of unit length. Wu et al., "Point Transformer V3", CVPR 2024.

    Args:
        dim: channels of input and output.
        patch_size: rows of a full patch.
        num_heads: see `GroupedAttention`, as all others but `order`.
        qkv_bias: see there.
        qk_scale: see there.
        attn_drop: see there.
        proj_drop: see there.
        order: the curve where forward is given none.
        use_batched_qkv: see there.
        use_rope: see there.
        rope_base: see there.
        origin: see there.

    Raises:
        TypeError: a value is of the wrong type.
        ValueError: a value is out of range, or there is no such order.
    """

    def __init__(
        self,
        dim: int,
        patch_size: int,
        num_heads: int = 8,
        qkv_bias: bool = False,
        qk_scale: float | None = None,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        order: PointOrdering | str = PointOrdering.MORTON_XYZ,
        use_batched_qkv: bool = True,
        use_rope: bool = False,
        rope_base: float = 10000,
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
        check_positive(patch_size, "patch_size")
        self.patch_size = patch_size
        self.order = PointOrdering.parse(order)

    def resolve(self, x: Geometry, order: Any) -> PointOrdering | Serialization:
        """Return a curve, or the permutation that was drawn; see `resolve_order`.

        Raises:
            ValueError: there is no such order, or a permutation does not fit the rows.
        """
        return resolve_order(x, self.order if order is None else order)

    def forward(self, x: G, order: PointOrdering | Serialization | str | None = None) -> G:
        """Attend inside patches.

        Args:
            x: N rows with `dim` channels.
            order: the curve, or a permutation of the rows in which clouds keep their ranges.
                `RANDOM` draws one here; inside a checkpoint boundary pass one that was drawn
                outside, as the blocks do.

        Returns:
            The same rows with new features.

        Raises:
            TypeError: `x` is no geometry.
            ValueError: channels, the number of permuted rows or the name of the order do not fit.
        """
        self._check_input(x)
        chosen = self.resolve(x, order)
        if isinstance(chosen, Serialization):
            return self._attend_inside(x, self._patches(x, chosen))
        groups = x.batched_coordinates.cache.get(
            ("patches", chosen, self.origin, self.patch_size), lambda: self._patches(x, chosen)
        )
        return self._attend_inside(x, groups)

    def _patches(self, x: Geometry, order: PointOrdering | Serialization) -> RowGroups:
        if not isinstance(order, Serialization):
            order = serialize(x.coordinate_tensor, x.offsets, order, self.origin)
        return group_rows(patch_lengths(x.offsets, self.patch_size), order.permutation)


def resolved_order(attention: nn.Module, x: Geometry, order: Any) -> Any:
    """Return what a block passes to its attention instead of `order`, so that it can be run again.

    A module that stands in for an attention and has no `resolve` is passed `order` as it is.
    """
    resolve = getattr(attention, "resolve", None)
    return order if resolve is None else resolve(x, order)
