"""Attention written out: every row against every row, with a mask."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from wcn_ckpt.geometry import Geometry
from wcn_ckpt.nn.modules import BatchedLinear


def masked_attention(qkv: Tensor, groups: Sequence[object], scale: float | None = None) -> Tensor:
    """Return softmax attention between rows of equal group, (N, H * d), in float64.

    Args:
        qkv: (N, 3, H, d).
        groups: the group of each row.
        scale: factor of the products; `d ** -0.5` by default.
    """
    query, key, value = qkv.double().permute(1, 2, 0, 3)
    names = {name: number for number, name in enumerate(dict.fromkeys(groups))}
    numbers = torch.tensor([names[name] for name in groups])
    together = numbers[:, None] == numbers[None, :]
    products = query @ key.transpose(1, 2) * (scale or query.shape[-1] ** -0.5)
    weights = products.masked_fill(~together, float("-inf")).softmax(dim=-1)
    return (weights @ value).transpose(0, 1).flatten(1)


def patches_of(x: Geometry, permutation: Tensor, patch_size: int) -> list[tuple[int, int]]:
    """Return `(cloud, patch)` of each row, by walking along the permuted rows."""
    clouds = x.coords[:, 0].long().tolist()
    seen = dict.fromkeys(clouds, 0)
    patches: dict[int, tuple[int, int]] = {}
    for row in permutation.tolist():
        cloud = clouds[row]
        patches[row] = (cloud, seen[cloud] // patch_size)
        seen[cloud] += 1
    return [patches[row] for row in range(len(x))]


def project(qkv: nn.Module, x: Tensor, heads: int) -> Tensor:
    """Return queries, keys and values (N, 3, H, d) of a `BatchedLinear`, matrix by matrix."""
    assert isinstance(qkv, BatchedLinear)
    rows = torch.stack([x @ matrix for matrix in qkv.weight], dim=1)
    if qkv.bias is not None:
        rows = rows + qkv.bias.view(3, -1)
    return rows.view(len(x), 3, heads, -1)
