"""Blocks of the sparse autoencoder: parts, equations written out, stages and checkpointing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.geometry.clouds import LISTED, make_points, make_voxels
from tests.nn.twins import assert_twins_agree, bytes_kept, fill_zeros
from wcn_ckpt.geometry import Geometry, Voxels
from wcn_ckpt.nn.modules import (
    Sequential,
    SparseChannel2Spatial,
    SparseChannelToSpatialResBlock3d,
    SparseConv3d,
    SparseConvNeXtBlock3d,
    SparseSpatial2Channel,
    SparseSpatialToChannelResBlock3d,
    SparseUNetDecoderStages,
    SparseUNetEncoderStages,
)

Up, Down = SparseChannelToSpatialResBlock3d, SparseSpatialToChannelResBlock3d


def scene(channels: int = 16, sizes: tuple[int, ...] = LISTED) -> Voxels:
    return make_voxels(sizes, channels, torch.float32)


def make(cls: type[nn.Module], *args: Any, **options: Any) -> Any:
    torch.manual_seed(0)
    block = cls(*args, **options)
    fill_zeros(block)
    return block


def norm(x: Tensor, eps: float = 1e-6) -> Tensor:
    return (x - x.mean(1, keepdim=True)) / (x.var(1, keepdim=True, correction=0) + eps).sqrt()


def affine_norm(layer: nn.Module, x: Tensor) -> Tensor:
    return norm(x) * layer.weight + layer.bias


def subdivision(x: Voxels, seed: int = 0) -> Voxels:
    values = torch.randn(len(x), 8, generator=torch.Generator().manual_seed(seed))
    return x.replace_features(values - 0.5)


def test_convnext_is_convolution_norm_and_network() -> None:
    block = make(SparseConvNeXtBlock3d, 16, 2.5).double()
    x = scene().double()

    out = block(x)

    h = affine_norm(block.norm, block.conv(x).feats)
    expected = x.feats + block.mlp[2](F.silu(block.mlp[0](h)))
    torch.testing.assert_close(out.feats, expected, rtol=0, atol=1e-12)
    assert out.batched_coordinates is x.batched_coordinates
    assert block.mlp[0].out_features == 40
    assert block.conv.kernel_size == (3, 3, 3)
    assert list(block.state_dict()) == [
        f"{name}.{kind}"
        for name in ("norm", "conv", "mlp.0", "mlp.2")
        for kind in ("weight", "bias")
    ]


def test_a_new_convnext_block_is_the_identity() -> None:
    x = scene()

    assert torch.equal(SparseConvNeXtBlock3d(16)(x).feats, x.feats)


def test_upsampling_with_given_children() -> None:
    block = make(Up, 16, 12, pred_subdiv=False).double()
    x = scene().double()
    given = subdivision(x)

    out = block(x, given)

    kept = given.replace_features(given.feats > 0)
    h = x.replace_features(F.silu(affine_norm(block.norm1, x.feats)))
    h = SparseChannel2Spatial(2)(block.conv1(h), kept)
    h = block.conv2(h.replace_features(F.silu(norm(h.feats))))
    skip = SparseChannel2Spatial(2)(x, kept).feats
    skip = torch.stack([skip[:, c // 6] for c in range(12)], dim=1)
    torch.testing.assert_close(out.feats, h.feats + skip, rtol=0, atol=1e-12)
    assert torch.equal(out.coords, h.coords)
    assert len(out) == int((given.feats > 0).sum())
    assert out.batch_size == len(LISTED)


def test_predicted_children_are_those_with_positive_logits() -> None:
    block = make(Up, 16)
    given = make(Up, 16, pred_subdiv=False)
    given.load_state_dict({k: v for k, v in block.state_dict().items() if "to_subdiv" not in k})
    x = scene()

    out, logits = block(x, subdivision(x))

    expected = F.linear(x.feats, block.to_subdiv.weight, block.to_subdiv.bias)
    assert torch.equal(logits.feats, expected)
    assert logits.batched_coordinates is x.batched_coordinates
    assert torch.equal(out.feats, given(x, logits).feats)


def test_packed_children_come_back_in_their_order() -> None:
    fine = scene(2)
    packed = SparseSpatial2Channel(2)(fine)

    out = make(Up, 16, 4, pred_subdiv=False)(packed)

    assert torch.equal(out.coords, fine.coords)


def test_downsampling() -> None:
    block = make(Down, 16, 32).double()
    x = scene().double()

    out = block(x)

    h = x.replace_features(F.silu(affine_norm(block.norm1, x.feats)))
    h = SparseSpatial2Channel(2)(block.conv1(h))
    h = block.conv2(h.replace_features(F.silu(norm(h.feats))))
    packed = SparseSpatial2Channel(2)(x).feats
    skip = torch.stack([packed[:, 4 * c : 4 * c + 4].mean(1) for c in range(32)], dim=1)
    torch.testing.assert_close(out.feats, h.feats + skip, rtol=0, atol=1e-12)
    assert out.batch_size == len(LISTED)


def test_down_and_up_again_is_back_on_the_voxels() -> None:
    x = scene()

    out = make(Up, 32, 16, pred_subdiv=False)(make(Down, 16, 32)(x))

    assert torch.equal(out.coords, x.coords)


def test_parts_and_keys() -> None:
    up, down = Up(16, 24), Down(16, 32)

    pairs = ("norm1", "conv1", "conv2")
    keys = {f"{name}.{kind}" for name in pairs for kind in ("weight", "bias")}
    assert set(down.state_dict()) == keys
    assert set(up.state_dict()) == keys | {"to_subdiv.weight", "to_subdiv.bias"}
    assert set(Up(16, pred_subdiv=False).state_dict()) == keys
    assert up.conv1.weight.shape == (27, 16, 8 * 24)
    assert down.conv1.weight.shape == (27, 16, 32 // 8)
    assert up.to_subdiv.weight.shape == (8, 16)
    for block in (up, down):
        assert not block.conv2.weight.any()
        assert not block.conv2.bias.any()
        assert block.conv1.weight.any()
        assert block.norm1.eps == block.norm2.eps == 1e-6
    assert Up(27, factor=3).to_subdiv.out_features == 27
    assert Up(8).out_channels == 8


BLOCKS: dict[str, Any] = {
    "convnext": (lambda **o: make(SparseConvNeXtBlock3d, 16, 2.0, **o), ()),
    "up, predicted": (lambda **o: make(Up, 16, 12, **o), ()),
    "up, given": (lambda **o: make(Up, 16, 12, pred_subdiv=False, **o), (subdivision(scene()),)),
    "down": (lambda **o: make(Down, 16, 32, **o), ()),
}


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("autocast", [False, True])
def test_checkpointing_changes_nothing(name: str, autocast: bool) -> None:
    build, rest = BLOCKS[name]

    assert_twins_agree(build(), scene(), *rest, autocast=autocast)


def test_checkpointing_with_packed_children_changes_nothing() -> None:
    packed = SparseSpatial2Channel(2)(scene(2))

    assert_twins_agree(make(Up, 16, 4, pred_subdiv=False), packed)


def test_children_survive_a_replay_on_other_storage() -> None:
    block = make(Up, 16, 4, pred_subdiv=False, use_checkpoint=True)
    packed = SparseSpatial2Channel(2)(scene(2))

    with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda tensor: tensor):
        out = block(packed)
    out.feats.square().sum().backward()

    grads = [p.grad.clone() for p in block.parameters()]
    block.zero_grad()
    block.use_checkpoint = False
    block(packed).feats.square().sum().backward()
    assert all(torch.equal(a, p.grad) for a, p in zip(grads, block.parameters(), strict=True))


def test_a_loss_on_the_children_alone_does_not_train_the_choice() -> None:
    block = make(Up, 16, use_checkpoint=True)
    out, logits = block(scene())

    grads = torch.autograd.grad(
        out.feats.square().sum(), list(block.to_subdiv.parameters()), allow_unused=True
    )
    assert grads == (None, None)
    assert torch.autograd.grad(logits.feats.square().sum(), block.to_subdiv.weight)[0].any()


@pytest.mark.parametrize("name", BLOCKS)
def test_a_cloud_does_not_know_its_batch(name: str) -> None:
    build, rest = BLOCKS[name]
    block, x = build().double().eval(), scene().double()

    def first(out: Any) -> Voxels:
        together: Voxels = out[0] if isinstance(out, tuple) else out
        return together

    together = first(block(x, *rest))
    for b in range(x.batch_size):
        alone = first(block(x[b], *(r[b] for r in rest)))
        assert torch.equal(together[b].coords, alone.coords)
        torch.testing.assert_close(together[b].feats, alone.feats, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", BLOCKS)
def test_rows_may_come_in_any_order(name: str) -> None:
    build, rest = BLOCKS[name]
    block, x = build().double(), scene(sizes=(20,)).double()
    order = torch.randperm(20, generator=torch.Generator().manual_seed(0))
    given = subdivision(x)

    def by_cell(voxels: Voxels, rows: Tensor | slice) -> dict[Any, Tensor]:
        cells = voxels.coordinates[rows]
        args = [Voxels([cells], [part.feats[rows]]) for part in (voxels, given)]
        out = block(*args[: 1 + len(rest)])
        out = out[0] if isinstance(out, tuple) else out
        return dict(zip(map(tuple, out.coordinates.tolist()), out.feats, strict=True))

    expected, got = by_cell(x, slice(None)), by_cell(x, order)

    assert expected.keys() == got.keys()
    for cell, row in expected.items():
        torch.testing.assert_close(got[cell], row, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", BLOCKS)
def test_gradients_are_those_of_finite_differences(name: str) -> None:
    build, rest = BLOCKS[name]
    block = build(use_checkpoint=True).double()
    x = scene(sizes=(4, 3)).double()
    rest = (subdivision(x),) if rest else ()

    def run(rows: Tensor) -> Tensor:
        out = block(x.replace_features(rows), *rest)
        tensors = [o.feats for o in out] if isinstance(out, tuple) else [out.feats]
        return torch.cat([t.flatten() for t in tensors])

    assert torch.autograd.gradcheck(run, x.feats.clone().requires_grad_(), fast_mode=True)


@pytest.mark.parametrize("name", BLOCKS)
def test_nothing_stays_nothing(name: str) -> None:
    build, rest = BLOCKS[name]
    x = scene(sizes=(0, 0))
    x = x.replace_features(x.feats.requires_grad_())
    out = build(use_checkpoint=True)(x, *((subdivision(x),) if rest else ()))

    y = out[0] if isinstance(out, tuple) else out
    assert len(y) == 0
    assert y.batch_size == 2
    y.feats.sum().backward()


def test_no_child_at_all() -> None:
    block = make(Up, 16, use_checkpoint=True)
    nn.init.constant_(block.to_subdiv.bias, -100.0)

    out, logits = block(scene())

    assert out.feats.shape == (0, 16)
    assert out.batch_size == len(LISTED)
    assert len(logits) == len(scene())
    (out.feats.sum() + logits.feats.sum()).backward()


def test_blocks_are_spatial() -> None:
    chain = Sequential(SparseConvNeXtBlock3d(8), nn.ReLU(), Down(8, 16), nn.Identity())

    assert chain(scene(8)).num_channels == 16


class Wide(SparseConv3d):
    """Another convolution class, told apart by its type."""


@pytest.mark.parametrize("cls", [Up, Down, SparseConvNeXtBlock3d])
def test_the_class_of_the_convolutions_can_be_chosen(cls: Any) -> None:
    block = cls(16, conv_cls=Wide, kernel_size=5)
    convs = [m for m in block.modules() if isinstance(m, SparseConv3d)]

    assert convs
    assert all(type(conv) is Wide and conv.kernel_size == (5, 5, 5) for conv in convs)


class Rows(nn.Module):
    """A stand-in for a convolution: a linear layer on each row."""

    def __init__(self, channels: int, out_channels: int) -> None:
        super().__init__()
        self.linear = nn.Linear(channels, out_channels)

    def forward(self, x: Geometry) -> Geometry:
        return x.replace_features(self.linear(x.feature_tensor))


def test_convolutions_can_be_replaced() -> None:
    convnext, up, down = make(SparseConvNeXtBlock3d, 16), make(Up, 16), make(Down, 16)
    convnext.conv = Rows(16, 16)
    up.conv1, up.conv2 = Rows(16, 128), Rows(16, 16)
    down.conv1, down.conv2 = Rows(16, 2), Rows(16, 16)

    for block in (convnext, up, down):
        assert_twins_agree(block, scene())
    assert_twins_agree(convnext, make_points(channels=16, dtype=torch.float32))


def test_checkpointing_keeps_less() -> None:
    x = scene(sizes=(200, 150))
    x = x.replace_features(x.feats.requires_grad_())
    for cls in (Up, Down, SparseConvNeXtBlock3d):
        make(cls, 16)(x)  # tables of the coordinates are made once and stay with them
        kept, ordinary = (bytes_kept(make(cls, 16, use_checkpoint=on), x) for on in (True, False))
        assert kept < 0.5 * ordinary


REGISTRY = {"next": SparseConvNeXtBlock3d, "down": Down, "up": Up}


def test_encoder_stages() -> None:
    stages = SparseUNetEncoderStages(
        [8, 16, 16], [2, 0, 1], ["next"] * 3, ["down"] * 2, [{}, {"use_checkpoint": True}, {}],
        REGISTRY, {"kernel_size": 1},
    )  # fmt: skip

    assert [[type(b) for b in stage] for stage in stages] == [
        [SparseConvNeXtBlock3d, SparseConvNeXtBlock3d, Down],
        [Down],
        [SparseConvNeXtBlock3d],
    ]
    assert stages[0][2].conv1.kernel_size == (1, 1, 1)
    assert [b.use_checkpoint for stage in stages for b in stage] == [False] * 3 + [True] + [False]
    assert "0.2.conv1.weight" in stages.state_dict()
    x = scene(8)
    expected = x
    for stage in stages:
        for block in stage:
            expected = block(expected)
    assert torch.equal(stages.run(x).feats, expected.feats)


def test_decoder_stages() -> None:
    stages = SparseUNetDecoderStages(
        [32, 16, 8], [1, 1, 1], ["next"] * 3, ["up"] * 2, [{}] * 3, REGISTRY
    )
    x = scene(32)

    out, subs = stages.run(x, return_subs=True)

    assert [s.num_channels for s in subs] == [8, 8]
    assert torch.equal(subs[0].coords, x.coords)
    assert torch.equal(stages.run(x).feats, out.feats)
    assert torch.equal(stages.run(x, stop_before_stage=0).feats, x.feats)
    assert torch.equal(stages.run(x, stop_before_stage=1).coords, subs[1].coords)

    given = SparseUNetDecoderStages(
        [32, 16, 8], [1, 1, 1], ["next"] * 3, ["up"] * 2, [{}] * 3, REGISTRY, {"pred_subdiv": False}
    )
    given.load_state_dict(stages.state_dict(), strict=False)
    assert torch.equal(given.run(x, guide_subs=subs).feats, out.feats)


def encoder_stages(**change: Any) -> SparseUNetEncoderStages:
    arguments = {
        "model_channels": [8, 16],
        "num_blocks": [1, 1],
        "block_type": ["next"] * 2,
        "down_block_type": ["down"],
        "block_args": [{}, {}],
        "block_registry": REGISTRY,
    }
    return SparseUNetEncoderStages(**{**arguments, **change})


def decoder_stages() -> SparseUNetDecoderStages:
    return SparseUNetDecoderStages([16, 8], [1, 1], ["next"] * 2, ["up"], [{}, {}], REGISTRY)


X = scene()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: SparseConvNeXtBlock3d(0), ValueError, "channels.*got 0"),
        (lambda: SparseConvNeXtBlock3d(4, 0.1), ValueError, "mlp_ratio=0.1"),
        (lambda: SparseConvNeXtBlock3d(16)(X.feats), TypeError, "Voxels, got Tensor"),
        (lambda: SparseConvNeXtBlock3d(8)(X), ValueError, "8 channels, got 16"),
        (lambda: Up(12), ValueError, "channels=12 .* 8"),
        (lambda: Up(16, 13), ValueError, "out_channels=13 .* 2 channels"),
        (lambda: Up(16, 0), ValueError, "out_channels.*got 0"),
        (lambda: Up(16)(make_points(channels=16)), TypeError, "Voxels, got Points"),
        (lambda: Up(8)(X), ValueError, "8 channels, got 16"),
        (lambda: Up(16, pred_subdiv=False)(X), ValueError, "remember"),
        (lambda: Up(16, pred_subdiv=False)(X, X.feats), TypeError, "subdiv must be Voxels"),
        (lambda: Up(16, pred_subdiv=False)(X, X), ValueError, r"got \(55, 16\)"),
        (lambda: Up(16, pred_subdiv=False)(X, scene(8, (55,))), ValueError, "subdiv must have"),
        (lambda: Down(16, 12), ValueError, "out_channels=12 .* 8"),
        (lambda: Down(4, 24), ValueError, "32 packed channels .* out_channels=24"),
        (lambda: Down(16)(X.feats), TypeError, "Voxels, got Tensor"),
        (lambda: encoder_stages(num_blocks=[1]), ValueError, "num_blocks needs 2 entries.*got 1"),
        (lambda: encoder_stages(num_blocks=[1, -1]), ValueError, "negative"),
        (lambda: encoder_stages(block_args=[{}]), ValueError, "block_args needs 2"),
        (
            lambda: encoder_stages(down_block_type=[]),
            ValueError,
            "down_block_type needs 1 entries for 2 stages, got 0",
        ),
        (lambda: encoder_stages(model_channels=[]), ValueError, "model_channels needs 1"),
        (lambda: encoder_stages(block_type=["next", "nxt"]), KeyError, "no block 'nxt'; known"),
        (lambda: encoder_stages(block_type=["next", "nxt"]), ValueError, "no block 'nxt'; known"),
        (lambda: encoder_stages(block_args=[{"mlp_ratio": 2}, {}]), TypeError, "mlp_ratio"),
        (
            lambda: encoder_stages(
                num_blocks=[0, 1],
                block_args=[{"kernel_size": 3}, {}],
                down_block_kwargs={"kernel_size": 1},
            ),
            TypeError,
            "multiple values for keyword argument 'kernel_size'",
        ),
        (lambda: decoder_stages().run(X, [X], True), ValueError, "one or the other"),
        (lambda: decoder_stages().run(X, []), ValueError, "each of the 1 resampling.*got 0"),
        (
            lambda: decoder_stages().run(X, stop_before_stage=2),
            ValueError,
            "stages 0 to 1, so it cannot stop before 2",
        ),
    ],
)
def test_refuses(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
