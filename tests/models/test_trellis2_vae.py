"""Sparse and dense autoencoders of TRELLIS.2."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.geometry.clouds import make_points
from tests.models.trellis import SIZES, decoder, encoder, make, scene, stages
from tests.nn.twins import assert_twins_agree, boundaries, bytes_kept
from wcn_ckpt.geometry import Voxels
from wcn_ckpt.models import (
    FlexiDualGridVaeDecoder,
    FlexiDualGridVaeEncoder,
    SparseStructureDecoder,
    SparseStructureEncoder,
    SparseUnetVaeDecoder,
    SparseUnetVaeEncoder,
)
from wcn_ckpt.models.trellis2 import convert_weights
from wcn_ckpt.models.trellis2.shape_decoders import DECODER_BLOCKS
from wcn_ckpt.models.trellis2.sparse_conv_blocks import (
    SparseConvNeXtBlock3d,
    SparseResBlockC2S3d,
    SparseResBlockS2C3d,
)
from wcn_ckpt.nn import modules
from wcn_ckpt.nn.modules import SparseConv3d, configure_gradient_checkpointing


def full_grid() -> Voxels:
    cells = torch.cartesian_prod(*[torch.arange(4, dtype=torch.int32)] * 3)
    return Voxels([cells], [torch.randn(64, 6, generator=torch.Generator().manual_seed(0))])


def test_tiny_encoder_on_a_full_grid() -> None:
    model = encoder()
    model.gradient_checkpointing_enable()

    z = model(full_grid())
    z.feats.square().sum().backward()

    assert z.feats.shape == (8, 8)
    assert len(boundaries(model)) == 3
    assert all(p.grad is not None and p.grad.any() for p in model.parameters())


def test_the_encoder_is_its_parts() -> None:
    model, x = encoder(), scene(6)

    z, mean, logvar = model(x, return_raw=True)

    h = x.replace_features(model.input_layer(x.feats))
    h = model.blocks[0][1](model.blocks[0][0](h))
    h = model.blocks[1][0](h)
    expected = model.to_latent(F.layer_norm(h.feats, (32,), eps=1e-5))
    assert torch.equal(torch.cat([mean, logvar], dim=1), expected)
    assert torch.equal(z.feats, mean)
    assert torch.equal(model(x).feats, mean)
    assert z.batch_size == len(SIZES)

    torch.manual_seed(3)
    drawn = model(x, sample_posterior=True)
    torch.manual_seed(3)
    noise = torch.randn(mean.shape)
    assert torch.equal(drawn.feats, mean + torch.exp(0.5 * logvar) * noise)


def test_the_decoder_is_its_parts() -> None:
    model, z = decoder(), scene(8)

    out, subs = model(z, return_subs=True)

    h = z.replace_features(model.from_latent(z.feats))
    h, logits = model.blocks[0][1](model.blocks[0][0](h))
    h = model.blocks[1][0](h)
    assert torch.equal(out.feats, model.output_layer(F.layer_norm(h.feats, (16,), eps=1e-5)))
    assert torch.equal(subs[0].feats, logits.feats)
    assert torch.equal(model(z).feats, out.feats)
    assert torch.equal(model.upsample(z, 1), out.coords)
    assert torch.equal(model.upsample(z, 0), z.coords)


def test_guided_decoding_follows_predictions() -> None:
    model = decoder(3)
    guided = decoder(3, pred_subdiv=False)
    guided.load_state_dict(
        {name: p for name, p in model.state_dict().items() if "to_subdiv" not in name}
    )

    out, subs = model(scene(8), return_subs=True)

    assert torch.equal(guided(scene(8), guide_subs=subs).feats, out.feats)


def test_an_encoders_latent_knows_its_voxels() -> None:
    x = scene(6)

    out = decoder(3, pred_subdiv=False)(encoder(3)(x))

    assert torch.equal(out.coords, x.coords)
    assert out.num_channels == 7


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("which", ["encoder", "decoder", "guided", "flexi encoder"])
def test_checkpointing_changes_nothing(which: str, autocast: bool) -> None:
    if which == "encoder":
        assert_twins_agree(encoder(3), scene(6), return_raw=True, autocast=autocast)
    elif which == "decoder":
        assert_twins_agree(decoder(), scene(8), return_subs=True, autocast=autocast)
    elif which == "guided":
        subs = decoder()(scene(8), return_subs=True)[1]
        model = decoder(pred_subdiv=False)
        assert_twins_agree(model, scene(8), guide_subs=subs, autocast=autocast)
    else:
        model = make(FlexiDualGridVaeEncoder, **stages(2, True))
        vertices = scene(3)
        flags = vertices.replace_features(vertices.feats > 0)
        assert_twins_agree(model, vertices, flags, sample_posterior=True, autocast=autocast)


@pytest.mark.parametrize("make_model", [encoder, decoder])
def test_boundaries_and_how_they_are_switched(make_model: Any) -> None:
    model = make_model(3, num_blocks=[2, 0, 1])
    blocks = boundaries(model)

    assert len(blocks) == 3 + 2
    assert not model.is_gradient_checkpointing
    model.gradient_checkpointing_enable({"preserve_rng_state": False})
    assert all(b.gradient_checkpointing for b in blocks)
    assert {b._gradient_checkpointing_func.keywords["preserve_rng_state"] for b in blocks} == {
        False
    }
    model.gradient_checkpointing_disable()
    assert not model.is_gradient_checkpointing
    model.use_checkpoint = True
    assert all(b.use_checkpoint for b in blocks)
    model.use_checkpoint = False
    assert configure_gradient_checkpointing(model) == 5
    with pytest.raises(ValueError, match="use_reentrant=False"):
        model.gradient_checkpointing_enable({"use_reentrant": True})

    some = make_model(2, block_args=[{"use_checkpoint": True}, {}])
    assert [b.gradient_checkpointing for b in boundaries(some)] == [True, True, False]
    assert some.is_gradient_checkpointing
    with pytest.raises(TypeError, match="use_checkpoint"):
        make_model(2, use_checkpoint=True)


@pytest.mark.parametrize("make_model", [encoder, decoder])
def test_a_cloud_does_not_know_its_batch(make_model: Any) -> None:
    model = make_model().double().eval()
    x = scene(6 if make_model is encoder else 8).double()

    together = model(x)

    for b in range(len(SIZES)):
        alone = model(x[b])
        assert torch.equal(together[b].coordinates, alone.coordinates)
        torch.testing.assert_close(together[b].feats, alone.feats, rtol=0, atol=1e-11)


def test_dual_grids() -> None:
    inner = make(FlexiDualGridVaeEncoder, **stages(2, True))
    vertices = scene(3)
    flags = vertices.replace_features(vertices.feats > 0)

    z = inner(vertices, flags)

    joined = torch.cat([vertices.feats - 0.5, (vertices.feats > 0).float() - 0.5], dim=1)
    expected = SparseUnetVaeEncoder.forward(inner, vertices.replace_features(joined))
    assert torch.equal(z.feats, expected.feats)
    assert inner.input_layer.in_features == 6

    outer = make(FlexiDualGridVaeDecoder, 64, **stages(2, False), voxel_margin=0.25)
    raw = SparseUnetVaeDecoder.forward(outer, z).feats
    positions, crossed, weight = outer(z)
    assert torch.equal(positions.feats, 1.5 * raw[:, :3].sigmoid() - 0.25)
    assert torch.equal(crossed.feats, raw[:, 3:6] > 0)
    assert torch.equal(weight.feats, F.softplus(raw[:, 6:]))
    assert outer.resolution == 64
    assert len(outer(z, return_subs=True)) == 3


def test_half_precision_is_inside_the_stages_only() -> None:
    model = encoder(use_fp16=True)
    assert model.dtype == torch.float16
    assert encoder().dtype == torch.float32
    assert encoder().double().dtype == torch.float64

    for name, parameter in model.named_parameters():
        inside = name.startswith("blocks") and ".norm" not in name
        assert parameter.dtype == (torch.float16 if inside else torch.float32), name
    inputs: list[torch.dtype] = []
    model.blocks[0][0].register_forward_pre_hook(lambda m, args: inputs.append(args[0].dtype))
    z = model(scene(6))
    assert inputs == [torch.float16]
    assert z.dtype == torch.float32
    torch.testing.assert_close(z.feats, encoder()(scene(6)).feats, rtol=0, atol=0.02)

    fine = decoder(use_fp16=True)(scene(8))
    assert fine.dtype == torch.float32
    assert_twins_agree(model, scene(6))


@pytest.mark.parametrize("sizes", [(0,), (0, 0)])
def test_nothing_stays_nothing(sizes: tuple[int, ...]) -> None:
    for model, channels in ((encoder(), 6), (decoder(), 8)):
        model.use_checkpoint = True
        out = model(scene(channels, sizes))
        assert len(out) == 0
        assert out.batch_size == len(sizes)
        out.feats.sum().backward()


def test_state_keys() -> None:
    keys = list(encoder().state_dict())

    assert [k for k in keys if not k.startswith("blocks.")] == [
        "input_layer.weight", "input_layer.bias", "to_latent.weight", "to_latent.bias",
    ]  # fmt: skip
    assert {".".join(k.split(".")[:4]) for k in keys if k.startswith("blocks.0")} == {
        "blocks.0.0.norm", "blocks.0.0.conv", "blocks.0.0.mlp",
        "blocks.0.1.norm1", "blocks.0.1.conv1", "blocks.0.1.conv2",
    }  # fmt: skip
    assert "blocks.0.1.to_subdiv.weight" in decoder().state_dict()
    assert {"from_latent.weight", "output_layer.bias"} <= set(decoder().state_dict())
    copied = copy.deepcopy(encoder())
    copied.use_checkpoint = True
    assert list(copied.state_dict()) == keys


def test_weights_of_the_original_convert() -> None:
    conv = nn.ModuleDict({"conv": SparseConv3d(3, 5, (2, 3, 4)), "dense": nn.Conv3d(3, 5, 2)})
    external = torch.randn(5, 2, 3, 4, 3)
    dense = torch.randn(5, 3, 2, 2, 2)

    state = convert_weights({"conv.weight": external, "dense.weight": dense}, conv)

    for i, j, k in ((0, 0, 0), (1, 2, 3), (0, 1, 2)):
        assert torch.equal(state["conv.weight"][(i * 3 + j) * 4 + k], external[:, i, j, k].t())
    assert state["dense.weight"] is dense
    conv.load_state_dict(state, strict=False)


def test_the_named_blocks() -> None:
    assert isinstance(SparseConvNeXtBlock3d(8), modules.SparseConvNeXtBlock3d)
    assert isinstance(SparseResBlockS2C3d(8, 16), modules.SparseSpatialToChannelResBlock3d)
    up = SparseResBlockC2S3d(8, 4, True, False)
    assert isinstance(up, modules.SparseChannelToSpatialResBlock3d)
    assert up.use_checkpoint
    assert not up.pred_subdiv
    assert DECODER_BLOCKS["SparseResBlockC2S3d"] is SparseResBlockC2S3d


def test_checkpointing_keeps_less() -> None:
    x = scene(6, (400, 300))
    encoder(3)(x)  # tables of the coordinates are made once and stay with them

    ordinary, model = encoder(3), encoder(3)
    model.use_checkpoint = True

    assert bytes_kept(model, x) < 0.35 * bytes_kept(ordinary, x)


class Grid:
    """Dense grids for the dense autoencoder."""

    @staticmethod
    def encoder(**change: Any) -> SparseStructureEncoder:
        options = {"num_res_blocks": 2, "channels": [32, 64], **change}
        model: SparseStructureEncoder = make(SparseStructureEncoder, 1, 4, **options)
        return model

    @staticmethod
    def decoder(**change: Any) -> SparseStructureDecoder:
        options = {"num_res_blocks": 2, "channels": [64, 32], **change}
        model: SparseStructureDecoder = make(SparseStructureDecoder, 1, 4, **options)
        return model


@pytest.mark.parametrize("norm_type", ["layer", "group"])
def test_dense_autoencoder(norm_type: str) -> None:
    enc, dec = Grid.encoder(norm_type=norm_type), Grid.decoder(norm_type=norm_type)
    x = torch.randn(2, 1, 8, 8, 8)

    z, mean, logvar = enc(x, return_raw=True)
    out = dec(z)

    h = enc.input_layer(x)
    for block in enc.blocks:
        h = block(h)
    h = enc.out_layer(enc.middle_block(h))
    assert torch.equal(torch.cat([mean, logvar], dim=1), h)
    assert z.shape == (2, 4, 4, 4, 4)
    assert torch.equal(enc(x), mean)
    torch.manual_seed(1)
    drawn = enc(x, sample_posterior=True)
    torch.manual_seed(1)
    assert torch.equal(drawn, mean + (0.5 * logvar).exp() * torch.randn(mean.shape))
    h = dec.middle_block(dec.input_layer(z))
    for block in dec.blocks:
        h = block(h)
    assert torch.equal(out, dec.out_layer(h))
    assert out.shape == x.shape
    out.square().sum().backward()
    assert all(p.grad.any() for p in dec.parameters())


def test_dense_autoencoder_layout() -> None:
    enc, dec = Grid.encoder(), Grid.decoder()

    kinds = [type(block).__name__ for block in enc.blocks]
    assert kinds == ["ResBlock3d"] * 2 + ["DownsampleBlock3d"] + ["ResBlock3d"] * 2
    assert [type(block).__name__ for block in dec.blocks][2] == "UpsampleBlock3d"
    assert {k.split(".")[0] for k in enc.state_dict()} == {
        "input_layer", "blocks", "middle_block", "out_layer",
    }  # fmt: skip
    assert len(enc.middle_block) == len(dec.middle_block) == 2
    assert enc.out_layer[2].out_channels == 8
    assert dec.middle_block[0].conv1.in_channels == 64
    assert enc.out_layer[0].eps == 1e-5
    for model in (enc, dec):
        assert configure_gradient_checkpointing(model, strict=False) == 0
        with pytest.raises(ValueError, match="no gradient-checkpointing boundary"):
            configure_gradient_checkpointing(model)


def test_dense_autoencoder_in_half_precision() -> None:
    half = Grid.encoder(use_fp16=True)
    x = torch.randn(1, 1, 8, 8, 8)

    assert half.dtype == torch.float16
    assert {p.dtype for p in half.out_layer.parameters()} == {torch.float32}
    assert half(x).dtype == torch.float32
    torch.testing.assert_close(half(x), Grid.encoder()(x), rtol=0, atol=0.05)
    assert Grid.decoder(use_fp16=True)(torch.randn(1, 4, 4, 4, 4)).dtype == torch.float32


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: encoder(num_blocks=[1]), ValueError, "num_blocks needs 2"),
        (lambda: encoder(block_type=["ConvNeXt"] * 2), KeyError, "'ConvNeXt'; known"),
        (lambda: encoder(down_block_type=["SparseResBlockC2S3d"]), KeyError, "C2S3d"),
        (lambda: encoder(latent_channels=0), ValueError, "latent_channels.*0"),
        (lambda: encoder()(scene(6).feats), TypeError, "Voxels, got Tensor"),
        (lambda: encoder()(make_points(channels=6)), TypeError, "Voxels, got Points"),
        (lambda: encoder()(scene(5)), ValueError, "6 channels, got 5"),
        (lambda: encoder()(scene(6).double()), TypeError, "float64.*float32"),
        (lambda: decoder()(scene(8), guide_subs=[scene(8)]), ValueError, "pred_subdiv=False"),
        (lambda: decoder(pred_subdiv=False)(scene(8), return_subs=True), ValueError, "makes none"),
        (lambda: decoder(pred_subdiv=False)(scene(8)), ValueError, "remember"),
        (lambda: decoder(pred_subdiv=False).upsample(scene(8), 1), ValueError, "pred_subdiv=False"),
        (lambda: decoder().upsample(scene(8), 5), ValueError, "stages 0 to 1"),
        (
            lambda: make(FlexiDualGridVaeDecoder, 0, **stages(2, False)),
            ValueError,
            "resolution.*got 0",
        ),
        (
            lambda: make(FlexiDualGridVaeDecoder, 64, **stages(2, False), voxel_margin=-1.0),
            ValueError,
            "voxel_margin.*-1.0",
        ),
        (
            lambda: make(FlexiDualGridVaeDecoder, 64, **stages(2, False))(scene(8), [scene(8)]),
            ValueError,
            "predicts them",
        ),
        (
            lambda: make(FlexiDualGridVaeEncoder, **stages(2, True))(scene(3), scene(4)),
            ValueError,
            "3 channels, got 4",
        ),
        (
            lambda: make(FlexiDualGridVaeEncoder, **stages(2, True))(scene(3), scene(3, (24,))),
            ValueError,
            "intersected must have the rows",
        ),
        (lambda: Grid.encoder(norm_type="batch"), ValueError, "'batch'"),
        (lambda: Grid.encoder(channels=[]), ValueError, "channels"),
        (lambda: Grid.encoder(channels=[32, 0]), ValueError, "every entry of channels.*0"),
        (lambda: Grid.encoder(num_res_blocks=-1), ValueError, "num_res_blocks.*-1"),
        (lambda: Grid.encoder()(torch.ones(1, 1, 7, 7, 7)), ValueError, r"by 2, got \(7, 7, 7\)"),
        (lambda: Grid.encoder()(torch.ones(1, 2, 8, 8, 8)), ValueError, r"\(1, 2, 8, 8, 8\)"),
        (lambda: Grid.decoder()(torch.ones(4, 4, 4, 4)), ValueError, r"\(4, 4, 4, 4\)"),
        (lambda: Grid.decoder()(torch.ones(1, 4, 4, 4, 4).double()), TypeError, "float64"),
    ],
)
def test_refuses(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_unknown_names_are_also_value_errors() -> None:
    with pytest.raises(ValueError, match="no block 'ConvNeXt'; known are"):
        encoder(block_type=["ConvNeXt"] * 2)
