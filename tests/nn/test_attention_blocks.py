"""Attention blocks: what they compute, and that checkpointing changes nothing of it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.geometry.clouds import make_points, make_voxels
from wcn_ckpt.geometry import Geometry, PointOrdering, Serialization, serialize, sparse_cat
from wcn_ckpt.nn.modules import (
    AllAttention,
    DropPath,
    FeedForward,
    LayerNorm,
    Linear,
    PatchAttention,
    PatchAttentionBlock,
    PostNormBlock,
    PreNormBlock,
    Sequential,
    SpaceAttention,
    SpaCeFormerBlockBase,
    SparseConv3d,
    StreamNormBlock,
    block_factory,
)

RAGGED = (40, 0, 1, 25, 0)
Block = PatchAttentionBlock | SpaCeFormerBlockBase
LAYOUTS: list[type[SpaCeFormerBlockBase]] = [PreNormBlock, PostNormBlock, StreamNormBlock]
CLASSES: list[type[Block]] = [PatchAttentionBlock, *LAYOUTS]
Order = Any

CASES: list[tuple[type[Block], dict[str, Any], Order]] = [
    (PatchAttentionBlock, {}, PointOrdering.HILBERT),
    (PatchAttentionBlock, {}, "random"),
    (PreNormBlock, {"use_rope": True}, "morton_yzx"),
    (PreNormBlock, {}, PointOrdering.RANDOM),
    (PostNormBlock, {"attn_type": "space", "use_rope": True}, "xyz"),
    (PostNormBlock, {"attn_type": "space"}, (0.25, 0.5, 0.0)),
    (StreamNormBlock, {"attn_type": "space"}, "random"),
    (StreamNormBlock, {"attn_type": "all"}, "zero"),
]
IDS = [f"{cls.__name__}-{opts.get('attn_type', 'curve')}-{order}" for cls, opts, order in CASES]
STOCHASTIC = {"drop_path": 0.2, "attn_drop": 0.2, "proj_drop": 0.2}


def make(cls: type[Block], in_channels: int = 8, channels: int = 12, **options: Any) -> Block:
    torch.manual_seed(0)
    return cls(in_channels, channels, 7, 2, **options).double()


def scene(dtype: torch.dtype = torch.float64) -> Geometry:
    return make_voxels(RAGGED, channels=8, dtype=dtype)


def train_step(block: Block, x: Geometry, order: Order) -> dict[str, Tensor]:
    """Return outputs, gradients, buffers and what comes next from the generator."""
    torch.manual_seed(1)
    rows = x.feats.detach().clone().requires_grad_()
    out = block(x.replace_features(rows), order)
    loss = out.batched_features.tensor.float().square().sum()
    names = ["input", *(name for name, _ in block.named_parameters())]
    gradients = torch.autograd.grad(loss, [rows, *block.parameters()])
    return {
        "output": out.feats.detach(),
        **dict(zip(names, gradients, strict=True)),
        **{f"buffer {name}": value.clone() for name, value in block.named_buffers()},
        "next": torch.rand(3),
    }


def differences(expected: dict[str, Tensor], got: dict[str, Tensor]) -> list[str]:
    assert expected.keys() == got.keys()
    return [name for name in expected if not torch.equal(expected[name], got[name])]


def bf16() -> AbstractContextManager[Any]:
    return torch.autocast("cpu", dtype=torch.bfloat16)


@pytest.mark.parametrize(("cls", "options", "order"), CASES, ids=IDS)
@pytest.mark.parametrize("stochastic", [{}, STOCHASTIC], ids=["plain", "drops"])
@pytest.mark.parametrize("precision", [nullcontext, bf16])
def test_checkpointing_changes_nothing(
    cls: type[Block],
    options: dict[str, Any],
    order: Order,
    stochastic: dict[str, float],
    precision: Callable[[], AbstractContextManager[Any]],
) -> None:
    ordinary = make(cls, **options, **stochastic).float()
    recomputed = copy.deepcopy(ordinary)
    recomputed.use_checkpoint = True
    keys = list(ordinary.state_dict())

    with precision():
        expected, got = (train_step(b, scene(torch.float32), order) for b in (ordinary, recomputed))

    assert differences(expected, got) == []
    assert list(recomputed.state_dict()) == keys


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("cls", "options", "order"), CASES, ids=IDS)
def test_checkpointing_with_dropped_rows_changes_nothing_on_cuda(
    cls: type[Block], options: dict[str, Any], order: Order
) -> None:
    ordinary = make(cls, **options, **STOCHASTIC).float().cuda()
    recomputed = copy.deepcopy(ordinary)
    recomputed.use_checkpoint = True
    x = scene(torch.float32).to("cuda")

    with torch.autocast("cuda", dtype=torch.float16):
        expected, got = (train_step(block, x, order) for block in (ordinary, recomputed))

    # Attention kernels may add in another order; another draw of rows would be far off.
    for name, value in expected.items():
        torch.testing.assert_close(got[name], value, rtol=1e-2, atol=1e-2, msg=name)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("cls", "options", "order"), CASES, ids=IDS)
def test_cuda_agrees_with_the_cpu(cls: type[Block], options: dict[str, Any], order: Order) -> None:
    block, x = make(cls, **options), scene()
    if order in ("random", PointOrdering.RANDOM):
        order = "zero" if "attn_type" in options else PointOrdering.HILBERT

    expected = block(x, order).feats
    out = block.cuda()(x.to("cuda"), order)

    torch.testing.assert_close(out.feats.cpu(), expected)


@pytest.mark.parametrize(("cls", "options", "order"), CASES, ids=IDS)
def test_random_groups_need_no_kept_generator_state(
    cls: type[Block], options: dict[str, Any], order: Order
) -> None:
    ordinary = make(cls, **options)
    recomputed = copy.deepcopy(ordinary)
    recomputed.gradient_checkpointing_enable({"preserve_rng_state": False})

    expected, got = (train_step(block, scene(), order) for block in (ordinary, recomputed))

    assert differences(expected, got) == []


@pytest.mark.parametrize(("cls", "options", "order"), CASES, ids=IDS)
def test_forward_runs_once_and_again_in_backward(
    cls: type[Block], options: dict[str, Any], order: Order
) -> None:
    block = make(cls, **options)
    original, seen = block._forward, []

    def counted(x: Any, order: Any) -> Any:
        seen.append(order)
        return original(x, order)

    block._forward = counted  # type: ignore[method-assign]  # looked up at the call
    for enabled, runs in ((False, 1), (True, 2), (False, 1)):
        block.use_checkpoint = enabled
        seen.clear()
        train_step(block, scene(), order)
        assert len(seen) == runs
        if isinstance(seen[0], Serialization):
            assert all(torch.equal(each.permutation, seen[0].permutation) for each in seen)
        else:
            assert all(each == seen[0] != "random" for each in seen)

    block.use_checkpoint = True
    seen.clear()
    with torch.no_grad():
        block(scene(), order)
    block.eval()
    train_step(block, scene(), order)
    assert len(seen) == 2


@pytest.mark.parametrize("cls", CLASSES)
def test_arguments_may_be_named_and_compound(cls: type[Block]) -> None:
    ordinary, x = make(cls), scene()
    recomputed = copy.deepcopy(ordinary)
    recomputed.use_checkpoint = True
    drawn = serialize(x.coordinate_tensor, x.offsets, "random")

    results = []
    for block in (ordinary, recomputed):
        rows = x.feats.clone().requires_grad_()
        out = block(order=drawn, x=x.replace_features(rows))
        results.append([out.feats, *torch.autograd.grad(out.feats.square().sum(), [rows])])

    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


class StandIn(nn.Module):
    """A linear layer in place of a child; remembers the orders that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8, dtype=torch.float64)
        self.orders: list[Any] = []

    def forward(self, x: Geometry, *order: Any) -> Geometry:
        self.orders.extend(order)
        return x.replace_features(torch.tanh(self.linear(x.feature_tensor)))


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("order", [PointOrdering.MORTON_XYZ, PointOrdering.RANDOM, "xyz", None])
def test_children_may_be_replaced_and_the_block_run_on_points(cls: type[Block], order: Any) -> None:
    torch.manual_seed(0)
    ordinary = cls(8, 8, 4, 2, drop_path=0.5)
    for name in ("conv", "conv_shortcut", "norm1", "attention", "norm2", "mlp", "drop_path"):
        assert isinstance(getattr(ordinary, name), nn.Module)
        setattr(ordinary, name, StandIn())
    ordinary.conv_shortcut = ordinary.drop_path = nn.Identity()
    recomputed = copy.deepcopy(ordinary)
    recomputed.use_checkpoint = True
    points = make_points((5, 7), channels=8)

    expected, got = (train_step(block, points, order) for block in (ordinary, recomputed))

    assert differences(expected, got) == []
    assert (ordinary.attention.orders, recomputed.attention.orders) == ([order], [order] * 2)


