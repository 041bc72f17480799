"""Sparse convolution against torch's dense one, in every mode, with all its gradients."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.geometry.clouds import make_points, make_voxels
from tests.nn.dense_oracle import dense_convolution, dense_transposed
from wcn_ckpt.geometry import Voxels
from wcn_ckpt.nn.modules import STRIDED_CONV_MODE, SparseConv3d, SparseMaxPool, StridedConvMode

Oracle = Callable[[SparseConv3d, Voxels, Tensor, Voxels], Tensor]

SHAPES = [
    (kernel, stride, dilation)
    for kernel, stride, dilation in itertools.product(
        [1, 2, 3, 4, 5, (3, 1, 2)], [1, 2, 3, (1, 2, 2)], [1, 2]
    )
    if not (kernel == 1 and dilation == 2)
]


def assert_agrees_with_dense(
    conv: SparseConv3d, x: Voxels, oracle: Oracle, target: Voxels | None = None
) -> Voxels:
    """Compare output and the gradients of input, weight and bias; return the output."""
    rows = x.feats.clone().requires_grad_()
    out: Voxels = conv(x.replace_features(rows), target)
    expected = oracle(conv, x, rows, out)
    assert out.batch_size == x.batch_size
    torch.testing.assert_close(out.feats, expected)

    wanted = [rows, *conv.parameters()]
    seed = torch.randn_like(expected)
    ours = torch.autograd.grad(out.feats, wanted, seed)
    theirs = torch.autograd.grad(expected, wanted, seed)
    for mine, dense in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, dense)
    assert all(gradient.abs().sum() > 0 for gradient in ours)
    return out


def make_conv(*args: Any, **options: Any) -> SparseConv3d:
    torch.manual_seed(0)
    return SparseConv3d(*args, **options).double()


@pytest.mark.parametrize(("kernel", "stride", "dilation"), SHAPES)
@pytest.mark.parametrize("groups", [1, 2])
def test_ordinary(kernel: Any, stride: Any, dilation: Any, groups: int) -> None:
    conv = make_conv(4, 6, kernel, stride, dilation, groups=groups)

    assert_agrees_with_dense(conv, make_voxels(), dense_convolution)


@pytest.mark.parametrize(("kernel", "stride", "dilation"), SHAPES)
def test_onto_given_voxels(kernel: Any, stride: Any, dilation: Any) -> None:
    conv = make_conv(4, 6, kernel, stride, dilation)
    target = make_voxels((27, 9, 0, 4), low=-1, high=2, seed=5)

    out = assert_agrees_with_dense(conv, make_voxels((300, 40, 9, 0)), dense_convolution, target)

    if kernel != 1 or stride != 1:
        assert torch.equal(out.coords, target.coords)


@pytest.mark.parametrize(("kernel", "stride", "dilation"), [s for s in SHAPES if s[1] != 1])
@pytest.mark.parametrize("groups", [1, 2])
def test_transposed(kernel: Any, stride: Any, dilation: Any, groups: int) -> None:
    conv = make_conv(4, 6, kernel, stride, dilation, groups=groups, transposed=True)
    coarse = make_voxels((9, 0, 12, 3), low=-2, high=2, tensor_stride=6)
    fine = make_voxels((60, 5, 40, 0), seed=5, tensor_stride=2)

    out = assert_agrees_with_dense(conv, coarse, dense_transposed, fine)

    assert torch.equal(out.coords, fine.coords)
    assert out.tensor_stride == (2, 2, 2)


@pytest.mark.parametrize("kernel", [2, 3, (3, 1, 2)])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("dilation", [1, 2])
def test_generative(kernel: Any, stride: int, dilation: int) -> None:
    conv = make_conv(4, 6, kernel, stride, dilation, generative=True)

    out = assert_agrees_with_dense(conv, make_voxels(), dense_convolution)

    assert len(out) > len(SparseConv3d(4, 6, 3, stride)(make_voxels().float()))


@pytest.mark.parametrize("kernel", [2, 3, (3, 1, 2)])
@pytest.mark.parametrize("stride", [1, 2])
def test_transposed_and_generative(kernel: Any, stride: int) -> None:
    conv = make_conv(4, 6, kernel, stride, transposed=True, generative=True)

    out = assert_agrees_with_dense(conv, make_voxels(tensor_stride=4), dense_transposed)

    assert out.tensor_stride == (4 // stride,) * 3


def test_long_coordinates_give_the_same() -> None:
    voxels = make_voxels()
    conv = make_conv(4, 6, 3, 2)
    longer = voxels.replace(batched_coordinates=voxels.coordinate_tensor.long())

    out = conv(longer)

    assert out.coordinate_tensor.dtype == torch.int64
    assert torch.equal(out.feats, conv(voxels).feats)


def test_far_from_the_origin_nothing_changes() -> None:
    voxels = make_voxels()
    conv = make_conv(4, 6, 3, 2)
    corner = torch.tensor([-(2**31) + 4, 2**30, 2**31 - 6], dtype=torch.int32)
    moved = voxels.replace(batched_coordinates=voxels.coordinate_tensor + corner)

    assert torch.equal(conv(moved).feats, conv(voxels).feats)


def test_clouds_do_not_see_each_other() -> None:
    voxels = make_voxels()
    conv = make_conv(4, 6, 3, 2)

    together = conv(voxels)

    for cloud in range(4):
        torch.testing.assert_close(together[cloud].feats, conv(voxels[cloud]).feats)


def test_equal_strides_give_equal_rows() -> None:
    voxels = make_voxels()

    wide, narrow = make_conv(4, 6, 3, 2)(voxels), make_conv(4, 6, 1, 2)(voxels)

    assert wide.batched_coordinates is narrow.batched_coordinates
    assert wide.coords.tolist() == sorted(wide.coords.tolist())
    assert (wide + narrow).tensor_stride == (2, 2, 2)


def test_attributes_and_stride_travel() -> None:
    voxels = make_voxels(tensor_stride=2, voxel_size=0.5)

    same, half = make_conv(4, 6, 3)(voxels), make_conv(4, 6, 3, (1, 2, 3))(voxels)

    assert same.batched_coordinates is voxels.batched_coordinates
    assert same.voxel_size == half.voxel_size == 0.5
    assert half.tensor_stride == (2, 4, 6)


def test_a_transposed_target_of_unknown_stride_has_stride_1() -> None:
    fine = make_voxels((9,), seed=1)
    coarse = SparseMaxPool(2, 2)(fine)

    out = make_conv(4, 6, 2, 2, transposed=True)(coarse, fine)

    assert fine.tensor_stride is None
    assert out.tensor_stride == (1, 1, 1)


def test_a_target_takes_the_stride_of_the_input_times_its_own() -> None:
    target = make_voxels((4, 4, 4, 4), low=-2, high=2, tensor_stride=7)

    out = make_conv(4, 6, 2, 2)(make_voxels(tensor_stride=3), target)

    assert out.tensor_stride == (6, 6, 6)
    assert target.tensor_stride == (7, 7, 7)


class TestPointwise:
    """Kernel and stride 1: a matrix product on the rows."""

    @pytest.mark.parametrize("groups", [1, 2])
    def test_is_a_linear_layer(self, groups: int) -> None:
        conv = make_conv(4, 6, 1, groups=groups)

        out = assert_agrees_with_dense(conv, make_voxels(), dense_convolution)

        assert out.batched_coordinates.tensor_stride is None

    def test_ignores_a_target(self) -> None:
        voxels = make_voxels()

        out = make_conv(4, 6, 1)(voxels, make_voxels((1, 1, 1, 1)))

        assert out.batched_coordinates is voxels.batched_coordinates

    def test_keeps_the_dtype_of_the_product(self) -> None:
        conv, voxels = SparseConv3d(4, 6, 1), make_voxels(dtype=torch.float32)

        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = conv(voxels)

        assert out.dtype == torch.bfloat16

    def test_looks_nothing_up(self) -> None:
        cells = torch.zeros(2, 3, dtype=torch.int32)

        assert len(SparseConv3d(1, 1, 1)(Voxels([cells], [torch.zeros(2, 1)]))) == 2


class TestParameters:
    """Shapes, names and first values."""

    def test_shapes_and_keys(self) -> None:
        plain, grouped = SparseConv3d(4, 6, (3, 2, 1)), SparseConv3d(4, 6, 3, groups=2)

        assert {k: tuple(v.shape) for k, v in plain.state_dict().items()} == {
            "weight": (6, 4, 6),
            "bias": (6,),
        }
        assert grouped.weight.shape == (27, 2, 2, 3)
        assert SparseConv3d(4, 6, 3, bias=False).bias is None

    @pytest.mark.parametrize(("transposed", "fan"), [(False, 8 * 27), (True, 32 * 27)])
    def test_first_values(self, transposed: bool, fan: int) -> None:
        torch.manual_seed(0)
        conv = SparseConv3d(16, 64, 3, groups=2, transposed=transposed)
        bias = conv.bias
        assert bias is not None

        bound, bias_bound = 1 / math.sqrt(fan), 1 / math.sqrt(8 * 27)

        assert 0.99 * bound < conv.weight.abs().max() <= bound
        assert 0.9 * bias_bound < bias.abs().max() <= bias_bound
        assert conv.weight.mean().abs() < 0.02 * bound

    def test_algorithm_choices_change_nothing(self) -> None:
        voxels = make_voxels()
        knobs = {
            "fwd_algo": "any",
            "dgrad_algo": 3,
            "wgrad_algo": None,
            "kernel_matmul_batch_size": 7,
            "use_fp16_accum": True,
        }

        assert torch.equal(
            make_conv(4, 6, 3, **knobs)(voxels).feats, make_conv(4, 6, 3)(voxels).feats
        )

    def test_representation_shows_what_matters(self) -> None:
        text = repr(SparseConv3d(4, 6, 3, stride=2, bias=False))

        assert "4, 6, kernel_size=(3, 3, 3), stride=(2, 2, 2), bias=False" in text


@pytest.mark.parametrize("order", ["morton", "morton_zyx"])
def test_an_order_permutes_the_output_rows(order: str) -> None:
    voxels = make_voxels()
    for stride in (1, 2):
        plain = make_conv(4, 6, 3, stride)(voxels)
        ordered = make_conv(4, 6, 3, stride, order=order)(voxels)

        by_cell = [
            dict(zip(map(tuple, out.coords.tolist()), out.feats, strict=True))
            for out in (plain, ordered)
        ]
        assert plain.coords.tolist() != ordered.coords.tolist()
        assert by_cell[0].keys() == by_cell[1].keys()
        for cell, row in by_cell[0].items():
            torch.testing.assert_close(by_cell[1][cell], row)


@pytest.mark.parametrize("mode", [STRIDED_CONV_MODE.REDUCE_AND_STRIDE, "reduce_and_stride"])
def test_reduce_and_stride_pools_first(mode: StridedConvMode | str) -> None:
    voxels = make_voxels()
    conv = make_conv(4, 6, 3, 2, stride_mode=mode)

    out = conv(voxels)

    after = make_conv(4, 6, 3)
    after.load_state_dict(conv.state_dict())
    expected = after(SparseMaxPool(2, 2)(voxels))
    assert torch.equal(out.feats, expected.feats)
    assert out.tensor_stride == (2, 2, 2)


@pytest.mark.parametrize("sizes", [(), (0,), (0, 0)])
@pytest.mark.parametrize("options", [{}, {"stride": 2}, {"generative": True}])
def test_no_voxels_give_no_voxels(sizes: tuple[int, ...], options: dict[str, Any]) -> None:
    conv = make_conv(4, 6, 3, **options)
    empty = Voxels(
        torch.zeros(0, 3, dtype=torch.int32),
        torch.zeros(0, 4, dtype=torch.float64, requires_grad=True),
        [0] * max(2, len(sizes) + 1),
    )

    out = conv(empty)

    assert out.feats.shape == (0, 6)
    assert out.batch_size == empty.batch_size
    gradients = torch.autograd.grad(out.feats.sum(), list(conv.parameters()))
    assert all(gradient.count_nonzero() == 0 for gradient in gradients)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((0, 6, 3), {}, ValueError, "in_channels must be at least 1, got 0"),
        ((4, -1, 3), {}, ValueError, "out_channels must be at least 1, got -1"),
        ((4.0, 6, 3), {}, TypeError, "in_channels must be an integer, got 4.0"),
        ((4, 6, 0), {}, ValueError, "kernel_size.*0"),
        ((4, 6, (3, 3)), {}, ValueError, r"kernel_size.*\(3, 3\)"),
        ((4, 6, 2.5), {}, TypeError, "kernel_size.*2.5"),
        ((4, 6, 3), {"stride": 0}, ValueError, "stride.*0"),
        ((4, 6, 3), {"dilation": (1, 0, 1)}, ValueError, "dilation"),
        ((4, 6, 3), {"groups": 0}, ValueError, "groups must be at least 1"),
        ((4, 6, 3), {"groups": 4}, ValueError, "divisible by groups=4"),
        ((4, 6, 3), {"stride_mode": "pool"}, ValueError, "'pool'"),
        ((4, 6, 3), {"order": "spiral"}, ValueError, "'spiral'"),
        ((4, 6, 3), {"compute_dtype": torch.int32}, ValueError, "torch.int32"),
        ((4, 6, 3), {"compute_dtype": "float16"}, TypeError, "'float16'"),
    ],
)
def test_refuses_settings(
    arguments: tuple[Any, ...], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        SparseConv3d(*arguments, **options)


def test_no_clouds_give_no_clouds() -> None:
    nothing = Voxels([], []).replace_features(torch.zeros(0, 4, dtype=torch.float64))

    for conv in (make_conv(4, 6, 3), make_conv(4, 6, 2, 2), make_conv(4, 6, 3, generative=True)):
        out = conv(nothing)
        assert out.feats.shape == (0, 6)
        assert out.batch_size == 0


class TestRefusesInputs:
    """Inputs that a convolution cannot mean anything for."""

    def test_of_another_kind(self) -> None:
        conv = make_conv(4, 6, 3)
        things: list[Any] = [make_points(), torch.zeros(3, 4), None]
        for thing in things:
            with pytest.raises(TypeError, match="x must be Voxels"):
                conv(thing)
        with pytest.raises(TypeError, match="out_sparsity must be Voxels, got Points"):
            conv(make_voxels(), things[0])

    def test_with_other_channels_or_integers(self) -> None:
        with pytest.raises(ValueError, match="takes 4 channels, got 3"):
            make_conv(4, 6, 3)(make_voxels(channels=3))
        with pytest.raises(TypeError, match="torch.int64"):
            make_conv(4, 6, 3)(make_voxels().to(dtype=torch.int64))

    def test_with_repeated_voxels(self) -> None:
        cells = torch.zeros(2, 3, dtype=torch.int32)
        voxels = Voxels([cells], [torch.zeros(2, 1)])
        for conv in (SparseConv3d(1, 1, 3), SparseConv3d(1, 1, 2, 2)):
            with pytest.raises(ValueError, match="1 of 2 voxels repeat"):
                conv(voxels)

    def test_with_repeated_voxels_on_the_other_side(self) -> None:
        cells = torch.zeros(2, 3, dtype=torch.int32)
        repeated = Voxels([cells], [torch.zeros(2, 1)], tensor_stride=2)
        single = Voxels([cells[:1]], [torch.zeros(1, 1)])
        with pytest.raises(ValueError, match="1 of 2 voxels repeat"):
            SparseConv3d(1, 1, 3)(single, repeated)
        with pytest.raises(ValueError, match="1 of 2 voxels repeat"):
            SparseConv3d(1, 1, 2, 2, transposed=True)(repeated, single)

    def test_of_another_dtype_than_a_pointwise_weight(self) -> None:
        conv, voxels = SparseConv3d(4, 6, 1), make_voxels()
        with pytest.raises(TypeError, match="they are torch.float64 .* weight is torch.float32"):
            conv(voxels)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert conv(voxels).dtype == torch.bfloat16
            with pytest.raises(TypeError, match="torch.bfloat16 .* torch.float64"):
                conv.double()(voxels)

    def test_with_an_unsuitable_target(self) -> None:
        coarse, fine = make_voxels((3,), tensor_stride=2), make_voxels((9,), seed=1)
        transposed = make_conv(4, 6, 2, 2, transposed=True)

        with pytest.raises(ValueError, match="needs out_sparsity"):
            transposed(coarse)
        with pytest.raises(ValueError, match="finer grid.*tensor stride"):
            transposed(fine, fine)
        with pytest.raises(ValueError, match="drop out_sparsity"):
            make_conv(4, 6, 3, generative=True)(fine, fine)
        with pytest.raises(ValueError, match="2 clouds"):
            make_conv(4, 6, 3)(fine, make_voxels((3, 3)))
        with pytest.raises(ValueError, match="multiple"):
            make_conv(4, 6, 2, 2, transposed=True, generative=True)(fine)

    def test_that_would_grow_beyond_int32(self) -> None:
        edge = Voxels([torch.full((1, 3), 2**31 - 1)], [torch.zeros(1, 4).double()])

        with pytest.raises(ValueError, match="2147483648"):
            make_conv(4, 6, 3, generative=True)(edge)
