"""The gather-multiply-scatter function: derivatives, memory, precision, determinism."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from tests.geometry.clouds import make_voxels
from wcn_ckpt.geometry import Voxels
from wcn_ckpt.nn.functional import KernelShape, kernel_map, sparse_conv
from wcn_ckpt.nn.functional.kernel_maps import KernelMap
from wcn_ckpt.nn.functional.sites import strided_sites
from wcn_ckpt.nn.modules import SparseConv3d

NO_CUDA = "needs a CUDA device"

cuda = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason=NO_CUDA),
]


def small_maps() -> dict[str, KernelMap]:
    """Return a same-sites, a strided and a transposed map of tiny batches."""
    coords = make_voxels((6, 0, 4), low=0, high=3).batched_coordinates
    coarse = strided_sites(coords, (2, 2, 2))
    down = kernel_map(coords, coarse, KernelShape((2, 2, 2), (2, 2, 2)))
    return {
        "same sites": kernel_map(coords, coords, KernelShape((3, 3, 1))),
        "strided": down,
        "transposed": down.transposed(),
    }


@pytest.mark.parametrize("name", ["same sites", "strided", "transposed"])
@pytest.mark.parametrize("groups", [1, 2])
def test_first_and_second_derivatives(name: str, groups: int) -> None:
    torch.manual_seed(0)
    pairs = small_maps()[name]
    shape = (2, 3) if groups == 1 else (groups, 1, 2)
    weight = torch.randn(len(pairs.layout.counts), *shape, dtype=torch.float64)
    rows = torch.randn(pairs.layout.num_in, 2, dtype=torch.float64)
    weight.requires_grad_(), rows.requires_grad_()

    def convolve(x: Tensor, w: Tensor) -> Tensor:
        return sparse_conv(x, w, pairs)

    assert torch.autograd.gradcheck(convolve, (rows, weight))
    assert torch.autograd.gradgradcheck(convolve, (rows, weight))


def test_only_input_weight_and_map_are_kept_for_backward() -> None:
    voxels = make_voxels((200, 0, 150), channels=8, dtype=torch.float32)
    conv = SparseConv3d(8, 16, 3, bias=False)
    rows = voxels.feats.requires_grad_()
    coords = voxels.batched_coordinates
    pairs = kernel_map(coords, coords, KernelShape(conv.kernel_size))
    kept: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        conv(voxels.replace_features(rows))

    expected = [rows, conv.weight, pairs.in_rows, pairs.out_rows]
    assert [tensor.data_ptr() for tensor in kept] == [tensor.data_ptr() for tensor in expected]
    assert sum(tensor.nbytes for tensor in kept) == sum(tensor.nbytes for tensor in expected)


def test_saved_tensors_are_unpacked_once_per_backward() -> None:
    voxels = make_voxels(channels=4)
    conv = SparseConv3d(4, 4, 3).double()
    unpacked: list[Tensor] = []

    def unpack(tensor: Tensor) -> Tensor:
        unpacked.append(tensor)
        return tensor

    rows = voxels.feats.requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, unpack):
        out = conv(voxels.replace_features(rows)).feats
    torch.autograd.grad(out.sum(), [rows, conv.weight])

    assert len(unpacked) == 4


def test_gradients_of_gradients_reach_every_parameter() -> None:
    voxels = make_voxels()
    conv = SparseConv3d(4, 4, 3).double()
    rows = voxels.feats.requires_grad_()

    out = conv(voxels.replace_features(rows)).feats
    (gradient,) = torch.autograd.grad(out.square().sum(), rows, create_graph=True)
    penalty = torch.autograd.grad(gradient.square().sum(), list(conv.parameters()))

    assert all(part.abs().sum() > 0 for part in penalty)


def test_cached_and_rebuilt_maps_give_the_same_bits() -> None:
    voxels = make_voxels(dtype=torch.float32)
    conv = SparseConv3d(4, 6, 3, 2)

    def step() -> list[Tensor]:
        rows = voxels.feats.clone().requires_grad_()
        out = conv(voxels.replace_features(rows)).feats
        return [out, *torch.autograd.grad(out.square().sum(), [rows, conv.weight])]

    first, cached = step(), step()
    voxels.batched_coordinates.cache.clear()
    rebuilt = step()

    for other in (cached, rebuilt):
        assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("warm", [True, False])
def test_a_replay_gives_the_same_bits(warm: bool) -> None:
    voxels = make_voxels(dtype=torch.float32)
    conv = SparseConv3d(4, 6, 3)

    def step(recomputed: bool) -> list[Tensor]:
        rows = voxels.feats.clone().requires_grad_()
        x = voxels.replace_features(rows)
        out = checkpoint(conv, x, use_reentrant=False) if recomputed else conv(x)
        if not warm:
            voxels.batched_coordinates.cache.clear()
        return [out.feats, *torch.autograd.grad(out.feats.square().sum(), [rows, conv.weight])]

    assert all(torch.equal(a, b) for a, b in zip(step(True), step(False), strict=True))


class TestPrecision:
    """What is computed in which dtype."""

    def conv_and_voxels(self, **options: Any) -> tuple[SparseConv3d, Voxels]:
        torch.manual_seed(0)
        return SparseConv3d(4, 6, 3, **options), make_voxels((200,), dtype=torch.float32)

    def test_autocast_chooses_the_dtype_and_a_wide_bias_widens_it(self) -> None:
        conv, voxels = self.conv_and_voxels()
        bare, _ = self.conv_and_voxels(bias=False)

        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert conv(voxels).batched_features.dtype == torch.float32
            assert bare(voxels).batched_features.dtype == torch.bfloat16

    def test_compute_dtype_goes_before_autocast(self) -> None:
        conv, voxels = self.conv_and_voxels(bias=False, compute_dtype=torch.float32)
        expected = conv(voxels).feats

        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = conv(voxels)

        assert torch.equal(out.batched_features.tensor, expected)

    def test_compute_dtype_without_autocast(self) -> None:
        conv, voxels = self.conv_and_voxels(bias=False, compute_dtype=torch.float16)

        out = conv(voxels)

        assert out.dtype == torch.float16
        assert conv.weight.dtype == torch.float32

    def test_features_choose_otherwise(self) -> None:
        conv, voxels = self.conv_and_voxels(bias=False)

        assert conv.double()(voxels.double()).dtype == torch.float64
        assert conv.half()(voxels.half()).dtype == torch.float16

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_half_products_are_summed_in_float32(self, dtype: torch.dtype) -> None:
        conv, voxels = self.conv_and_voxels(bias=False)
        rows = voxels.feats.to(dtype).requires_grad_()
        x = voxels.replace_features(rows)

        with torch.autocast("cpu", dtype=dtype):
            out = conv(x).feats
        seed = torch.randn(out.shape).to(dtype)
        grad_rows, grad_weight = torch.autograd.grad(out, [rows, conv.weight], seed)

        # The same convolution of the same rounded numbers, summed in float64.
        exact = SparseConv3d(4, 6, 3, bias=False).double()
        exact.weight.data.copy_(conv.weight.to(dtype))
        wide = rows.detach().double().requires_grad_()
        reference = exact(voxels.replace_features(wide)).feats
        wide_rows, wide_weight = torch.autograd.grad(reference, [wide, exact.weight], seed.double())
        torch.testing.assert_close(out, reference.to(dtype))
        torch.testing.assert_close(grad_rows, wide_rows.to(dtype))
        assert grad_weight.dtype == torch.float32
        torch.testing.assert_close(grad_weight, wide_weight.float())

    def test_bfloat16_autocast_trains(self) -> None:
        conv, voxels = self.conv_and_voxels()
        rows = voxels.feats.clone().requires_grad_()

        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = conv(voxels.replace_features(rows)).feats.square().mean()
            inside = torch.autograd.grad(loss, [rows, *conv.parameters()], retain_graph=True)
        outside = torch.autograd.grad(loss, [rows, *conv.parameters()])

        for gradient, other in zip(inside, outside, strict=True):
            assert gradient.dtype == torch.float32
            assert gradient.isfinite().all()
            assert torch.equal(gradient, other)

    @pytest.mark.parametrize("device", [pytest.param("cuda", marks=cuda)])
    def test_float16_autocast_trains_on_cuda(self, device: str) -> None:
        conv, voxels = self.conv_and_voxels()
        conv, voxels = conv.to(device), voxels.to(device)
        rows = voxels.feats.clone().requires_grad_()
        wanted = [rows, *conv.parameters()]
        reference = torch.autograd.grad(
            conv(voxels.replace_features(rows)).feats.square().mean(), wanted
        )

        with torch.autocast(device, dtype=torch.float16):
            out = conv(voxels.replace_features(rows))
            loss = out.batched_features.tensor.float().square().mean()
        gradients = torch.autograd.grad(loss, wanted)

        for gradient, expected in zip(gradients, reference, strict=True):
            assert gradient.dtype == torch.float32
            torch.testing.assert_close(gradient, expected, rtol=2e-2, atol=2e-3)


@pytest.mark.parametrize("device", [pytest.param("cuda", marks=cuda)])
def test_cuda_agrees_with_the_cpu(device: str) -> None:
    voxels = make_voxels()
    for conv in (SparseConv3d(4, 6, 3).double(), SparseConv3d(4, 6, 2, 2).double()):
        expected = conv(voxels)
        out = conv.to(device)(voxels.to(device))

        assert torch.equal(out.coords.cpu(), expected.coords)
        torch.testing.assert_close(out.feats.cpu(), expected.feats)
