"""Window and whole-cloud attention against dense attention with a mask."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.geometry.clouds import make_points, make_voxels
from tests.nn.attention_oracle import masked_attention, project
from wcn_ckpt.geometry import Geometry, PointOrdering, sparse_cat
from wcn_ckpt.geometry.origins import Origin, from_origin
from wcn_ckpt.geometry.windows import OFFSET_FRACTIONS
from wcn_ckpt.nn.functional.voxel_rope import voxel_rope
from wcn_ckpt.nn.modules import AllAttention, SpaceAttention

RAGGED = (30, 0, 1, 25, 0)


def make(window_size: Any = 3, use_rope: bool = False, **options: Any) -> SpaceAttention:
    torch.manual_seed(0)
    return SpaceAttention(12, window_size, num_heads=2, use_rope=use_rope, **options).double()


def windows_of(x: Geometry, size: Any, shift: Any, origin: Origin = "cloud") -> list[Any]:
    clouds = x.coords[:, 0].long()
    cells = from_origin(x.coordinate_tensor, clouds, x.batch_size, origin)
    windows = (cells + torch.tensor(shift)).div(torch.tensor(size), rounding_mode="floor")
    return [(int(cloud), *row) for cloud, row in zip(clouds, windows.tolist(), strict=True)]


def expected(attention: SpaceAttention, x: Geometry, windows: list[Any]) -> Tensor:
    qkv = project(attention.qkv, x.feats, 2)
    if attention.use_rope:
        cells = from_origin(x.coordinate_tensor, x.coords[:, 0].long(), x.batch_size)
        turned = voxel_rope(qkv[:, :2], cells, attention.rope_base)
        qkv = torch.cat([turned, qkv[:, 2:]], dim=1)
    out: Tensor = attention.proj(masked_attention(qkv, windows))
    return out


@pytest.mark.parametrize("offset", OFFSET_FRACTIONS)
@pytest.mark.parametrize("origin", ["cloud", "batch"])
@pytest.mark.parametrize("kind", [make_voxels, make_points])
def test_rows_attend_inside_windows(offset: str, origin: Origin, kind: Any) -> None:
    attention, x = make(origin=origin), kind(RAGGED, channels=12)
    if kind is make_points:
        x = x.replace(batched_coordinates=x.coordinate_tensor * 4)

    out = attention(x, offset)

    shift = [2 if part else 0 for part in OFFSET_FRACTIONS[offset]]
    windows = windows_of(x, (3, 3, 3), shift, origin)
    torch.testing.assert_close(out.feats, expected(attention, x, windows))
    assert out.offsets.tolist() == [0, 30, 30, 31, 56, 56]


def test_windows_may_be_longer_along_an_axis() -> None:
    attention, x = make((2, 3, 50), use_rope=True), make_voxels(RAGGED, channels=12)

    windows = windows_of(x, (2, 3, 50), (0, 0, 12))

    torch.testing.assert_close(
        attention(x, (0.2, 0.1, 0.25)).feats, expected(attention, x, windows)
    )


@pytest.mark.parametrize("cls", [SpaceAttention, AllAttention])
def test_all_rows_of_a_cloud_attend_to_each_other(cls: type[SpaceAttention]) -> None:
    torch.manual_seed(0)
    attention = cls(12, "all", num_heads=2, use_rope=True).double()
    x = make_voxels(RAGGED, channels=12)

    out = attention(x, "xyz")

    clouds = x.coords[:, 0].tolist()
    torch.testing.assert_close(out.feats, expected(attention, x, clouds))
    assert attention.window_size is None


def test_all_attention_ignores_window_and_offset() -> None:
    torch.manual_seed(0)
    attention = AllAttention(12, 3, num_heads=2).double()
    x = make_voxels(RAGGED, channels=12)

    assert attention.window_size is None
    assert torch.equal(attention(x, PointOrdering.RANDOM).feats, attention(x).feats)


def test_the_constructor_says_the_offset_where_forward_says_none() -> None:
    x = make_voxels(RAGGED, channels=12)

    assert torch.equal(make(offset="xyz")(x, None).feats, make()(x, "xyz").feats)
    assert torch.equal(make(offset="xyz")(x).feats, make()(x, "zero").feats)


def test_a_random_offset_is_drawn_from_the_generator() -> None:
    attention, x = make(7), make_voxels(RAGGED, channels=12)

    torch.manual_seed(0)
    first, second = attention(x, "random").feats, attention(x, "random").feats
    torch.manual_seed(0)

    assert not torch.equal(first, second)
    assert torch.equal(attention(x, "random").feats, first)


def test_random_offsets_do_not_fill_the_cache() -> None:
    attention, x = make(7), make_voxels(RAGGED, channels=12)
    attention(x)
    before = len(x.batched_coordinates.cache._own)

    for _ in range(3):
        attention(x, "random")
        attention(x)

    assert len(x.batched_coordinates.cache._own) == before


def test_permuting_the_rows_of_clouds_permutes_the_output() -> None:
    attention, x = make(use_rope=True), make_voxels((40,), channels=12)
    mixed = torch.randperm(40, generator=torch.Generator().manual_seed(0))
    moved = type(x)(x.coordinate_tensor[mixed], x.feats[mixed], x.offsets)

    torch.testing.assert_close(attention(moved).feats, attention(x).feats[mixed])


@pytest.mark.parametrize("window", [3, "all"])
def test_a_cloud_does_not_see_its_batch_mates(window: Any) -> None:
    attention = make(window, use_rope=True)
    cloud = make_voxels((27,), channels=12)
    mate = make_voxels((41,), channels=12, low=-30, high=-20, seed=5)

    alone = attention(cloud, "xy").feats

    torch.testing.assert_close(attention(sparse_cat([cloud, mate]), "xy")[0].feats, alone)
    torch.testing.assert_close(attention(sparse_cat([mate, mate, cloud]), "xy")[2].feats, alone)


def test_the_encoding_method_changes_nothing() -> None:
    x = make_voxels(RAGGED, channels=12)

    outs = [
        make(encoding_method=method)(x).feats
        for method in ("counting_sort", "ravel", "ravel_fast", "morton")
    ]

    assert all(torch.equal(out, outs[0]) for out in outs)


def test_parameters_and_defaults() -> None:
    attention = SpaceAttention(16, 4)

    assert set(attention.state_dict()) == {"qkv.weight", "proj.weight", "proj.bias"}
    assert (attention.num_heads, attention.use_rope, attention.rope_base) == (8, True, 250)
    assert attention.window_size == (4, 4, 4)
    assert isinstance(SpaceAttention(16, 4, use_batched_qkv=False).qkv, nn.Linear)


def test_nothing_attends_to_nothing() -> None:
    x = make_voxels((0, 0), channels=12)

    assert make()(x).offsets.tolist() == [0, 0, 0]
    assert make("all")(x).offsets.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"window_size": None}, ValueError, "window_size .* got None"),
        ({"window_size": "whole"}, ValueError, "window_size .* got 'whole'"),
        ({"window_size": 0}, ValueError, "window_size .* got 0"),
        ({"window_size": (2, 2)}, ValueError, r"window_size .* got \(2, 2\)"),
        ({"window_size": 2.5}, TypeError, "window_size .* got 2.5"),
        ({"offset": "yx"}, ValueError, "got 'yx'"),
        ({"combine_consecutive_ones": True}, ValueError, "combine_consecutive_ones=True"),
        ({"encoding_method": "sort"}, ValueError, "encoding_method .* got 'sort'"),
    ],
)
def test_refuses_to_be_built(options: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make(**options)


def test_refuses_orders_of_another_kind() -> None:
    attention, x = make(), make_voxels(RAGGED, channels=12)

    with pytest.raises(TypeError, match="PointOrdering"):
        attention(x, PointOrdering.MORTON_XYZ)
    with pytest.raises(ValueError, match="got 'morton'"):
        attention(x, "morton")
    with pytest.raises(ValueError, match="takes 12 channels, got 4"):
        attention(make_voxels())
