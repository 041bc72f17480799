"""Attention inside clouds against dense attention with a mask, in float64."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from wcn_ckpt.nn.functional import sparse_scaled_dot_product_attention as attend
from wcn_ckpt.nn.functional.cloud_attention import CloudPadding


def offsets(sizes: list[int]) -> Tensor:
    return torch.tensor([0, *accumulate(sizes)])


def heads(rows: int, width: int = 4, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 2, width, generator=generator, dtype=torch.float64).to(dtype)


def masked_softmax(
    query: Tensor, key: Tensor, value: Tensor, queries: list[int], keys: list[int]
) -> Tensor:
    """All queries on all keys in float64, with other clouds masked out."""
    owner = torch.arange(len(queries)).repeat_interleave(torch.tensor(queries))
    key_owner = torch.arange(len(keys)).repeat_interleave(torch.tensor(keys))
    allowed = owner.unsqueeze(1) == key_owner
    scores = torch.einsum("qhd,khd->hqk", query.double(), key.double()) / query.shape[-1] ** 0.5
    weights = scores.masked_fill(~allowed, -torch.inf).softmax(dim=-1)
    return torch.einsum("hqk,khe->qhe", weights, value.double())


CLOUDS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=5)


@given(CLOUDS)
@settings(max_examples=40, deadline=None, derandomize=True)
def test_equals_masked_attention(clouds: list[tuple[int, int]]) -> None:
    queries, keys = [q for q, _ in clouds], [max(k, 1) for _, k in clouds]
    operands = [
        heads(sum(queries), 4, 1).requires_grad_(),
        heads(sum(keys), 4, 2).requires_grad_(),
        heads(sum(keys), 6, 3).requires_grad_(),
    ]

    out = attend(*operands, offsets(queries), offsets(keys))

    expected = masked_softmax(*operands, queries, keys)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)
    for mine, theirs in zip(
        torch.autograd.grad(out.square().sum(), operands),
        torch.autograd.grad(expected.square().sum(), operands),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-11)


@given(CLOUDS)
@settings(max_examples=20, deadline=None, derandomize=True)
def test_a_cloud_without_keys_gets_zeros(clouds: list[tuple[int, int]]) -> None:
    queries, keys = [q for q, _ in clouds], [k for _, k in clouds]
    query, key = heads(sum(queries)).requires_grad_(), heads(sum(keys), seed=1).requires_grad_()

    out = attend(query, key, key, offsets(queries), offsets(keys))

    for cloud, (start, stop) in enumerate(
        zip(offsets(queries), offsets(queries)[1:], strict=False)
    ):
        if not keys[cloud]:
            assert not out[start:stop].any()
    grads = torch.autograd.grad(out.square().sum(), [query, key])
    assert all(grad.isfinite().all() for grad in grads)


def test_no_softmax_is_taken_over_nothing() -> None:
    mask = CloudPadding(offsets([0, 3, 0]), torch.device("cpu")).key_mask(torch.device("cpu"))

    assert mask is not None
    assert mask.any(dim=-1).all()


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float32, 1e-6), (torch.bfloat16, 2e-2), (torch.float16, 2e-3)],
)
def test_every_dtype(dtype: torch.dtype, tolerance: float) -> None:
    sizes = [5, 0, 17, 1]
    query, key, value = (heads(sum(sizes), 8, seed, dtype) for seed in range(3))

    out = attend(query, key, value, offsets(sizes))

    assert out.dtype == dtype
    expected = masked_softmax(query, key, value, sizes, sizes)
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=tolerance)


def test_a_longer_cloud_changes_no_other() -> None:
    rows = heads(9).requires_grad_()
    long = heads(50, seed=5).requires_grad_()

    def run(extra: bool) -> tuple[Tensor, Tensor]:
        operand = torch.cat([rows, long]) if extra else rows
        sizes = [4, 5, 50] if extra else [4, 5]
        out = attend(operand, operand, operand, offsets(sizes))[:9]
        return out, torch.autograd.grad(out.square().sum(), rows)[0]

    for alone, together in zip(run(False), run(True), strict=True):
        torch.testing.assert_close(alone, together, rtol=0, atol=1e-13)


@pytest.mark.parametrize("sizes", [[0, 0], [0], [], [3, 3], [3]])
def test_batches_without_padding(sizes: list[int]) -> None:
    rows = heads(sum(sizes)).requires_grad_()

    out = attend(rows, rows, rows, offsets(sizes))

    assert out.shape == rows.shape
    if sizes:
        expected = masked_softmax(rows, rows, rows, sizes, sizes)
        torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)
    out.sum().backward()
    assert rows.grad is not None


def test_one_call_serves_all_clouds(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    original = F.scaled_dot_product_attention

    def counted(*args: Any, **kwargs: Any) -> Tensor:
        calls.append(args[0].shape)
        return original(*args, **kwargs)

    monkeypatch.setattr(F, "scaled_dot_product_attention", counted)
    rows = heads(60)
    attend(rows, rows, rows, offsets([10, 20, 0, 30]))

    assert calls == [(4, 2, 30, 4)]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"query": heads(5).flatten(1)}, ValueError, r"query must have shape.*\(5, 8\)"),
        ({"query": heads(4)}, ValueError, "query has 4 rows but its offsets end at 5"),
        ({"value": heads(6)}, ValueError, "value has 6 rows but its offsets end at 5"),
        ({"key": heads(5, 3)}, ValueError, r"same width.*\(5, 2, 3\)"),
        ({"value": heads(5)[:, :1]}, ValueError, "same heads"),
        ({"key_offsets": torch.tensor([0, 5])}, ValueError, "2 clouds and keys in 1"),
        ({"query_offsets": torch.tensor([0, 3.0, 5])}, TypeError, "float32"),
        ({"query_offsets": torch.tensor([0, 7, 5])}, ValueError, "never decrease"),
    ],
)
def test_refuses(change: dict[str, Any], error: type[Exception], message: str) -> None:
    arguments = {
        "query": heads(5),
        "key": heads(5),
        "value": heads(5),
        "query_offsets": offsets([2, 3]),
        "key_offsets": offsets([2, 3]),
    }
    with pytest.raises(error, match=message):
        attend(**{**arguments, **change})