@pytest.mark.parametrize(("cls", "options", "order"), CASES, ids=IDS)
def test_a_cloud_does_not_see_its_batch_mates(
    cls: type[Block], options: dict[str, Any], order: Order
) -> None:
    if order in ("random", PointOrdering.RANDOM):
        order = PointOrdering.MORTON_XYZ if options.get("attn_type") != "space" else "z"
    block = make(cls, **options).eval()
    cloud = make_voxels((27,), channels=8)
    mate = make_voxels((41,), channels=8, low=-30, high=-20, seed=5)

    alone = block(cloud, order).feats

    for batch, place in (([cloud, mate], 0), ([mate, mate, cloud], 2)):
        torch.testing.assert_close(block(sparse_cat(batch), order)[place].feats, alone)


@pytest.mark.parametrize("cls", CLASSES)
def test_parts(cls: type[Block]) -> None:
    block = make(cls, mlp_ratio=2.0)

    conv, linear, norm = block.conv
    assert isinstance(conv, SparseConv3d)
    assert (conv.in_channels, conv.out_channels, conv.kernel_size) == (8, 8, (3, 3, 3))
    assert (linear.in_features, linear.out_features) == (8, 12)
    assert all(isinstance(part, LayerNorm) for part in (norm, block.norm1, block.norm2))
    assert isinstance(block.conv_shortcut, Linear)
    assert isinstance(block.attention, PatchAttention)
    assert isinstance(block.drop_path, nn.Identity)
    assert isinstance(make(cls, 8, 8).conv_shortcut, nn.Identity)
    assert isinstance(make(cls, drop_path=0.1).drop_path, DropPath)
    assert list(block.buffers()) == []
    mlp = {
        "mlp.mlp.0.weight": (24, 12),
        "mlp.mlp.0.bias": (24,),
        "mlp.mlp.3.weight": (12, 24),
        "mlp.mlp.3.bias": (12,),
    }
    gated = {"mlp.w1.weight": (24, 12), "mlp.w2.weight": (12, 24), "mlp.w3.weight": (24, 12)}
    assert {key: tuple(value.shape) for key, value in block.state_dict().items()} == {
        "conv.0.weight": (27, 8, 8),
        "conv.0.bias": (8,),
        "conv.1.weight": (12, 8),
        "conv.1.bias": (12,),
        "conv.2.norm.weight": (12,),
        "conv.2.norm.bias": (12,),
        "conv_shortcut.block.weight": (12, 8),
        "conv_shortcut.block.bias": (12,),
        "norm1.norm.weight": (12,),
        "norm1.norm.bias": (12,),
        "attention.qkv.weight": (3, 12, 12),
        "attention.qkv.bias": (36,),
        "attention.proj.weight": (12, 12),
        "attention.proj.bias": (12,),
        "norm2.norm.weight": (12,),
        "norm2.norm.bias": (12,),
        **(mlp if cls is PatchAttentionBlock else gated),
    }


