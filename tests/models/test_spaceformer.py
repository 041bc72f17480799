"""SpaCeFormer: counts, parts, kinds of attention, the graph, and what each block is given."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.geometry.clouds import make_voxels
from wcn_ckpt.geometry import WARPCONVNET_ORDERS, PointOrdering, Voxels
from wcn_ckpt.models import SpaCeFormer
from wcn_ckpt.models.spaceformer.attention_types import parse_attention_types
from wcn_ckpt.models.spaceformer.space_former import SpaCeFormer as ByItsFullPath
from wcn_ckpt.nn.modules import (
    AllAttention,
    PatchAttention,
    PostNormBlock,
    PreNormBlock,
    SpaceAttention,
    SpaCeFormerBlockBase,
    StreamNormBlock,
)

TINY: dict[str, Any] = {
    "in_channels": 3,
    "enc_depths": (1, 1),
    "enc_channels": (8, 16),
    "enc_num_head": (2, 4),
    "enc_patch_size": (4, 8),
    "enc_attn_types": "sc",
    "dec_depths": (1,),
    "dec_channels": (12,),
    "dec_num_head": (2,),
    "dec_patch_size": (4,),
    "dec_attn_types": "s",
}


def tiny(**options: Any) -> SpaCeFormer:
    torch.manual_seed(0)
    return SpaCeFormer(**{**TINY, **options})


def scene(dtype: torch.dtype = torch.float32) -> Voxels:
    return make_voxels((90, 0, 40, 0), channels=3, dtype=dtype, low=-8, high=8)


def blocks(model: nn.Module) -> list[SpaCeFormerBlockBase]:
    return [module for module in model.modules() if isinstance(module, SpaCeFormerBlockBase)]


def record_orders(model: SpaCeFormer) -> list[Any]:
    """Return a list that every later call of a block adds its order to."""
    orders: list[Any] = []
    for block in blocks(model):
        block.register_forward_pre_hook(lambda _, args: orders.append(args[1]))
    return orders


def test_default_model() -> None:
    with torch.device("meta"):
        model = SpaCeFormer()
        started = SpaCeFormer(use_checkpoint=True)

    assert SpaCeFormer is ByItsFullPath
    assert len(blocks(model)) == 22
    assert not any(block.gradient_checkpointing for block in blocks(model))
    assert all(block.gradient_checkpointing for block in blocks(started))
    assert {type(block) for block in blocks(model)} == {PreNormBlock}
    assert {type(block.attention) for block in blocks(model)} == {PatchAttention}
    assert [stage[0].attention.num_heads for stage in model.encs] == [2, 4, 8, 16, 32]
    assert [stage[0].attention.dim for stage in model.decs] == [256, 128, 64, 64]
    assert [stage[0].mlp.w1.out_features for stage in model.encs] == [64, 128, 256, 512, 1024]
    assert model.patch_orders == WARPCONVNET_ORDERS
    assert model.voxel_offsets == ("zero", "xyz")
    assert {block.drop_path.p for block in blocks(model)} == {0.2}
    assert not any("checkpoint" in key for key in started.state_dict())


def test_the_released_configuration_can_be_built() -> None:
    with torch.device("meta"):
        model = SpaCeFormer(
            block_type="stream_norm",
            enc_attn_types="ssccc",
            dec_attn_types="sscc",
            enc_patch_size=(64, 48, 1024, 1024, 1024),
            dec_channels=(512, 384, 256, 256),
            dec_num_head=(8, 8, 8, 16),
            dec_patch_size=(64, 48, 1024, 1024),
            use_rope=True,
            rope_base=2000,
            voxel_offsets=["zero", "xy", "xz", "yz", "xyz"],
            patch_orders=["random", *WARPCONVNET_ORDERS[1:]],
        )

    kinds = [type(stage[0].attention) for stage in model.encs]
    assert kinds == [SpaceAttention] * 2 + [PatchAttention] * 3
    kinds = [type(stage[0].attention) for stage in model.decs]
    assert kinds == [PatchAttention] * 2 + [SpaceAttention] * 2
    assert [stage[0].attention.window_size[0] for stage in model.decs[2:]] == [48, 64]
    assert {block.attention.rope_base for block in blocks(model)} == {2000}
    assert {type(block) for block in blocks(model)} == {StreamNormBlock}


def test_parts_of_a_tiny_model() -> None:
    shapes = {k: tuple(v.shape) for k, v in tiny(out_channels=5).state_dict().items()}

    for key, shape in {
        "conv.0.weight": (125, 3, 8),
        "conv.0.bias": (8,),
        "conv.1.running_mean": (8,),
        "encs.0.0.attention.qkv.weight": (3, 8, 8),
        "encs.0.0.mlp.w2.weight": (8, 16),
        "down_convs.0.0.weight": (16, 8),
        "down_convs.0.2.running_var": (16,),
        "up_convs.0.0.weight": (12, 16),
        "up_convs.0.2.weight": (12, 12 + 8),
        "up_convs.0.3.running_mean": (12,),
        "decs.0.0.attention.proj.weight": (12, 12),
        "final.block.weight": (5, 12),
    }.items():
        assert shapes[key] == shape
    bare = tiny(conv_norm_layer=None)
    assert not any("running" in key for key in bare.state_dict())
    assert isinstance(bare.conv[1], nn.Identity)


@pytest.mark.parametrize("out_channels", [None, 5])
def test_output_is_on_the_voxels_of_the_input(out_channels: int | None) -> None:
    voxels = scene()

    out = tiny(out_channels=out_channels, use_rope=True)(voxels)

    assert out.batched_coordinates is voxels.batched_coordinates
    assert out.feats.shape == (130, out_channels or 12)
    assert out.offsets.tolist() == [0, 90, 90, 130, 130]


@pytest.mark.parametrize("block_type", ["pre_norm", "post_norm", "stream_norm"])
def test_the_graph_is_a_u_with_joined_channels(block_type: str) -> None:
    model, x = tiny(shuffle_orders=False, block_type=block_type).eval(), scene()
    model._enc_options = [("x", "y"), (PointOrdering.MORTON_XYZ, PointOrdering.HILBERT)]

    fine = model.encs[0][0](model.conv(x), "x")
    coarse = model.encs[1][0](model.down_convs[0](fine), PointOrdering.HILBERT)
    project, unpool, mix, norm, gelu = model.up_convs[0]
    joined = unpool(coarse.replace_features(project(coarse.feats)), fine)
    up = fine.replace_features(gelu(norm(mix(joined.feats))))
    out = model.decs[0][0](up, "zero")

    assert torch.equal(joined.feats[:, :8], fine.feats)
    assert torch.equal(model(x).feats, out.feats)


def test_levels_are_given_offsets_or_curves_in_turn() -> None:
    model = tiny(
        enc_depths=(2, 2),
        dec_depths=(2,),
        shuffle_orders=False,
        voxel_offsets=("zero", "xyz", [0.5, 0, 0]),
        patch_orders=("morton", "hilbert"),
    )
    orders = record_orders(model)

    model(scene())

    assert orders == [
        *("zero", "xyz"),
        *(PointOrdering.MORTON_XYZ, PointOrdering.HILBERT),
        *("xyz", (0.5, 0.0, 0.0)),
    ]


@pytest.mark.parametrize("training", [True, False])
def test_shuffled_choices_come_from_the_generator(training: bool) -> None:
    model = tiny(drop_path=0.0, patch_orders=("morton", "hilbert")).train(training)
    orders, x = record_orders(model), scene()
    torch.manual_seed(3)
    options = [model.voxel_offsets, model.patch_orders, model.voxel_offsets]
    expected = [o[int(torch.randint(2, ()))] for _ in range(3) for o in options]

    torch.manual_seed(3)
    for _ in range(3):
        model(x)

    assert orders == expected
    assert len(set(map(str, orders))) > 2


def test_fallback_orders_are_chosen_when_the_model_is_built() -> None:
    model = tiny(shuffle_orders=False, enc_depths=(3, 1))

    assert [block.attention.offset for block in model.encs[0]] == ["zero", "xyz", "zero"]
    assert model.encs[1][0].attention.order is PointOrdering.RANDOM


@pytest.mark.parametrize("kinds", [("sc", "s"), ("aa", "a"), ("cs", "c")])
def test_clouds_do_not_see_each_other_in_evaluation(kinds: tuple[str, str]) -> None:
    model = tiny(
        enc_attn_types=kinds[0],
        dec_attn_types=kinds[1],
        use_rope=True,
        shuffle_orders=False,
        patch_orders=("hilbert", "morton_zyx"),
    )
    model, voxels = model.double().eval(), scene(torch.float64)

    together = model(voxels)

    for cloud in (0, 2):
        torch.testing.assert_close(together[cloud].feats, model(voxels[cloud]).feats)


def test_rope_bases_of_levels() -> None:
    model = tiny(use_rope=True, enc_rope_bases=(10, 20, 30), dec_rope_bases=(40,))

    assert [block.attention.rope_base for block in blocks(model)] == [10, 20, 40]
    assert {block.attention.rope_base for block in blocks(tiny(rope_base=7))} == {7}
    assert {block.attention.use_rope for block in blocks(tiny())} == {False}


@pytest.mark.parametrize(
    ("types", "expected"),
    [
        ("curve", ("curve",) * 3),
        ("Space", ("space",) * 3),
        ("all", ("all",) * 3),
        ("sca", ("space", "curve", "all")),
        ("SSC", ("space", "space", "curve")),
        (["Space", "all", "curve"], ("space", "all", "curve")),
    ],
)
def test_kinds_of_attention(types: Any, expected: tuple[str, ...]) -> None:
    assert parse_attention_types(types, 3, "enc_attn_types") == expected


@pytest.mark.parametrize("types", ["sc", "sxc", "", ["space"], ["s", "c", "a"], 3, None, [1, 2, 3]])
def test_refuses_kinds_of_attention(types: Any) -> None:
    with pytest.raises(ValueError, match="enc_attn_types must be one of .* got"):
        parse_attention_types(types, 3, "enc_attn_types")


def test_kinds_reach_the_blocks() -> None:
    model = tiny(enc_attn_types="ac", dec_attn_types=["all"], block_type="post_norm")

    kinds = [type(block.attention) for block in blocks(model)]
    assert kinds == [AllAttention, PatchAttention, AllAttention]
    assert {type(block) for block in blocks(model)} == {PostNormBlock}


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"enc_num_head": (2,)}, ValueError, r"enc_num_head needs 2 entries .* got 1: \(2,\)"),
        ({"dec_channels": ()}, ValueError, r"dec_channels needs 1 entries .* got 0: \(\)"),
        ({"enc_attn_types": "scs"}, ValueError, "enc_attn_types .* got 'scs'"),
        ({"dec_attn_types": 1}, ValueError, "dec_attn_types .* got 1"),
        ({"block_type": "sandwich"}, ValueError, "got 'sandwich'"),
        ({"enc_rope_bases": (250,)}, ValueError, r"enc_rope_bases .* got 1: \(250,\)"),
        ({"rope_base": -1}, ValueError, "rope_base must be positive and finite, got -1"),
        ({"voxel_offsets": ["up"]}, ValueError, "got 'up'"),
        ({"voxel_offsets": "xyz"}, TypeError, "got the string 'xyz'"),
        ({"patch_orders": []}, ValueError, r"patch_orders must have at least one entry, got \[\]"),
        ({"patch_orders": ["zero"]}, ValueError, "got 'zero'"),
        ({"enc_patch_size": (4, 2.5)}, TypeError, "every entry of enc_patch_size .* got 2.5"),
        ({"shuffle": True}, TypeError, "shuffle"),
    ],
)
def test_refuses(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        tiny(**options)
