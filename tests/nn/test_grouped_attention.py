"""Attention inside groups of any sizes against dense attention with a mask."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from tests.nn.attention_oracle import masked_attention
from wcn_ckpt.nn.functional import grouped_attention as module
from wcn_ckpt.nn.functional.grouped_attention import (
    RowGroups,
    group_rows,
    grouped_attention,
    patch_lengths,
)

sizes = st.lists(st.integers(1, 40), min_size=1, max_size=12)


def shuffled(lengths: list[int], seed: int = 0) -> tuple[RowGroups, list[int], Tensor]:
    """Return groups of scattered rows, the group of each row, and the rows group after group."""
    rows = torch.randperm(sum(lengths), generator=torch.Generator().manual_seed(seed))
    groups = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    owners = torch.empty_like(groups)
    owners[rows] = groups
    return group_rows(torch.tensor(lengths), rows), owners.tolist(), rows


def heads(count: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 3, 2, 4, dtype=dtype, generator=generator)


@given(lengths=sizes)
@settings(derandomize=True, max_examples=30, deadline=None)
def test_equals_dense_attention_with_a_mask(lengths: list[int]) -> None:
    groups, owners, _ = shuffled(lengths)
    ours, theirs = (heads(sum(lengths)).requires_grad_() for _ in range(2))
    seeds = torch.randn(sum(lengths), 8, dtype=torch.float64)

    out, expected = grouped_attention(ours, groups), masked_attention(theirs, owners)

    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(
        *(torch.autograd.grad(y, x, seeds)[0] for y, x in ((out, ours), (expected, theirs)))
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_computes_in_the_dtype_of_the_rows(dtype: torch.dtype) -> None:
    lengths = [1, 17, 40, 3, 64]
    groups, owners, _ = shuffled(lengths)
    qkv = heads(sum(lengths), dtype)

    out = grouped_attention(qkv, groups, scale=0.3)

    assert out.dtype == dtype
    # Values, weights and their sum are each rounded once or twice.
    bound = 8 * torch.finfo(dtype).eps * float(qkv[:, 2].abs().max())
    torch.testing.assert_close(
        out.double(), masked_attention(qkv, owners, scale=0.3), atol=bound, rtol=0
    )


def test_gradients_are_derivatives() -> None:
    groups, _, _ = shuffled([1, 5, 3, 8])
    qkv = heads(17).requires_grad_()

    assert torch.autograd.gradcheck(lambda rows: grouped_attention(rows, groups), qkv)


@given(lengths=sizes)
@settings(derandomize=True, max_examples=30, deadline=None)
def test_padding_at_most_doubles_the_rows(lengths: list[int]) -> None:
    groups, _, _ = shuffled(lengths)

    assert sum(lengths) <= groups.num_slots < 2 * sum(lengths)
    assert len(groups.slots.unique()) == sum(lengths)
    for bucket in groups.buckets:
        if bucket.mask is None:
            assert bucket.width in lengths
        else:
            assert bucket.mask.shape == (bucket.count, 1, 1, bucket.width)
            assert not bucket.mask.all()


def test_calls_do_not_grow_with_the_number_of_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    real = F.scaled_dot_product_attention

    def counted(*args: Any, **options: Any) -> Tensor:
        calls.append(args)
        return real(*args, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", counted)
    lengths = [1 + i % 64 for i in range(1000)]
    groups, _, _ = shuffled(lengths)

    grouped_attention(heads(sum(lengths), torch.float32), groups)

    assert len(calls) <= 2 * 7


def test_full_groups_need_no_mask() -> None:
    groups, _, _ = shuffled([48, 48, 16])

    assert [(b.count, b.width, b.mask) for b in groups.buckets] == [(1, 16, None), (2, 48, None)]


def test_many_groups_go_in_several_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = [3, 4, 3, 2, 4, 1, 3]
    whole, owners, rows = shuffled(lengths)
    monkeypatch.setattr(module, "SEQUENCES_AT_ONCE", 2)
    parts = group_rows(torch.tensor(lengths), rows)
    qkv = heads(sum(lengths))

    assert len(parts.buckets) > len(whole.buckets)
    assert max(bucket.count for bucket in parts.buckets) == 2
    torch.testing.assert_close(grouped_attention(qkv, parts), masked_attention(qkv, owners))


def test_what_is_not_finite_stays_in_its_group() -> None:
    groups, owners, _ = shuffled([5, 7, 6])
    qkv = heads(18)
    qkv[owners.index(1)] = float("nan")
    qkv.requires_grad_()

    out = grouped_attention(qkv, groups)
    clean = torch.tensor([owner != 1 for owner in owners])
    (gradient,) = torch.autograd.grad(out[clean].sum(), qkv)

    assert torch.equal(out.isfinite().all(dim=1), clean)
    assert gradient[clean].isfinite().all()


def test_dropped_weights_come_from_the_generator() -> None:
    groups, _, _ = shuffled([9, 30])
    qkv = heads(39)

    torch.manual_seed(0)
    first, second = (grouped_attention(qkv, groups, dropout_p=0.5) for _ in range(2))
    torch.manual_seed(0)

    assert not torch.equal(first, second)
    assert torch.equal(grouped_attention(qkv, groups, dropout_p=0.5), first)


def test_no_rows_attend_to_nothing() -> None:
    nothing = torch.zeros(0, dtype=torch.int64)
    qkv = heads(0).requires_grad_()

    out = grouped_attention(qkv, group_rows(nothing, nothing))

    assert out.shape == (0, 8)
    assert torch.autograd.grad(out.sum(), qkv)[0].shape == qkv.shape


@pytest.mark.parametrize(
    ("counts", "patch_size", "ends"),
    [
        ((3, 8, 29), 8, [3, 11, 19, 27, 35, 40]),
        ((0, 8, 0, 1, 0), 8, [8, 9]),
        ((5,), 1024, [5]),
        ((4, 2), 1, [1, 2, 3, 4, 5, 6]),
        ((0,), 4, []),
    ],
)
def test_the_last_patch_of_a_cloud_is_shorter(
    counts: tuple[int, ...], patch_size: int, ends: list[int]
) -> None:
    offsets = torch.tensor([0, *counts], dtype=torch.int32).cumsum(0)

    assert patch_lengths(offsets, patch_size).cumsum(0).tolist() == ends
