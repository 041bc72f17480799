"""MinkUNet: shapes, counts, the graph, and training with every block recomputed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.geometry.clouds import make_voxels
from wcn_ckpt.geometry import Voxels, cat
from wcn_ckpt.models import (
    MinkUNet14,
    MinkUNet18,
    MinkUNet34,
    MinkUNet50,
    MinkUNet101,
    MinkUNetBase,
)
from wcn_ckpt.nn.modules import BasicBlock, BottleneckBlock, configure_gradient_checkpointing

Variant = Callable[..., MinkUNetBase]
VARIANTS: list[tuple[Variant, int, int]] = [
    (MinkUNet14, 8, 32),
    (MinkUNet18, 16, 48),
    (MinkUNet34, 23, 62),
    (MinkUNet50, 23, 85),
    (MinkUNet101, 40, 136),
]
TINY = {"planes": (8, 16, 24, 32, 32, 24, 16, 8), "layers": (1,) * 8, "init_dim": 8}


def tiny(**options: Any) -> MinkUNetBase:
    torch.manual_seed(0)
    settings: dict[str, Any] = {**TINY, **options}
    return MinkUNetBase(3, 5, **settings)


def scene(dtype: torch.dtype = torch.float32) -> Voxels:
    """Return voxels that still number two or more at a sixteenth of the resolution."""
    return make_voxels((150, 0, 90, 0), channels=3, dtype=dtype, low=-20, high=20)


def norms(model: nn.Module) -> list[nn.BatchNorm1d]:
    return [module for module in model.modules() if isinstance(module, nn.BatchNorm1d)]


def boundaries(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if "gradient_checkpointing" in vars(module)]


@pytest.mark.parametrize(("variant", "blocks", "batch_norms"), VARIANTS)
def test_counts_of_the_variants(variant: Variant, blocks: int, batch_norms: int) -> None:
    with torch.device("meta"):
        model = variant(3, 5)

    kind = BottleneckBlock if batch_norms > 62 else BasicBlock
    assert len(boundaries(model)) == blocks == sum(model.LAYERS)
    assert all(type(block) is kind for block in boundaries(model))
    assert len(norms(model)) == batch_norms
    assert sum("downsample.0.weight" in key for key in model.state_dict()) == 7
    assert tuple(model.PLANES) == (32, 64, 128, 256, 256, 128, 96, 96)
    assert model.INIT_DIM == 32


@pytest.mark.parametrize(("variant", "blocks", "batch_norms"), VARIANTS)
def test_switching_reaches_every_block(variant: Variant, blocks: int, batch_norms: int) -> None:
    with torch.device("meta"):
        model, started = variant(3, 5), variant(3, 5, use_checkpoint=True)
    keys = list(model.state_dict())

    assert not model.is_gradient_checkpointing
    assert started.is_gradient_checkpointing
    assert configure_gradient_checkpointing(model) == blocks
    assert list(model.state_dict()) == keys == list(started.state_dict())
    for each in (model, started):
        each.gradient_checkpointing_disable()
        assert not each.is_gradient_checkpointing


def test_output_is_on_the_voxels_of_the_input() -> None:
    voxels = scene()

    out = tiny()(voxels)

    assert out.coordinates is voxels.coordinates
    assert out.tensor_stride == (1, 1, 1)
    assert out.feats.shape == (240, 5)
    assert out.offsets.tolist() == [0, 150, 150, 240, 240]


def test_the_graph_is_a_u_with_skips() -> None:
    model, x = tiny().eval(), scene()

    s0 = model.conv0(x)
    s1 = model.block1(model.conv1(s0))
    s2 = model.block2(model.conv2(s1))
    s3 = model.block3(model.conv3(s2))
    u = model.block4(model.conv4(s3))
    strides = [v.tensor_stride for v in (s0, s1, s2, s3, u)]
    for convtr, block, skip in (
        (model.convtr4, model.block5, s3),
        (model.convtr5, model.block6, s2),
        (model.convtr6, model.block7, s1),
        (model.convtr7, model.block8, s0),
    ):
        u = block(cat(convtr(u, skip), skip))

    assert torch.equal(model(x).feats, model.final(u).feats)
    assert strides == [None, (2, 2, 2), (4, 4, 4), (8, 8, 8), (16, 16, 16)]


def test_channels_of_every_stage() -> None:
    with torch.device("meta"):
        model = MinkUNet18(3, 5)

    stages = {f"block{i}": getattr(model, f"block{i}") for i in range(1, 9)}
    widths = {
        name: (stage[0].conv1[0].in_channels, stage[-1].conv2[0].out_channels)
        for name, stage in stages.items()
    }
    assert widths == {
        "block1": (32, 32),
        "block2": (32, 64),
        "block3": (64, 128),
        "block4": (128, 256),
        "block5": (256 + 128, 256),
        "block6": (128 + 64, 128),
        "block7": (96 + 32, 96),
        "block8": (96 + 32, 96),
    }
    assert model.final.bias is not None


def test_a_stem_of_another_width_fits() -> None:
    assert tiny(init_dim=12)(scene()).num_channels == 5


def test_clouds_do_not_see_each_other_in_evaluation() -> None:
    model, voxels = tiny().double().eval(), scene(torch.float64)

    together = model(voxels)

    for cloud in (0, 2):
        torch.testing.assert_close(together[cloud].feats, model(voxels[cloud]).feats)


@pytest.mark.parametrize("block", [BasicBlock, BottleneckBlock])
@pytest.mark.parametrize("autocast", [False, True])
def test_a_training_step_is_the_same_with_checkpointing(
    block: type[nn.Module], autocast: bool
) -> None:
    ordinary = tiny(BLOCK=block)
    recomputed = copy.deepcopy(ordinary)
    recomputed.gradient_checkpointing_enable()

    def step(model: MinkUNetBase) -> list[Tensor]:
        rows = scene().feats.requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            out = model(scene().replace_features(rows))
        loss = out.batched_features.tensor.float().square().mean()
        gradients = torch.autograd.grad(loss, [rows, *model.parameters()])
        return [loss, *gradients, *model.buffers()]

    expected, got = step(ordinary), step(recomputed)

    assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))
    assert all(norm.num_batches_tracked == 1 for norm in norms(recomputed))
    assert all(gradient.abs().sum() > 0 for gradient in got[1 : len(list(ordinary.parameters()))])


def test_the_last_layer_keeps_the_autocast_dtype() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = tiny()(scene())

    assert out.dtype == torch.bfloat16


def test_checkpointing_keeps_less() -> None:
    def bytes_kept(use_checkpoint: bool) -> int:
        kept: dict[int, int] = {}

        def pack(tensor: Tensor) -> Tensor:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        model = tiny(use_checkpoint=use_checkpoint)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            out = model(scene())
        assert out.feats.requires_grad
        return sum(kept.values())

    assert bytes_kept(True) < bytes_kept(False)


def test_one_voxel_at_the_coarsest_level_is_refused_in_training() -> None:
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        tiny()(make_voxels((30,), channels=3, low=0, high=8).float())


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"planes": (8,) * 7}, ValueError, "planes needs one entry for each of the 8"),
        ({"layers": (1,) * 9}, ValueError, "layers needs one entry for each of the 8"),
        ({"planes": (8,) * 7 + (0,)}, ValueError, "every entry of planes.*0"),
        ({"layers": (1,) * 7 + (-1,)}, ValueError, "every entry of layers.*at least 0, got -1"),
        ({"layers": 1}, TypeError, "layers must be a sequence of 8 integers, got 1"),
        ({"planes": "8" * 8}, TypeError, "planes must be a sequence of 8 integers"),
        ({"init_dim": 0}, ValueError, "init_dim must be at least 1, got 0"),
        ({"BLOCK": "BasicBlock"}, TypeError, "BLOCK must be a class .* got 'BasicBlock'"),
        ({"BLOCK": BasicBlock(8, 8)}, TypeError, "BLOCK must be a class"),
        ({"BLOCK": BottleneckBlock, "planes": (3,) * 8}, ValueError, "at least 4, got 3"),
        ({"block": BasicBlock}, TypeError, "block"),
        ({"init_kernel_size": 0}, ValueError, "kernel_size.*0"),
    ],
)
def test_refuses(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        tiny(**options)


def test_a_stage_without_layers_has_one_block() -> None:
    model = tiny(layers=(0,) * 8)

    assert configure_gradient_checkpointing(model) == 8
    assert list(model.state_dict()) == list(tiny().state_dict())


def test_refuses_other_inputs() -> None:
    things: list[Any] = [torch.zeros(3, 3), None]
    for thing in things:
        with pytest.raises(
            TypeError, match=f"MinkUNetBase takes Voxels, got {type(thing).__name__}"
        ):
            tiny()(thing)


def test_named_variants_refuse_unknown_arguments() -> None:
    with pytest.raises(TypeError, match="use_checkpointing"):
        MinkUNet18(3, 5, use_checkpointing=True)
