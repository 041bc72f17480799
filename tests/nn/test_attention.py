"""Patch attention against dense attention inside patches that are walked one by one."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.geometry.clouds import make_points, make_voxels
from tests.nn.attention_oracle import masked_attention, patches_of, project
from wcn_ckpt.geometry import Geometry, PointOrdering, Serialization, serialize, sparse_cat
from wcn_ckpt.geometry.origins import Origin
from wcn_ckpt.nn.functional.grouped_attention import RowGroups
from wcn_ckpt.nn.functional.voxel_rope import voxel_rope
from wcn_ckpt.nn.modules import BatchedLinear, PatchAttention, Sequential

CURVES = [order for order in PointOrdering if order is not PointOrdering.RANDOM]
RAGGED = (30, 0, 1, 25, 0)


def make(patch_size: int = 8, dim: int = 12, heads: int = 2, **options: Any) -> PatchAttention:
    torch.manual_seed(0)
    attention = PatchAttention(dim, patch_size, num_heads=heads, qkv_bias=True, **options).double()
    nn.init.normal_(attention.qkv.bias)  # type: ignore[arg-type]  # a BatchedLinear's
    return attention


def expected(attention: PatchAttention, x: Geometry, permutation: Tensor) -> Tensor:
    qkv = project(attention.qkv, x.feats, attention.num_heads)
    groups = patches_of(x, permutation, attention.patch_size)
    out: Tensor = attention.proj(masked_attention(qkv, groups, attention.scale))
    return out


@pytest.mark.parametrize("order", CURVES)
@pytest.mark.parametrize("origin", ["cloud", "batch"])
@pytest.mark.parametrize("kind", [make_voxels, make_points])
def test_rows_attend_inside_patches_along_the_curve(
    order: PointOrdering, origin: Origin, kind: Any
) -> None:
    attention, x = make(origin=origin), kind(RAGGED, channels=12)

    out = attention(x, order)

    permutation = serialize(x.coordinate_tensor, x.offsets, order, origin).permutation
    torch.testing.assert_close(out.feats, expected(attention, x, permutation))
    assert out.batched_coordinates is x.batched_coordinates
    assert out.offsets.tolist() == [0, 30, 30, 31, 56, 56]


def test_a_permutation_is_an_order_too() -> None:
    attention, x = make(), make_voxels(RAGGED, channels=12)
    drawn = serialize(x.coordinate_tensor, x.offsets, "random")

    out = attention(x, drawn)

    torch.testing.assert_close(out.feats, expected(attention, x, drawn.permutation))


def test_a_random_order_is_drawn_from_the_generator() -> None:
    attention, x = make(order="random"), make_voxels(RAGGED, channels=12)

    torch.manual_seed(0)
    first, second = attention(x).feats, attention(x).feats
    torch.manual_seed(0)

    assert not torch.equal(first, second)
    assert torch.equal(attention(x, PointOrdering.RANDOM).feats, first)


def test_the_constructor_says_the_order_where_forward_does_not() -> None:
    x = make_voxels(RAGGED, channels=12)

    assert torch.equal(make(order="morton_zyx")(x).feats, make()(x, "MORTON_ZYX").feats)
    assert torch.equal(make()(x).feats, make()(x, PointOrdering.MORTON_XYZ).feats)


@pytest.mark.parametrize("order", PointOrdering)
def test_patches_as_large_as_clouds_make_every_order_the_same(order: PointOrdering) -> None:
    attention, x = make(patch_size=30), make_voxels(RAGGED, channels=12)

    rows = torch.arange(len(x))
    torch.testing.assert_close(attention(x, order).feats, expected(attention, x, rows))


def test_patches_of_one_row_are_projected_values() -> None:
    attention, x = make(patch_size=1), make_voxels(RAGGED, channels=12)

    values = project(attention.qkv, x.feats, 2)[:, 2].flatten(1)

    torch.testing.assert_close(attention(x).feats, attention.proj(values))


@pytest.mark.parametrize("order", CURVES)
def test_permuting_the_rows_of_clouds_permutes_the_output(order: PointOrdering) -> None:
    attention, x = make(), make_voxels(RAGGED, channels=12)
    mixed = serialize(x.coordinate_tensor, x.offsets, "random").permutation
    moved = type(x)(x.coordinate_tensor[mixed], x.feats[mixed], x.offsets)

    torch.testing.assert_close(attention(moved, order).feats, attention(x, order).feats[mixed])


@pytest.mark.parametrize("order", CURVES)
@pytest.mark.parametrize("use_rope", [False, True])
def test_a_cloud_does_not_see_its_batch_mates(order: PointOrdering, use_rope: bool) -> None:
    attention = make(use_rope=use_rope)
    cloud = make_voxels((27,), channels=12)
    mate = make_voxels((41,), channels=12, low=-30, high=-20, seed=5)

    alone = attention(cloud, order).feats
    first, last = sparse_cat([cloud, mate]), sparse_cat([mate, mate, cloud])

    torch.testing.assert_close(attention(first, order)[0].feats, alone)
    torch.testing.assert_close(attention(last, order)[2].feats, alone)


def test_origin_batch_does_see_them() -> None:
    attention = make(patch_size=4, origin="batch")
    cloud = make_voxels((27,), channels=12)
    mate = make_voxels((5,), channels=12, low=-30, high=-23, seed=5)

    together = attention(sparse_cat([cloud, mate]))[0].feats

    assert not torch.allclose(together, attention(cloud).feats)


@pytest.mark.parametrize("origin", ["cloud", "batch"])
def test_queries_and_keys_turn_with_their_cells(origin: Origin) -> None:
    attention = make(patch_size=30, use_rope=True, rope_base=250, origin=origin)
    x = make_voxels(RAGGED, channels=12)
    cells = torch.cat(
        [
            cloud.coordinate_tensor - (cloud if origin == "cloud" else x).coordinate_tensor.amin(0)
            for cloud in (x[0], x[2], x[3])
        ]
    )

    qkv = project(attention.qkv, x.feats, 2)
    turned = torch.cat([voxel_rope(qkv[:, :2], cells, 250), qkv[:, 2:]], dim=1)
    clouds = patches_of(x, torch.arange(len(x)), 30)

    torch.testing.assert_close(attention(x).feats, attention.proj(masked_attention(turned, clouds)))


def test_gradients_are_derivatives() -> None:
    attention, x = make(dim=6, heads=1, use_rope=True), make_voxels((9, 0, 4), channels=6)

    def forward(features: Tensor) -> Tensor:
        out: Tensor = attention(x.replace_features(features)).feats
        return out

    assert torch.autograd.gradcheck(forward, x.feats.requires_grad_())


def test_autocast_computes_in_its_dtype_near_the_full_result() -> None:
    attention, x = make().float(), make_voxels(RAGGED, channels=12, dtype=torch.float32)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = attention(x)

    full = attention(x).feats
    assert out.dtype == torch.bfloat16
    bound = 8 * torch.finfo(torch.bfloat16).eps * float(full.detach().abs().max())
    torch.testing.assert_close(out.feats.float(), full, atol=bound, rtol=0)


def test_another_kernel_can_take_the_place_of_ours() -> None:
    attention, x = make(), make_voxels(RAGGED, channels=12)
    expected_rows = attention(x).feats

    def one_by_one(qkv: Tensor, groups: RowGroups, dropout_p: float, scale: float) -> Tensor:
        packed = qkv[groups.rows]
        parts = [
            masked_attention(part, [0] * len(part), scale)
            for part in torch.split(packed, groups.lengths.tolist())
        ]
        return torch.empty_like(expected_rows).index_copy(0, groups.rows, torch.cat(parts))

    attention.attend = one_by_one  # type: ignore[method-assign]  # what it is there for

    torch.testing.assert_close(attention(x).feats, expected_rows)


@pytest.mark.parametrize("batched", [False, True])
def test_parameters(batched: bool) -> None:
    attention = PatchAttention(8, 4, use_batched_qkv=batched, use_rope=True, qkv_bias=True)

    assert {key: tuple(value.shape) for key, value in attention.state_dict().items()} == {
        "qkv.weight": (3, 8, 8) if batched else (24, 8),
        "qkv.bias": (24,),
        "proj.weight": (8, 8),
        "proj.bias": (8,),
    }
    assert list(attention.buffers()) == []
    assert PatchAttention(8, 4).qkv.bias is None


def test_a_plain_linear_layer_computes_the_same() -> None:
    batched, x = make(), make_voxels(RAGGED, channels=12)
    plain = make(use_batched_qkv=False)
    weight = batched.qkv.weight.detach()  # type: ignore[union-attr]  # a BatchedLinear's
    plain.load_state_dict(
        {**batched.state_dict(), "qkv.weight": weight.transpose(1, 2).reshape(36, 12)}
    )

    torch.testing.assert_close(plain(x).feats, batched(x).feats)


def test_batched_linear_is_one_product_per_matrix() -> None:
    layer = BatchedLinear(5, 7, num_matrices=3).double()
    x = torch.randn(4, 5, dtype=torch.float64)
    assert layer.bias is not None
    nn.init.normal_(layer.bias)

    expected_rows = torch.stack([x @ layer.weight[m] for m in range(3)], dim=1)

    torch.testing.assert_close(layer(x), expected_rows + layer.bias.view(3, 7))
    layer.reset_parameters()
    bound = math.sqrt(6 / (5 * 7 + 3 * 7))
    assert 0.5 * bound < layer.weight.abs().max() <= bound
    assert not layer.bias.any()


@pytest.mark.parametrize("scale", [None, 0.0, 0.25])
def test_scale(scale: float | None) -> None:
    assert make(qk_scale=scale).scale == (scale or 6**-0.5)


def test_dropout_is_for_training() -> None:
    attention = make(attn_drop=0.5, proj_drop=0.5)
    x = make_voxels(RAGGED, channels=12)

    assert not torch.equal(attention(x).feats, attention(x).feats)
    attention.eval()
    torch.testing.assert_close(attention(x).feats, make()(x).feats)


def test_works_in_a_library_chain_and_on_nothing() -> None:
    chain = Sequential(make(), nn.Identity())

    assert chain(make_voxels((0, 0), channels=12)).offsets.tolist() == [0, 0, 0]


def test_named_orders_are_walked_once() -> None:
    attention, x = make(), make_voxels(RAGGED, channels=12)
    attention(x)
    before = len(x.batched_coordinates.cache._own)

    for _ in range(3):
        attention(x.replace_features(x.feats * 2))
        attention(x, serialize(x.coordinate_tensor, x.offsets, "random"))

    assert len(x.batched_coordinates.cache._own) == before


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"heads": 5}, ValueError, "dim=12 must be divisible by num_heads=5"),
        ({"dim": 0}, ValueError, "dim must be at least 1, got 0"),
        ({"heads": 0}, ValueError, "num_heads must be at least 1, got 0"),
        ({"patch_size": 0}, ValueError, "patch_size must be at least 1, got 0"),
        ({"patch_size": 8.0}, TypeError, "patch_size must be an integer, got 8.0"),
        ({"order": "peano"}, ValueError, "got 'peano'"),
        ({"origin": "world"}, ValueError, "got 'world'"),
        ({"qk_scale": "1"}, TypeError, "qk_scale must be a number, got '1'"),
        ({"attn_drop": 1.5}, ValueError, "attn_drop must be a probability .* got 1.5"),
        ({"proj_drop": "x"}, TypeError, "proj_drop must be a number, got 'x'"),
        ({"rope_base": 0}, ValueError, "rope_base must be positive and finite, got 0"),
    ],
)
def test_refuses_to_be_built(options: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make(**options)


def test_refuses_input() -> None:
    attention, x = make(), make_voxels(RAGGED, channels=12)
    short = serialize(x[0].coordinate_tensor, x[0].offsets, "hilbert")

    with pytest.raises(TypeError, match=r"takes a geometry .* got Tensor"):
        attention(x.feats)
    with pytest.raises(TypeError, match=r"floating point, got torch.int64; cast"):
        attention(x.to(torch.int64))
    with pytest.raises(ValueError, match="takes 12 channels, got 5"):
        attention(make_voxels(RAGGED, channels=5))
    with pytest.raises(ValueError, match="permutation of 30 rows, but the geometry has 56"):
        attention(x, short)
    with pytest.raises(ValueError, match="got 'xyz'"):
        attention(x, "xyz")
    assert isinstance(short, Serialization)
