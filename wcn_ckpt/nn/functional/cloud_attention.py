"""Attention inside each cloud of a batch of clouds of different length.

Rows of all clouds lie one after another, (T, H, d). They are padded to (B, H, L, d) with L the
longest cloud, and one call of `torch.nn.functional.scaled_dot_product_attention` serves them all.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from wcn_ckpt.geometry.offsets import as_offsets, batch_indices


class CloudPadding:
    """How the rows of B clouds are laid out in a padded (B, L, ...) tensor.

    Args:
        offsets: (B + 1,) int32 or int64 on the CPU.
        device: where the rows are.

    Attributes:
        batch_size: number of clouds B.
        length: rows L of the longest cloud, at least 1.
    """

    def __init__(self, offsets: Tensor, device: torch.device) -> None:
        """See the class."""
        counts = offsets.diff().long()
        self.batch_size = len(counts)
        self.length = max([1, *counts.tolist()])
        self._counts = counts
        self._slots: Tensor | None = None
        if any(count != self.length for count in counts.tolist()):
            clouds = torch.arange(self.batch_size, device=offsets.device)
            shift = clouds * self.length - offsets[:-1].long()
            owners = batch_indices(offsets, device)
            rows = torch.arange(len(owners), device=device)
            self._slots = rows + shift.to(device).index_select(0, owners)

    def pad(self, rows: Tensor) -> Tensor:
        """Return rows (T, ...) as (B, L, ...), zero where a cloud has no row."""
        shape = (self.batch_size, self.length, *rows.shape[1:])
        if self._slots is None:
            return rows.reshape(shape)
        padded = rows.new_zeros(self.batch_size * self.length, *rows.shape[1:])
        return padded.index_copy(0, self._slots, rows).reshape(shape)

    def unpad(self, padded: Tensor) -> Tensor:
        """Return the rows (T, ...) of a padded tensor (B, L, ...)."""
        rows = padded.flatten(0, 1)
        return rows if self._slots is None else rows.index_select(0, self._slots)

    def key_mask(self, device: torch.device) -> Tensor | None:
        """Return where keys are, (B, 1, 1, L) bool; `None` where all clouds are full.

        A cloud without keys shows one padded key: attention over it is zero where a softmax over
        nothing would not be a number.
        """
        if self._slots is None:
            return None
        seen = self._counts.clamp(min=1).to(device)
        places = torch.arange(self.length, device=device)
        return (places < seen.unsqueeze(1))[:, None, None, :]


def sparse_scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_offsets: Tensor,
    key_offsets: Tensor | None = None,
) -> Tensor:
    """Let the queries of each cloud attend to all keys of the same cloud, and to no other.

    The scale is `1 / sqrt(d)`; there is no dropout. A query of a cloud without keys gets zeros.
    Arguments and result are in the layout of variable-length attention kernels, so such a kernel
    can stand in for this function.

    Args:
        query: (T_q, H, d) floating point, cloud after cloud.
        key: (T_k, H, d).
        value: (T_k, H, e).
        query_offsets: (B + 1,) first query of each cloud, and T_q.
        key_offsets: (B + 1,) first key of each cloud, and T_k; those of the queries by default.

    Returns:
        (T_q, H, e) in the dtype of the operands (under autocast, in autocast's).

    Raises:
        TypeError: offsets are not integers.
        ValueError: offsets are malformed, numbers of clouds differ, or rows, heads or widths do not
            fit.
    """
    query_table = _as_table(query_offsets)
    key_table = query_table if key_offsets is None else _as_table(key_offsets)
    _check_operands(query, key, value, query_table, key_table)
    queries = CloudPadding(query_table, query.device)
    keys = queries if key_offsets is None else CloudPadding(key_table, key.device)
    out = F.scaled_dot_product_attention(
        queries.pad(query).transpose(1, 2),
        keys.pad(key).transpose(1, 2),
        keys.pad(value).transpose(1, 2),
        attn_mask=keys.key_mask(key.device),
    )
    return queries.unpad(out.transpose(1, 2))


def _as_table(offsets: Tensor) -> Tensor:
    """Check offsets; a batch of no cloud at all has the offsets `[0]`."""
    return offsets if offsets.tolist() == [0] else as_offsets(offsets)


def _check_operands(
    query: Tensor, key: Tensor, value: Tensor, query_offsets: Tensor, key_offsets: Tensor
) -> None:
    for name, operand, offsets in (
        ("query", query, query_offsets),
        ("key", key, key_offsets),
        ("value", value, key_offsets),
    ):
        if operand.ndim != 3:
            raise ValueError(f"{name} must have shape (rows, heads, d), got {tuple(operand.shape)}")
        if len(operand) != offsets[-1]:
            raise ValueError(
                f"{name} has {len(operand)} rows but its offsets end at {int(offsets[-1])}"
            )
    if query.shape[1:] != key.shape[1:] or key.shape[1] != value.shape[1]:
        raise ValueError(
            "query, key and value must have the same heads, and query and key the same width, got "
            f"{tuple(query.shape)}, {tuple(key.shape)} and {tuple(value.shape)}"
        )
    if len(query_offsets) != len(key_offsets):
        raise ValueError(
            f"queries come in {len(query_offsets) - 1} clouds and keys in {len(key_offsets) - 1}; "
            "both need the same clouds"
        )
