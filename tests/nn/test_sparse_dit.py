"""Sparse transformer blocks: equal to the dense ones, cloud by cloud, and to their twins."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.geometry.clouds import make_points, make_voxels
from tests.nn.twins import assert_twins_agree, bytes_kept
from wcn_ckpt.geometry import Geometry, Points, Voxels
from wcn_ckpt.nn.modules import (
    ModulatedSparseTransformerBlock,
    ModulatedSparseTransformerCrossBlock,
    ModulatedTransformerBlock,
    ModulatedTransformerCrossBlock,
    RotaryPositionEmbedder,
    SparseFeedForwardNet,
    SparseMultiHeadAttention,
    SpatialModule,
    configure_gradient_checkpointing,
    sparse_scaled_dot_product_attention,
)

CHANNELS, HEADS, CONTEXT = 24, 2, 10
SIZES = (9, 0, 14, 1, 0)

Block = ModulatedSparseTransformerBlock | ModulatedSparseTransformerCrossBlock


def tensor(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def voxels(sizes: tuple[int, ...] = SIZES, channels: int = CHANNELS, seed: int = 0) -> Voxels:
    return make_voxels(sizes, channels, torch.float32, seed=seed)


def make_block(cross: bool, **options: Any) -> Block:
    torch.manual_seed(0)
    if cross:
        return ModulatedSparseTransformerCrossBlock(
            CHANNELS, CONTEXT, HEADS, mlp_ratio=2, **options
        )
    return ModulatedSparseTransformerBlock(CHANNELS, HEADS, mlp_ratio=2, **options)


def modulation(batch_size: int = len(SIZES), share_mod: bool = False) -> Tensor:
    return tensor(batch_size, 6 * CHANNELS if share_mod else CHANNELS, seed=1)


def contexts(kind: str, sizes: tuple[int, ...] = SIZES) -> list[Any]:
    if kind == "none":
        return []
    if kind == "dense":
        return [tensor(len(sizes), 4, CONTEXT, seed=2)]
    return [voxels(tuple(3 + size for size in sizes), CONTEXT, seed=40)]


KINDS = ["none", "dense", "voxels"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [{}, {"use_rope": True}, {"qk_rms_norm": True}])
def test_equal_clouds_are_a_dense_batch(kind: str, options: dict[str, bool]) -> None:
    x = voxels((7, 7, 7)).double()
    sparse = make_block(kind != "none", **options).double()
    args: list[Any] = [CHANNELS, HEADS] if kind == "none" else [CHANNELS, CONTEXT, HEADS]
    cls = ModulatedTransformerBlock if kind == "none" else ModulatedTransformerCrossBlock
    dense = cls(*args, mlp_ratio=2, **options).double()
    dense.load_state_dict(sparse.state_dict())
    mod = modulation(3).double()
    context = [c.double() for c in contexts(kind, (1, 1, 1))]
    padded = [c.feats.reshape(3, 4, CONTEXT) if isinstance(c, Voxels) else c for c in context]
    cells = x.coordinate_tensor.reshape(3, 7, 3)
    phases = RotaryPositionEmbedder(CHANNELS // HEADS)(cells) if options.get("use_rope") else None

    out = sparse(x, mod, *context)

    expected = dense(x.feats.reshape(3, 7, CHANNELS), mod, *padded, phases=phases)
    torch.testing.assert_close(out.feats.reshape(3, 7, CHANNELS), expected, rtol=0, atol=1e-12)
    assert out.batched_coordinates is x.batched_coordinates


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("use_rope", [False, True])
def test_a_cloud_does_not_know_its_batch(kind: str, use_rope: bool) -> None:
    block = make_block(kind != "none", use_rope=use_rope).double().eval()
    x, mod = voxels().double(), modulation().double()
    context = [c.double() for c in contexts(kind)]

    together = block(x, mod, *context)

    assert together.batch_size == len(SIZES)
    for b in range(len(SIZES)):
        own = [c[b] if isinstance(c, Voxels) else c[b : b + 1] for c in context]
        alone = block(x[b], mod[b : b + 1], *own)
        torch.testing.assert_close(together[b].feats, alone.feats, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_may_come_in_any_order(kind: str) -> None:
    block = make_block(kind != "none", use_rope=True).double()
    x = voxels((12,)).double()
    rows = torch.randperm(12, generator=torch.Generator().manual_seed(0))
    shuffled = Voxels([x.coordinate_tensor[rows]], [x.feats[rows]])
    rest = [modulation(1).double(), *(c.double() for c in contexts(kind, (12,)))]

    torch.testing.assert_close(
        block(shuffled, *rest).feats, block(x, *rest).feats[rows], rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("share_mod", [False, True])
@pytest.mark.parametrize("use_rope", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_checkpointing_changes_nothing(
    kind: str, use_rope: bool, share_mod: bool, autocast: bool
) -> None:
    block = make_block(kind != "none", share_mod=share_mod, use_rope=use_rope, qk_rms_norm=use_rope)
    mod = modulation(share_mod=share_mod)

    assert_twins_agree(block, voxels(), mod, *contexts(kind), autocast=autocast)


def test_arguments_pass_the_boundary_by_keyword() -> None:
    arguments = {"x": voxels(), "mod": modulation(), "context": contexts("voxels")[0]}

    assert_twins_agree(make_block(cross=True), **arguments)


def test_a_whole_batch_of_nothing() -> None:
    for sizes in ((0, 0), (0,)):
        x = voxels(sizes)
        x = x.replace_features(x.feats.requires_grad_())
        block = make_block(cross=True, use_rope=True, use_checkpoint=True)
        out = block(x, modulation(len(sizes)), contexts("dense", sizes)[0])
        assert out.feats.shape == (0, CHANNELS)
        assert out.batch_size == len(sizes)
        out.feats.sum().backward()
        assert all(p.grad is not None for p in block.parameters())


def test_a_voxel_with_an_empty_context_gets_the_last_bias() -> None:
    attn = SparseMultiHeadAttention(CHANNELS, HEADS, CONTEXT, type="cross")
    x, context = voxels((4, 3)), voxels((0, 5), CONTEXT)

    out = attn(x, context)

    assert torch.equal(out[0].feats, attn.to_out.bias.expand(4, -1))
    assert not torch.equal(out[1].feats, attn.to_out.bias.expand(3, -1))


def test_the_four_kinds_of_blocks_are_four_boundaries() -> None:
    blocks = nn.ModuleList(
        [
            ModulatedTransformerBlock(8, 2),
            ModulatedTransformerCrossBlock(8, 8, 2),
            ModulatedSparseTransformerBlock(8, 2),
            ModulatedSparseTransformerCrossBlock(8, 8, 2),
        ]
    )

    assert configure_gradient_checkpointing(blocks) == 4
    assert all(b.gradient_checkpointing and b.use_checkpoint for b in blocks)
    assert configure_gradient_checkpointing(blocks, False) == 4
    assert not any(b.gradient_checkpointing or b.use_checkpoint for b in blocks)


@pytest.mark.parametrize("cross", [False, True])
def test_the_constructor_sets_the_flag(cross: bool) -> None:
    assert make_block(cross, use_checkpoint=True).is_gradient_checkpointing
    assert not make_block(cross).is_gradient_checkpointing
    assert isinstance(make_block(cross), SpatialModule)


def test_keys_are_those_of_the_dense_blocks() -> None:
    options = {"use_rope": True, "qk_rms_norm": True}

    assert list(make_block(False, **options).state_dict()) == list(
        ModulatedTransformerBlock(CHANNELS, HEADS, **options).state_dict()
    )
    assert list(make_block(True, share_mod=True, **options).state_dict()) == list(
        ModulatedTransformerCrossBlock(
            CHANNELS, CONTEXT, HEADS, share_mod=True, **options
        ).state_dict()
    )


def test_another_kernel_can_be_put_in() -> None:
    calls = []

    def kernel(query: Tensor, key: Tensor, value: Tensor, *offsets: Tensor | None) -> Tensor:
        calls.append((query.shape, key.shape))
        return sparse_scaled_dot_product_attention(query, key, value, *offsets)

    block = make_block(cross=True)
    x, mod, context = voxels(), modulation(), contexts("dense")[0]
    expected = block(x, mod, context)
    block.self_attn.attend = block.cross_attn.attend = kernel

    assert torch.equal(block(x, mod, context).feats, expected.feats)
    assert calls == [((24, 2, 12), (24, 2, 12)), ((24, 2, 12), (20, 2, 12))]


def test_checkpointing_keeps_less() -> None:
    x, mod = voxels((200, 100)), modulation(2).requires_grad_()
    x = x.replace_features(x.feats.requires_grad_())
    make_block(False)(x, mod)  # tables of the coordinates are made once and stay with them

    kept = bytes_kept(make_block(False, use_checkpoint=True), x, mod)

    inputs = x.feats.nbytes + x.coordinate_tensor.nbytes + mod.nbytes
    assert kept <= inputs
    assert bytes_kept(make_block(False), x, mod) > 5 * inputs


@pytest.mark.parametrize("kind", ["none", "dense"])
def test_points_attend_like_voxels(kind: str) -> None:
    block, x = make_block(kind != "none"), voxels()
    points = Points(x.coordinates.float(), x.feats, x.offsets)
    rest = [modulation(), *contexts(kind)]

    assert torch.equal(block(points, *rest).feats, block(x, *rest).feats)


class Rows(nn.Module):
    """A stand-in for attention and networks: a linear layer on each row."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(CHANNELS, CHANNELS)

    def forward(self, x: Geometry, *rest: Any) -> Geometry:
        return x.replace_features(self.linear(x.feature_tensor))


