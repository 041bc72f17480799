"""Embeddings of positions and times, against their formulas written out."""

from __future__ import annotations

import cmath
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.geometry.clouds import make_voxels
from wcn_ckpt.nn.functional.rotary import rotate
from wcn_ckpt.nn.modules import (
    RotaryPositionEmbedder,
    SinusoidalPositionEmbedder,
    SparseRotaryPositionEmbedder,
    TimestepEmbedder,
)


@pytest.mark.parametrize(("head_dim", "dim"), [(12, 3), (16, 3), (64, 3), (8, 1), (4, 3), (10, 2)])
@pytest.mark.parametrize("rope_freq", [(1.0, 10000.0), (0.5, 100.0)])
def test_rotary_phases(head_dim: int, dim: int, rope_freq: tuple[float, float]) -> None:
    cells = torch.tensor([[3, -7, 2], [0, 0, 0], [120, 5, -64]])[:, :dim]
    count = head_dim // 2 // dim

    phases = RotaryPositionEmbedder(head_dim, dim, rope_freq)(cells)

    assert phases.dtype == torch.complex64
    for row, cell in enumerate(cells.tolist()):
        expected = [
            cmath.exp(1j * x * rope_freq[0] / rope_freq[1] ** (j / count))
            for x in cell
            for j in range(count)
        ]
        expected += [1 + 0j] * (head_dim // 2 - len(expected))
        torch.testing.assert_close(phases[row], torch.tensor(expected), rtol=0, atol=2e-7)


def test_rotation_turns_neighbouring_channels() -> None:
    heads = torch.randn(5, 2, 8, dtype=torch.float64)
    phases = torch.polar(torch.ones(5, 4).double(), torch.randn(5, 4).double())

    out = rotate(heads, phases)

    for pair in range(4):
        z = torch.complex(heads[..., 2 * pair], heads[..., 2 * pair + 1]) * phases[:, None, pair]
        torch.testing.assert_close(out[..., 2 * pair], z.real)
        torch.testing.assert_close(out[..., 2 * pair + 1], z.imag)
    torch.testing.assert_close(out.norm(dim=-1), heads.norm(dim=-1))
    assert rotate(heads.bfloat16(), phases).dtype == torch.bfloat16


@given(
    st.lists(st.integers(-50, 50), min_size=3, max_size=3),
    st.lists(st.integers(-50, 50), min_size=3, max_size=3),
    st.lists(st.integers(-50, 50), min_size=3, max_size=3),
)
@settings(max_examples=20, deadline=None, derandomize=True)
def test_scores_depend_on_the_difference_of_positions(
    here: list[int], there: list[int], shift: list[int]
) -> None:
    embed = RotaryPositionEmbedder(24)
    query, key = torch.randn(2, 1, 1, 24, generator=torch.Generator().manual_seed(0)).double()

    def score(a: Tensor, b: Tensor) -> Tensor:
        turned = rotate(query, embed(a[None])), rotate(key, embed(b[None]))
        return (turned[0] * turned[1]).sum()

    a, b, s = torch.tensor(here), torch.tensor(there), torch.tensor(shift)
    torch.testing.assert_close(score(a, b), score(a + s, b + s), rtol=0, atol=1e-4)


def test_sparse_phases_are_those_of_the_cells() -> None:
    voxels = make_voxels((20, 0, 9), channels=4)

    phases = SparseRotaryPositionEmbedder(12)(voxels)

    assert torch.equal(phases, RotaryPositionEmbedder(12)(voxels.coordinate_tensor))
    assert SparseRotaryPositionEmbedder(12)(voxels) is phases
    assert SparseRotaryPositionEmbedder(12, rope_freq=(1.0, 5.0))(voxels) is not phases
    moved = voxels.replace(voxels.coordinate_tensor + 1)
    assert not torch.equal(SparseRotaryPositionEmbedder(12)(moved), phases)


def test_sinusoids() -> None:
    x = torch.tensor([[0.0, 1.0, -2.5], [7.0, 8.0, 9.0]])

    out = SinusoidalPositionEmbedder(20, 3)(x)

    for row in range(2):
        expected = []
        for axis in range(3):
            angles = [float(x[row, axis]) * 10000 ** (-j / 3) for j in range(3)]
            expected += [math.sin(a) for a in angles] + [math.cos(a) for a in angles]
        torch.testing.assert_close(out[row], torch.tensor([*expected, 0.0, 0.0]))
    assert SinusoidalPositionEmbedder(4, 3)(x).tolist() == [[0.0] * 4] * 2


def test_times() -> None:
    embed = TimestepEmbedder(6)
    t = torch.tensor([0.0, 0.37, 900.0])

    waves: list[Tensor] = []
    embed.mlp[0].register_forward_pre_hook(lambda module, args: waves.append(args[0]))
    out = embed(t)

    assert out.shape == (3, 6)
    for row, time in enumerate(t.tolist()):
        angles = [time * math.exp(-math.log(10000) * j / 128) for j in range(128)]
        expected = [math.cos(a) for a in angles] + [math.sin(a) for a in angles]
        torch.testing.assert_close(waves[0][row], torch.tensor(expected), rtol=0, atol=1e-5)
    assert torch.equal(embed(t.long()), embed(t.floor()))
    assert embed.double()(t.double()).dtype == torch.float64
    assert list(embed.state_dict()) == ["mlp.0.weight", "mlp.0.bias", "mlp.2.weight", "mlp.2.bias"]


@pytest.mark.parametrize(
    "embed",
    [
        RotaryPositionEmbedder(12),
        SinusoidalPositionEmbedder(12),
        SparseRotaryPositionEmbedder(12),
    ],
)
def test_position_embedders_have_no_state(embed: Any) -> None:
    assert not list(embed.state_dict())
    assert not list(embed.buffers())


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: RotaryPositionEmbedder(7), ValueError, "even head_dim.*got 7"),
        (lambda: RotaryPositionEmbedder(8, 0), ValueError, "dim.*got 0"),
        (lambda: RotaryPositionEmbedder(8, 3, (1.0, -1.0)), ValueError, "rope_freq.*-1.0"),
        (lambda: RotaryPositionEmbedder(8, 3, (float("nan"), 1.0)), ValueError, "rope_freq.*nan"),
        (lambda: RotaryPositionEmbedder(8)(torch.ones(5, 2)), ValueError, r"\(5, 2\)"),
        (lambda: SparseRotaryPositionEmbedder(8)(torch.ones(5, 3)), TypeError, "Voxels.*Tensor"),
        (lambda: SinusoidalPositionEmbedder(0), ValueError, "channels.*got 0"),
        (lambda: SinusoidalPositionEmbedder(8)(torch.ones(5, 2)), ValueError, r"\(5, 2\)"),
        (lambda: SinusoidalPositionEmbedder(8)(torch.ones(5, 3).int()), TypeError, "int32"),
        (lambda: TimestepEmbedder(8, 5), ValueError, "even, got 5"),
        (lambda: TimestepEmbedder(8)(torch.ones(5, 1)), ValueError, r"\(5, 1\)"),
    ],
)
def test_refuses(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