@pytest.mark.parametrize("cls", CLASSES)
def test_computes_its_layout(cls: type[Block]) -> None:
    block, x = make(cls), scene()
    order = PointOrdering.MORTON_ZYX

    y = block.conv(x) + block.conv_shortcut(x)
    if cls is PostNormBlock:
        y = block.norm1(block.attention(y, order) + y)
        y = block.norm2(block.mlp(y) + y)
    elif cls is StreamNormBlock:
        y = block.norm1(y)
        y = block.norm2(block.attention(y, order) + y)
        y = block.mlp(y) + y
    else:
        y = block.attention(block.norm1(y), order) + y
        y = block.mlp(block.norm2(y)) + y

    out = block(x, order)
    assert torch.equal(out.feats, y.feats)
    assert out.batched_coordinates is x.batched_coordinates


def test_attention_types_and_fallback_orders() -> None:
    space = make(PreNormBlock, attn_type="space", order="xy", use_rope=True, rope_base=99)
    everything = make(PreNormBlock, attn_type="all")
    x = scene()

    assert isinstance(space.attention, SpaceAttention)
    assert space.attention.window_size == (7, 7, 7)
    assert (space.attention.use_rope, space.attention.rope_base) == (True, 99)
    assert torch.equal(space(x).feats, space(x, "xy").feats)
    assert isinstance(everything.attention, AllAttention)
    assert make(PreNormBlock, attn_type="space").attention.offset == "zero"
    patch = make(PatchAttentionBlock, order="hilbert")
    assert torch.equal(patch(x).feats, patch(x, PointOrdering.HILBERT).feats)


