"""A sparse convolution over its own matrix products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from harness.bench.benchmark import Benchmark, Measurement
from harness.bench.paired import seconds_of, time_pairs, time_ratio
from harness.bench.workloads import terrain
from wcn_ckpt.geometry import Voxels
from wcn_ckpt.nn.functional.kernel_maps import KernelShape
from wcn_ckpt.nn.functional.sites import convolution_sites
from wcn_ckpt.nn.modules import SparseConv3d

IN_CHANNELS, OUT_CHANNELS, KERNEL = 32, 64, 3


def convolution(samples: int, voxels: int = 50_000) -> Measurement:
    """Time forward and backward of a 3 x 3 x 3 convolution over its matrix products alone.

    The reference multiplies operands that were gathered before, contiguous, one product for each
    pair list: features by weight, output gradient by transposed weight, and transposed features by
    output gradient. Both sides have the same pairs and threads. The kernel map is made before, as
    it is for all but the first convolution of a model on the same voxels; what making it takes is
    reported beside.

    Args:
        samples: interleaved pairs.
        voxels: about how many voxels of the terrain there are.
    """
    torch.manual_seed(0)
    scene = terrain(voxels, IN_CHANNELS)
    layer = SparseConv3d(IN_CHANNELS, OUT_CHANNELS, KERNEL, bias=False)
    counts = _pair_counts(scene)
    pairs = time_pairs(_step(layer, scene), _products(counts), samples, warm_up=2)
    return time_ratio(
        [[pair] for pair in pairs],
        voxels=len(scene),
        pair_count=sum(counts),
        threads=torch.get_num_threads(),
        kernel_map_seconds=_map_seconds(scene),
    )


def _step(layer: SparseConv3d, scene: Voxels) -> Callable[[], Any]:
    features = scene.feature_tensor.detach().requires_grad_()
    x = scene.replace_features(features)
    grad = torch.randn(len(scene), OUT_CHANNELS)

    def step() -> Any:
        features.grad = layer.weight.grad = None
        layer(x).feature_tensor.backward(grad)

    return step


def _products(counts: list[int]) -> Callable[[], Any]:
    operands = [
        (
            torch.randn(count, IN_CHANNELS),
            torch.randn(IN_CHANNELS, OUT_CHANNELS),
            torch.randn(count, OUT_CHANNELS),
        )
        for count in counts
    ]

    def products() -> list[tuple[Tensor, Tensor, Tensor]]:
        return [(x @ w, g @ w.t(), x.t() @ g) for x, w, g in operands]

    return products


def _pair_counts(scene: Voxels) -> list[int]:
    _, pairs = convolution_sites(scene.batched_coordinates, KernelShape((KERNEL,) * 3))
    counts = [count for count in pairs.layout.counts if count]
    return counts if pairs.layout.identity is None else [*counts, len(scene)]


def _map_seconds(scene: Voxels) -> float:
    coordinates = scene.batched_coordinates
    coordinates.cache.clear()
    return seconds_of(lambda: convolution_sites(coordinates, KernelShape((KERNEL,) * 3)))


CONVOLUTION = Benchmark(
    name="sparse-convolution",
    group="quick",
    unit="ratio",
    doc="sparse convolution forward and backward over its own matmuls alone, 50 000 voxels, "
    "32 to 64 channels, 3 x 3 x 3",
    run=convolution,
    samples=15,
    at_most=2.0,
)
