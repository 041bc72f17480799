"""Residual blocks: their parts, what they compute, and that checkpointing changes nothing."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.geometry.clouds import make_points, make_voxels
from wcn_ckpt.geometry import Geometry, Voxels
from wcn_ckpt.models import mink_unet
from wcn_ckpt.nn.modules import (
    BasicBlock,
    BottleneckBlock,
    ConvBlock,
    ConvTrBlock,
    ReLU,
    Sequential,
    SparseConv3d,
    SpatialModule,
)

GELU: Any = "gelu"
Block = BasicBlock | BottleneckBlock
BLOCKS: list[type[Block]] = [BasicBlock, BottleneckBlock]


def make_block(cls: type[Block], *args: Any, **options: Any) -> Block:
    torch.manual_seed(0)
    return cls(*args, **options).double()


def train_step(block: Block, x: Geometry) -> dict[str, Tensor]:
    """Return outputs, gradients and buffers of one training step, all by name."""
    rows = x.feats.detach().clone().requires_grad_()
    out = block(x.replace_features(rows)).feats
    names = ["input", *(name for name, _ in block.named_parameters())]
    gradients = torch.autograd.grad(out.square().sum(), [rows, *block.parameters()])
    return {
        "output": out.detach(),
        **dict(zip(names, gradients, strict=True)),
        **{f"buffer {name}": value.clone() for name, value in block.named_buffers()},
    }


def test_conv_block_is_convolution_norm_and_activation() -> None:
    block = ConvBlock(4, 6, 2, 2, bias=True)

    conv, norm, activation = block
    assert isinstance(conv, SparseConv3d)
    assert conv.kernel_size == conv.stride == (2, 2, 2)
    assert conv.bias is not None
    assert isinstance(norm, nn.BatchNorm1d)
    assert (norm.eps, norm.momentum, norm.affine, norm.track_running_stats) == (
        1e-5,
        0.1,
        True,
        True,
    )
    assert isinstance(activation, ReLU)
    assert activation.inplace
    assert activation is not ConvBlock(4, 6)[2]
    assert isinstance(ConvBlock(4, 6, activation=None)[2], nn.Identity)
    gelu = nn.GELU()
    assert ConvBlock(4, 6, activation=gelu)[2] is gelu


def test_conv_block_computes_its_parts() -> None:
    voxels = make_voxels()
    block = ConvBlock(4, 6).double()
    norm = nn.BatchNorm1d(6).double()

    out = block(voxels)

    assert torch.equal(out.feats, norm(block[0](voxels).feats).relu())


def test_conv_tr_block_lands_on_the_given_voxels() -> None:
    fine = make_voxels(tensor_stride=2)
    coarse = ConvBlock(4, 6, 2, 2).double()(fine)
    block = ConvTrBlock(6, 3, 2, 2, bias=True).double()

    out = block(coarse, fine)

    assert out.batched_coordinates is fine.batched_coordinates
    assert out.num_channels == 3
    expected = nn.BatchNorm1d(3).double()(block.conv_tr(coarse, fine).feats).relu()
    assert torch.equal(out.feats, expected)
    assert set(block.state_dict()) == {
        "conv_tr.weight",
        "conv_tr.bias",
        *(f"norm_act.0.{name}" for name in nn.BatchNorm1d(3).state_dict()),
    }


@pytest.mark.parametrize("cls", BLOCKS)
@pytest.mark.parametrize(
    ("channels", "stride", "has_shortcut"),
    [((8, 8), 1, False), ((8, 16), 1, True), ((8, 8), 2, True)],
)
def test_parts(
    cls: type[Block], channels: tuple[int, int], stride: int, has_shortcut: bool
) -> None:
    block = make_block(cls, *channels, stride=stride)

    names = ["conv1", "conv2", *(["conv3"] if cls is BottleneckBlock else [])]
    assert [name for name, _ in block.named_children()] == [
        *names,
        *(["downsample"] if has_shortcut else []),
        "relu",
    ]
    assert hasattr(block, "downsample")
    kernels = {name: getattr(block, name)[0].kernel_size[0] for name in names}
    assert kernels == (
        {"conv1": 3, "conv2": 3} if cls is BasicBlock else {"conv1": 1, "conv2": 3, "conv3": 1}
    )
    strided = "conv1" if cls is BasicBlock else "conv2"
    assert {n: getattr(block, n)[0].stride[0] for n in names} == {
        n: stride if n == strided else 1 for n in names
    }
    assert isinstance(block, SpatialModule)


@pytest.mark.parametrize("cls", BLOCKS)
@pytest.mark.parametrize(("channels", "stride"), [((8, 8), 1), ((8, 16), 1), ((8, 16), 2)])
def test_computes_a_residual_sum(cls: type[Block], channels: tuple[int, int], stride: int) -> None:
    voxels = make_voxels(channels=8)
    block = make_block(cls, *channels, stride=stride).eval()

    out = block(voxels)

    chain = [
        block.conv1,
        block.conv2,
        *([block.conv3] if isinstance(block, BottleneckBlock) else []),
    ]
    branch = voxels
    for part in chain:
        branch = part(branch)
    shortcut = voxels if block.downsample is None else block.downsample(voxels)
    assert torch.equal(out.feats, (branch.feats + shortcut.feats).relu())
    assert torch.equal(out.coords, shortcut.coords)
    assert out.num_channels == channels[1]


@pytest.mark.parametrize("cls", BLOCKS)
def test_the_input_is_not_written(cls: type[Block]) -> None:
    voxels = make_voxels(channels=8)
    before = voxels.feats.clone()

    make_block(cls, 8, 8)(voxels)

    assert torch.equal(voxels.feats, before)


@pytest.mark.parametrize("cls", BLOCKS)
@pytest.mark.parametrize("out_channels", [8, 16])
@pytest.mark.parametrize("momentum", [0.1, 1.0, None])
def test_checkpointing_changes_nothing(
    cls: type[Block], out_channels: int, momentum: float | None
) -> None:
    voxels = make_voxels(channels=8)
    ordinary = make_block(cls, 8, out_channels)
    for module in ordinary.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.momentum = momentum
    recomputed = copy.deepcopy(ordinary)
    recomputed.gradient_checkpointing_enable()

    expected, got = train_step(ordinary, voxels), train_step(recomputed, voxels)

    assert expected.keys() == got.keys()
    assert [name for name in expected if not torch.equal(expected[name], got[name])] == []


@pytest.mark.parametrize("cls", BLOCKS)
def test_checkpointing_under_autocast_changes_nothing(cls: type[Block]) -> None:
    voxels = make_voxels(channels=8, dtype=torch.float32)
    ordinary = make_block(cls, 8, 16).float()
    recomputed = copy.deepcopy(ordinary)
    recomputed.use_checkpoint = True

    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected, got = train_step(ordinary, voxels), train_step(recomputed, voxels)

    assert expected["output"].dtype == torch.bfloat16
    assert [name for name in expected if not torch.equal(expected[name], got[name])] == []


@pytest.mark.parametrize("cls", BLOCKS)
def test_forward_runs_once_and_again_in_backward(cls: type[Block]) -> None:
    voxels = make_voxels(channels=8)
    for enabled, runs in ((False, 1), (True, 2)):
        block = make_block(cls, 8, 8, use_checkpoint=enabled)
        original, calls = block._forward, 0

        def counted(x: Any, original: Any = original) -> Any:
            nonlocal calls
            calls += 1
            return original(x)

        block._forward = counted  # type: ignore[method-assign]  # looked up at the call
        train_step(block, voxels)
        assert calls == runs


@pytest.mark.parametrize("cls", BLOCKS)
def test_children_may_be_plain_layers_on_points(cls: type[Block]) -> None:
    points = make_points(channels=8)
    ordinary = make_block(cls, 8, 8)
    for name in ("conv1", "conv2", "conv3"):
        if hasattr(ordinary, name):
            layers = Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU()).double()
            setattr(ordinary, name, layers)
    recomputed = copy.deepcopy(ordinary)
    recomputed.gradient_checkpointing_enable()

    expected, got = train_step(ordinary, points), train_step(recomputed, points)

    assert [name for name in expected if not torch.equal(expected[name], got[name])] == []
    assert got["buffer conv1.1.num_batches_tracked"] == 1


@pytest.mark.parametrize("cls", BLOCKS)
def test_gradients_of_a_block(cls: type[Block]) -> None:
    voxels = make_voxels((7, 0, 5), channels=4, low=0, high=3)
    block = make_block(cls, 4, 8)
    block.relu = Sequential(nn.Softplus())  # smooth, so that differences are derivatives

    def forward(features: Tensor) -> Tensor:
        out: Voxels = block(voxels.replace_features(features))
        return out.feats

    for block.use_checkpoint in (False, True):
        assert torch.autograd.gradcheck(forward, voxels.feats.requires_grad_(), atol=1e-4)


def test_blocks_in_a_library_chain_are_handed_geometries() -> None:
    voxels = make_voxels(channels=8)

    out = Sequential(make_block(BasicBlock, 8, 8), make_block(BottleneckBlock, 8, 8))(voxels)

    assert out.batched_coordinates is voxels.batched_coordinates


def test_the_model_module_knows_the_blocks_too() -> None:
    assert mink_unet.BasicBlock is BasicBlock
    assert mink_unet.BottleneckBlock is BottleneckBlock
    assert (BasicBlock.expansion, BottleneckBlock.expansion) == (1, 4)


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: BasicBlock(0, 8), ValueError, "in_channels must be at least 1, got 0"),
        (lambda: BasicBlock(8, 8, stride=0), ValueError, "stride.*0"),
        (lambda: BottleneckBlock(8, 3), ValueError, "at least 4, got 3"),
        (lambda: BottleneckBlock(8, 0), ValueError, "out_channels must be at least 1, got 0"),
        (lambda: ConvBlock(8, 8, 0), ValueError, "kernel_size.*0"),
        (lambda: ConvBlock(8, 8, activation=GELU), ValueError, "'gelu'"),
    ],
)
def test_refuses(build: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        build()
