"""Softmax attention inside groups of rows of any sizes.

Groups are put into buckets of similar size, each group is padded to its bucket's width, and a
bucket is one call of `torch.nn.functional.scaled_dot_product_attention`. No group is padded to more
than twice its size.

A kernel for sequences of variable length, such as flash-attn's, can take the place of
`grouped_attention`: `RowGroups` has the rows group after group, and how many each group has.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from wcn_ckpt.geometry.offsets import offsets_from_counts

# CUDA kernels number the sequences of a batch along a grid axis that ends at 65535.
SEQUENCES_AT_ONCE = 1 << 15


@dataclass(frozen=True, eq=False)
class Bucket:
    """Groups that are padded to one width.

    Attributes:
        count: number of groups P.
        width: slots of each group W.
        mask: (P, 1, 1, W) bool, which slots are rows; None where all are.
    """

    count: int
    width: int
    mask: Tensor | None


@dataclass(frozen=True, eq=False)
class RowGroups:
    """Which rows of a batch belong together, and where they go when they are padded.

    Attributes:
        slots: (N,) int64 slot of each row, the slots of all buckets numbered through.
        buckets: the buckets, in the order of their slots.
        lengths: (P,) int64 rows of each group in that order, on the CPU.
    """

    slots: Tensor
    buckets: tuple[Bucket, ...]
    lengths: Tensor

    @property
    def rows(self) -> Tensor:
        """(N,) int64 the rows, group after group, in the order of `lengths`."""
        return self.slots.argsort()

    @property
    def num_slots(self) -> int:
        """Number of slots, padding included."""
        return sum(bucket.count * bucket.width for bucket in self.buckets)


def patch_lengths(offsets: Tensor, patch_size: int) -> Tensor:
    """Cut each cloud into runs of `patch_size` rows, the last one shorter.

    Args:
        offsets: (B + 1,) first row of each cloud and N.
        patch_size: rows of a full patch.

    Returns:
        (P,) int64 rows of each patch, cloud after cloud; an empty cloud has none.
    """
    rows = offsets.diff().to(torch.int64)
    patches = (rows + patch_size - 1) // patch_size
    lengths = patches.new_full((int(patches.sum()),), patch_size)
    last = patches.cumsum(0)[rows > 0] - 1
    lengths[last] = (rows - (patches - 1) * patch_size)[rows > 0]
    return lengths


def group_rows(lengths: Tensor, rows: Tensor) -> RowGroups:
    """Plan how groups of rows are padded.

    Args:
        lengths: (P,) int64 rows of each group, on the CPU, none of them zero.
        rows: (N,) int64 the rows, group after group.
    """
    if len(rows) == 0:
        return RowGroups(rows, (), lengths)
    widths = _bucket_widths(lengths)
    kinds = 2 * widths + (lengths == widths)
    order = kinds.argsort(stable=True)
    starts = torch.empty_like(widths)
    starts[order] = offsets_from_counts(widths[order], torch.int64)[:-1]
    firsts = offsets_from_counts(lengths, torch.int64)[:-1]
    # Row i of the groups, the first of whose group is row f, goes to slot start + (i - f).
    shifts = (starts - firsts).repeat_interleave(lengths)
    places = torch.arange(len(rows), device=lengths.device) + shifts
    slots = torch.empty_like(rows)
    slots[rows] = places.to(rows.device)

    buckets: list[Bucket] = []
    found, counts = torch.unique(kinds, return_counts=True)
    ends = counts.cumsum(0).tolist()
    for kind, count, end in zip(found.tolist(), counts.tolist(), ends, strict=True):
        for members in torch.split(order[end - count : end], SEQUENCES_AT_ONCE):
            width, is_full = divmod(kind, 2)
            mask = None if is_full else _key_mask(lengths[members], width, rows.device)
            buckets.append(Bucket(len(members), width, mask))
    return RowGroups(slots, tuple(buckets), lengths[order])


def grouped_attention(
    qkv: Tensor, groups: RowGroups, dropout_p: float = 0.0, scale: float | None = None
) -> Tensor:
    """Let each row attend to the rows of its group.

    Args:
        qkv: (N, 3, H, d) queries, keys and values of H heads.
        groups: which rows belong together.
        dropout_p: probability that an attention weight is dropped.
        scale: factor of the products; `d ** -0.5` by default.

    Returns:
        (N, H * d) in the dtype of `qkv`.
    """
    num_rows, _, heads, channels = qkv.shape
    if not groups.buckets:
        return qkv[:, 2].reshape(num_rows, heads * channels)
    padded = qkv.new_zeros(groups.num_slots, 3, heads, channels)
    padded = padded.index_copy(0, groups.slots, qkv)
    sizes = [bucket.count * bucket.width for bucket in groups.buckets]
    attended = []
    for bucket, slots in zip(groups.buckets, torch.split(padded, sizes), strict=True):
        # (P, W, 3, H, d) -> three of (P, H, W, d)
        sequences = slots.view(bucket.count, bucket.width, 3, heads, channels)
        query, key, value = sequences.permute(2, 0, 3, 1, 4).unbind(0)
        out = F.scaled_dot_product_attention(
            query, key, value, attn_mask=bucket.mask, dropout_p=dropout_p, scale=scale
        )
        attended.append(out.transpose(1, 2).reshape(-1, heads * channels))
    return torch.cat(attended).index_select(0, groups.slots)


def _bucket_widths(lengths: Tensor) -> Tensor:
    """Return the next power of two of each length, but never more than the greatest length."""
    widths = torch.ones_like(lengths)
    while bool((widths < lengths).any()):
        widths = torch.where(widths < lengths, 2 * widths, widths)
    return widths.clamp_(max=int(lengths.max()))


def _key_mask(lengths: Tensor, width: int, device: torch.device) -> Tensor:
    mask = torch.arange(width, device=lengths.device) < lengths.unsqueeze(1)
    return mask[:, None, None, :].to(device)
