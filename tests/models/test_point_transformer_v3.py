"""PointTransformerV3: counts, parts, the graph, and the order that each block is given."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.geometry.clouds import make_points, make_voxels
from wcn_ckpt.geometry import POINT_ORDERING, WARPCONVNET_ORDERS, PointOrdering, Voxels, serialize
from wcn_ckpt.models import PointTransformerV3
from wcn_ckpt.models.point_transformer_v3 import PatchAttentionBlock, SerializedUnpooling

TINY: dict[str, Any] = {
    "in_channels": 3,
    "enc_depths": (1, 1),
    "enc_channels": (8, 16),
    "enc_num_head": (2, 4),
    "enc_patch_size": (16, 8),
    "dec_depths": (1,),
    "dec_channels": (12,),
    "dec_num_head": (3,),
    "dec_patch_size": (8,),
}


def tiny(**options: Any) -> PointTransformerV3:
    torch.manual_seed(0)
    return PointTransformerV3(**{**TINY, **options})


def scene(dtype: torch.dtype = torch.float32) -> Voxels:
    return make_voxels((90, 0, 40, 0), channels=3, dtype=dtype, low=-8, high=8)


def blocks(model: nn.Module) -> list[PatchAttentionBlock]:
    return [module for module in model.modules() if isinstance(module, PatchAttentionBlock)]


def record_orders(model: PointTransformerV3) -> list[Any]:
    """Return a list that every later call of a block adds its order to."""
    orders: list[Any] = []
    for block in blocks(model):
        block.register_forward_pre_hook(lambda _, args: orders.append(args[1]))
    return orders


def test_default_model() -> None:
    with torch.device("meta"):
        model = PointTransformerV3()
        started = PointTransformerV3(use_checkpoint=True)

    assert len(blocks(model)) == 22
    assert not any(block.gradient_checkpointing for block in blocks(model))
    assert all(block.gradient_checkpointing for block in blocks(started))
    assert [len(stage) for stage in model.encs] == [2, 2, 2, 6, 2]
    assert [len(stage) for stage in model.decs] == [2, 2, 2, 2]
    widths = [stage[0].conv[0].in_channels for stage in model.encs]
    assert widths == [32, 64, 128, 256, 512]
    assert [stage[0].attention.dim for stage in model.decs] == [256, 128, 64, 64]
    assert [stage[0].attention.num_heads for stage in model.decs] == [16, 8, 4, 4]
    assert {block.attention.patch_size for block in blocks(model)} == {1024}
    assert {block.drop_path.p for block in blocks(model)} == {0.2}
    assert model.orders == WARPCONVNET_ORDERS == tuple(POINT_ORDERING)[:7]
    assert model.shuffle_orders
    assert isinstance(model.final, nn.Identity)
    assert [stage[0].attention.order for stage in model.encs] == list(WARPCONVNET_ORDERS[:5])


def test_parts_of_a_tiny_model() -> None:
    shapes = {k: tuple(v.shape) for k, v in tiny(out_channels=5).state_dict().items()}

    assert {key.split(".")[0] for key in shapes} == {
        *("conv", "encs", "down_convs", "up_convs", "decs", "final")
    }
    for key, shape in {
        "conv.0.weight": (125, 3, 8),
        "conv.1.running_mean": (8,),
        "encs.0.0.attention.qkv.weight": (3, 8, 8),
        "encs.0.0.norm1.norm.weight": (8,),
        "encs.0.0.mlp.mlp.0.weight": (32, 8),
        "encs.1.0.mlp.mlp.3.weight": (16, 64),
        "down_convs.0.0.weight": (16, 8),
        "down_convs.0.2.running_var": (16,),
        "up_convs.0.proj.0.weight": (12, 16),
        "up_convs.0.proj.1.weight": (12,),
        "up_convs.0.proj_skip.0.weight": (12, 8),
        "up_convs.0.proj_skip.1.running_mean": (12,),
        "decs.0.0.attention.proj.weight": (12, 12),
        "final.block.weight": (5, 12),
        "final.block.bias": (5,),
    }.items():
        assert shapes[key] == shape
    assert "conv.0.bias" not in shapes


@pytest.mark.parametrize("out_channels", [None, 5])
def test_output_is_on_the_voxels_of_the_input(out_channels: int | None) -> None:
    voxels = scene()

    out = tiny(out_channels=out_channels)(voxels)

    assert out.batched_coordinates is voxels.batched_coordinates
    assert out.feats.shape == (130, out_channels or 12)
    assert out.offsets.tolist() == [0, 90, 90, 130, 130]


def test_the_graph_is_a_u_with_sums() -> None:
    options = {
        "enc_depths": (1, 2, 1),
        "enc_channels": (8, 16, 24),
        "enc_num_head": (2, 4, 2),
        "enc_patch_size": (16, 8, 4),
        "dec_depths": (1, 2),
        "dec_channels": (12, 20),
        "dec_num_head": (3, 5),
        "dec_patch_size": (8, 4),
        "shuffle_orders": False,
        "orders": ("morton_xyz", "hilbert", "morton_zyx"),
    }
    model, x = tiny(**options).eval(), scene()
    xyz, hilbert, zyx = model.orders

    e0 = model.encs[0][0](model.conv(x), xyz)
    e1 = model.encs[1][1](model.encs[1][0](model.down_convs[0](e0), hilbert), zyx)
    e2 = model.encs[2][0](model.down_convs[1](e1), xyz)
    d1 = model.decs[0][1](model.decs[0][0](model.up_convs[0](e2, e1), hilbert), zyx)
    d0 = model.decs[1][0](model.up_convs[1](d1, e0), xyz)

    assert torch.equal(model(x).feats, d0.feats)
    assert [v.num_channels for v in (e0, e1, e2, d1, d0)] == [8, 16, 24, 20, 12]
    assert [v.tensor_stride for v in (e1, e2, d1)] == [(2, 2, 2), (4, 4, 4), (2, 2, 2)]


def test_down_steps_project_first_and_then_pool() -> None:
    model, x = tiny().eval(), scene()
    fine = model.conv(x)
    linear, pool, norm, gelu = model.down_convs[0]

    pooled = pool(fine.replace_features(linear(fine.feats)))

    assert torch.equal(model.down_convs[0](fine).feats, gelu(norm(pooled.feats)))


def test_up_steps_add_the_projections_of_parents_and_skips() -> None:
    up, fine = SerializedUnpooling(16, 8, 12), make_voxels(channels=8, dtype=torch.float32)
    model = tiny()
    coarse = model.down_convs[0].eval()(fine)

    out = up.eval()(coarse, fine)

    clouds = fine.coords.clone()
    clouds[:, 1:] = clouds[:, 1:].div(2, rounding_mode="floor")
    rows = [(coarse.coords == parent).all(dim=1).nonzero().item() for parent in clouds]
    torch.testing.assert_close(out.feats, up.proj_skip(fine).feats + up.proj(coarse).feats[rows])


def test_orders_in_turn_go_on_from_encoder_to_decoder() -> None:
    model = tiny(shuffle_orders=False, orders=("morton", "hilbert"), use_checkpoint=True)
    orders = record_orders(model)

    model(scene()).feats.sum().backward()

    assert orders == [PointOrdering.MORTON_XYZ, PointOrdering.HILBERT, PointOrdering.MORTON_XYZ]


@pytest.mark.parametrize("training", [True, False])
def test_shuffled_orders_come_from_the_generator(training: bool) -> None:
    model = tiny(drop_path=0.0, orders=WARPCONVNET_ORDERS[1:]).train(training)
    orders, x = record_orders(model), scene()
    torch.manual_seed(3)
    expected = [model.orders[int(torch.randint(6, ()))] for _ in range(9)]

    torch.manual_seed(3)
    for _ in range(3):
        model(x)

    assert orders == expected
    assert len(set(orders)) > 1


def test_clouds_do_not_see_each_other_in_evaluation() -> None:
    model = tiny(shuffle_orders=False, orders=("morton_yxz", "hilbert_transposed")).double().eval()
    voxels = scene(torch.float64)

    together = model(voxels)

    for cloud in (0, 2):
        torch.testing.assert_close(together[cloud].feats, model(voxels[cloud]).feats)


def test_permuting_the_voxels_of_a_cloud_permutes_the_output() -> None:
    model = tiny(shuffle_orders=False, orders=("morton", "hilbert")).double().eval()
    x = scene(torch.float64)
    mixed = serialize(x.coordinate_tensor, x.offsets, "random").permutation

    moved = model(Voxels(x.coordinate_tensor[mixed], x.feats[mixed], x.offsets))

    torch.testing.assert_close(moved.feats, model(x).feats[mixed])


def test_points_need_voxels() -> None:
    with pytest.raises(TypeError, match=r"got Points; points become voxels"):
        tiny()(make_points(channels=3, dtype=torch.float32))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"enc_channels": (8,)}, ValueError, r"enc_channels needs 2 entries .* got 1: \(8,\)"),
        ({"dec_depths": (1, 1)}, ValueError, r"dec_depths needs 1 entries .* got 2: \(1, 1\)"),
        ({"enc_depths": (), "enc_channels": ()}, ValueError, "enc_depths needs 1 entries"),
        ({"enc_depths": (1, -1)}, ValueError, "every entry of enc_depths .* got -1"),
        ({"enc_patch_size": (16, 0)}, ValueError, "every entry of enc_patch_size .* got 0"),
        ({"dec_num_head": (5,)}, ValueError, "dim=12 must be divisible by num_heads=5"),
        ({"orders": ()}, ValueError, r"orders must have at least one entry, got \(\)"),
        ({"orders": "hilbert"}, TypeError, "got the string 'hilbert'"),
        ({"orders": ("peano",)}, ValueError, "got 'peano'"),
        ({"attn_type": "space"}, ValueError, "got 'space'"),
        ({"origin": "world"}, ValueError, "got 'world'"),
        ({"in_channels": 0}, ValueError, "in_channels must be at least 1, got 0"),
        ({"use_checkpointing": True}, TypeError, "use_checkpointing"),
    ],
)
def test_refuses(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        tiny(**options)