@pytest.mark.parametrize("kind", ["none", "dense"])
def test_children_can_be_replaced(kind: str) -> None:
    block = make_block(kind != "none")
    for name in ("attn", "self_attn", "cross_attn", "mlp"):
        if hasattr(block, name):
            setattr(block, name, Rows())
    arguments = [make_points(SIZES, CHANNELS, torch.float32), modulation(), *contexts(kind)]

    expected = block(*arguments).feats
    block.use_checkpoint = True
    out = block(*arguments)

    assert torch.equal(out.feats, expected)
    out.feats.sum().backward()
    assert all(p.grad is not None for p in block.parameters())


def test_the_network_works_on_rows() -> None:
    net = SparseFeedForwardNet(CHANNELS, 2)
    x = voxels()

    assert torch.equal(net(x).feats, net.mlp(x.feats))


X, MOD = voxels((4, 3)), modulation(2)
CTX = contexts("dense", (4, 3))[0]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: make_block(False, attn_mode="windowed"), NotImplementedError, "'windowed'"),
        (lambda: make_block(False, attn_mode="windowed"), ValueError, "'windowed'"),
        (
            lambda: SparseMultiHeadAttention(8, 2, type="cross", use_rope=True),
            ValueError,
            "type='cross'",
        ),
        (lambda: ModulatedSparseTransformerBlock(10, 4), ValueError, "num_heads=4"),
        (lambda: ModulatedSparseTransformerBlock(6, 2, use_rope=True), ValueError, "heads of 3"),
        (lambda: make_block(False)(X.feats, MOD), TypeError, "Voxels, got Tensor"),
        (
            lambda: make_block(False, use_rope=True)(
                make_points((4, 3), CHANNELS, torch.float32), MOD
            ),
            TypeError,
            "Voxels, got Points",
        ),
        (lambda: make_block(False)(voxels((4, 3), 8), MOD), ValueError, "24 channels, got 8"),
        (lambda: make_block(False)(X.replace_features(X.feats.int()), MOD), TypeError, "int32"),
        (lambda: make_block(False)(X, MOD[:1]), ValueError, r"mod .*\(2, 24\), got \(1, 24\)"),
        (lambda: make_block(True)(X, MOD, None), ValueError, "needs context"),
        (lambda: make_block(True)(X, MOD, CTX[:1]), ValueError, r"got \(1, 4, 10\)"),
        (lambda: make_block(True)(X, MOD, CTX[0]), ValueError, r"got \(4, 10\)"),
        (
            lambda: make_block(True)(X, MOD, voxels((4, 3, 2), CONTEXT)),
            ValueError,
            "context has 3 clouds and x has 2",
        ),
        (lambda: make_block(True)(X, MOD, voxels((4, 3), 7)), ValueError, "10 channels, got 7"),
        (lambda: SparseMultiHeadAttention(24, 2)(X, CTX), ValueError, "takes no context"),
        (lambda: SparseFeedForwardNet(24)(X.feats), TypeError, "Voxels, got Tensor"),
        (lambda: SparseFeedForwardNet(8)(X), ValueError, "8 channels, got 24"),
    ],
)
def test_refuses(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