def test_layouts_by_name() -> None:
    assert [block_factory(name) for name in ("pre_norm", "post_norm", "stream_norm")] == LAYOUTS
    with pytest.raises(ValueError, match="got 'sandwich'"):
        block_factory("sandwich")
    with pytest.raises(NotImplementedError, match="use PreNormBlock"):
        make(SpaCeFormerBlockBase)(scene())


def test_feed_forward_on_geometries_and_tensors() -> None:
    layer, x = FeedForward(8, 5).double(), scene()

    rows = x.feats
    expected = (nn.functional.silu(rows @ layer.w1.weight.T) * (rows @ layer.w3.weight.T)) @ (
        layer.w2.weight.T
    )

    torch.testing.assert_close(layer(x).feats, expected)
    torch.testing.assert_close(layer(rows), expected)
    with pytest.raises(TypeError, match="got list"):
        layer([rows])  # type: ignore[type-var]  # tested


@pytest.mark.parametrize("cls", CLASSES)
def test_blocks_in_a_library_chain_are_handed_geometries(cls: type[Block]) -> None:
    x = scene()

    out = Sequential(make(cls, 8, 8), make(cls))(x)

    assert out.num_channels == 12
    assert out.offsets.tolist() == x.offsets.tolist()


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"in_channels": 0}, ValueError, "in_channels must be at least 1, got 0"),
        ({"channels": 13}, ValueError, "dim=13 must be divisible by num_heads=2"),
        ({"channels": 0}, ValueError, "attention_channels must be at least 1, got 0"),
        ({"mlp_ratio": 0}, ValueError, "mlp_ratio must be positive and finite, got 0"),
        ({"mlp_ratio": 0.01}, ValueError, "mlp_ratio=0.01 leaves no channel of 12"),
        ({"mlp_ratio": "4"}, TypeError, "mlp_ratio must be a number, got '4'"),
        ({"drop_path": -0.1}, ValueError, "drop_path must be a probability .* got -0.1"),
        ({"attn_drop": 2}, ValueError, "attn_drop must be a probability .* got 2"),
        ({"attn_type": "window"}, ValueError, "attn_type must be .* got 'window'"),
        ({"order": "peano"}, ValueError, "got 'peano'"),
        ({"kernel_size": 0}, ValueError, "kernel_size.*0"),
        ({"origin": "world"}, ValueError, "got 'world'"),
    ],
)
def test_refuses_to_be_built(
    cls: type[Block], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        make(cls, **options)


@pytest.mark.parametrize("use_checkpoint", [False, True])
@pytest.mark.parametrize(
    ("cls", "options", "order", "error", "message"),
    [
        (PatchAttentionBlock, {}, "xyz", ValueError, "got 'xyz'"),
        (PreNormBlock, {}, "xyz", ValueError, "got 'xyz'"),
        (PreNormBlock, {"attn_type": "space"}, PointOrdering.RANDOM, TypeError, "PointOrdering"),
        (PreNormBlock, {"attn_type": "space"}, "morton", ValueError, "got 'morton'"),
    ],
)
def test_refuses_orders_of_another_kind_before_any_work(
    cls: type[Block],
    options: dict[str, Any],
    order: Order,
    error: type[Exception],
    message: str,
    use_checkpoint: bool,
) -> None:
    block = make(cls, use_checkpoint=use_checkpoint, **options)
    ran: list[Any] = []
    block.conv.register_forward_pre_hook(lambda *args: ran.append(args))

    with pytest.raises(error, match=message):
        block(scene(), order)
    with pytest.raises(ValueError, match="permutation of 2 rows"):
        make(PatchAttentionBlock)(scene(), serialize(torch.eye(3)[:2], torch.tensor([0, 2])))
    assert ran == []


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("order", ["random", "hilbert"])
def test_refuses_other_input(cls: type[Block], order: str) -> None:
    with pytest.raises(ValueError, match="takes 8 channels, got 4"):
        make(cls)(make_voxels(RAGGED), order)
    with pytest.raises(TypeError, match=r"geometry .* got Tensor"):
        make(cls)(scene().feats, order)
