"""A truth about sparse convolutions: each equals the dense one at its active sites.

Both arms use the same kernel maps, so a wrong one makes no difference between them. Here the first
call of every convolution is computed again in float64, from the definition of a dense convolution:
each output site sums, over the kernel's offsets, the input cell that is there or nothing. Cells
are found by their coordinates, not by the kernel map.

The bound: a sum of n products in any order is within ``gamma(n + 2) * sum |x w|``, with u half of
float32's epsilon, or that of a wider dtype, and ``gamma(n) = n u / (1 - n u)`` (Higham, Accuracy
and Stability of Numerical Algorithms, section 3.1); a result in half precision is rounded once
more.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from harness.findings import CauseKind, Finding
from harness.trace import Trace
from wcn_ckpt.geometry import Voxels
from wcn_ckpt.geometry.autocast import autocast_dtype
from wcn_ckpt.nn.modules import SparseConv3d, StridedConvMode

_SITES_AT_ONCE = 4096
_HALF = (torch.float16, torch.bfloat16)


class ConvolutionCall(NamedTuple):
    """The first call of a convolution."""

    name: str
    """Path of the module."""
    module: SparseConv3d
    cells: Tensor
    """(N, 4) int64 rows (cloud, x, y, z) of the input."""
    features: Tensor
    """(N, C_in) in the dtype that products are computed in."""
    weight: Tensor
    """(K, G, C_in / G, C_out / G) in that dtype."""
    bias: Tensor | None
    """(C_out,)."""
    sites: Tensor
    """(M, 4) int64 rows (cloud, x, y, z) of the output."""
    result: Tensor
    """(M, C_out)."""


@dataclass
class ConvolutionWatch:
    """Records the first call of each convolution of a module that looks at neighbours."""

    calls: dict[str, ConvolutionCall] = field(default_factory=dict)
    """Path of the module -> its call, in the order of the calls."""

    @contextmanager
    def watch(self, trace: Trace) -> Iterator[None]:
        """Record what is called inside; a context for :func:`harness.program.execute`."""
        handles = [
            module.register_forward_hook(self._hook(name))
            for name, module in trace.module.named_modules()
            if isinstance(module, SparseConv3d) and _is_defined_by_its_sites(module)
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _hook(self, name: str) -> Any:
        def hook(module: SparseConv3d, args: tuple[Any, ...], result: Voxels) -> None:
            # A unit of FSDP2 by itself is sharded again before this hook, so its weight is gone.
            sharded = hasattr(module.weight, "to_local")
            if name not in self.calls and args and not sharded:
                with torch.no_grad():
                    self.calls[name] = _recorded(name, module, args[0], result)

        return hook


def convolutions_equal_dense(watch: ConvolutionWatch, rank: int) -> list[Finding]:
    """Every sparse convolution that was watched equals the dense one at its active sites.

    Args:
        watch: What was recorded in a forward.
        rank: This rank.

    Returns:
        One finding for each convolution that is out of bounds.
    """
    return [finding for call in watch.calls.values() if (finding := _judged(call, rank))]


def _is_defined_by_its_sites(conv: SparseConv3d) -> bool:
    """Tell whether it looks at neighbours, in its own input: pooling first makes another one."""
    pools = conv.stride_mode is StridedConvMode.REDUCE_AND_STRIDE and not conv.transposed
    return math.prod(conv.kernel_size) > 1 and not (pools and conv.stride != (1, 1, 1))


def _recorded(name: str, conv: SparseConv3d, x: Voxels, result: Voxels) -> ConvolutionCall:
    features = x.batched_features.tensor
    dtype = conv.compute_dtype or autocast_dtype(features) or features.dtype
    per_group = (conv.in_channels // conv.groups, conv.out_channels // conv.groups)
    weight = conv.weight.detach().reshape(-1, conv.groups, *per_group)
    return ConvolutionCall(
        name=name,
        module=conv,
        cells=x.coords.long(),
        features=features.detach().to(dtype),
        weight=weight.to(dtype, copy=True),
        bias=None if conv.bias is None else conv.bias.detach().clone(),
        sites=result.coords.long(),
        result=result.batched_features.tensor.detach().clone(),
    )


def _judged(call: ConvolutionCall, rank: int) -> Finding | None:
    product, magnitude = _dense(call)
    bias = torch.zeros_like(product) if call.bias is None else call.bias.double()
    value, magnitude = product + bias, magnitude + bias.abs()
    dtype = call.features.dtype
    unit = torch.finfo(torch.float32 if dtype in _HALF else dtype).eps / 2
    terms = call.weight[:, 0, :, 0].numel() + 2
    bound = terms * unit / (1 - terms * unit) * magnitude
    if dtype in _HALF:
        # The product is rounded to half precision, and once more where such a bias is added.
        bound += torch.finfo(dtype).eps / 2 * (product.abs() + value.abs() + 2 * bound)
    gap = (call.result.double() - value).abs()
    wrong = (~(gap <= bound)).nonzero()
    if not len(wrong):
        return None
    index = tuple(wrong[0].tolist())
    site = ", ".join(map(str, call.sites[index[0]].tolist()))
    return Finding(
        rank=rank,
        point="forward[0]",
        path=f"convolution/{call.name}{list(index)}",
        expected=value[index].item(),
        got=call.result[index].item(),
        max_abs=gap.max().item() if gap.isfinite().all() else None,
        tolerance=bound[index].item(),
        tolerance_source=f"{terms} roundings in {dtype} of the terms summed, against the dense "
        "convolution in float64",
        cause=f"{type(call.module).__name__} {call.name!r} does not compute what a dense "
        f"convolution computes at the site (cloud, x, y, z) = ({site})",
        remedy="look at which input cells its kernel map pairs with this site, and at its weight",
        kind=CauseKind.UNKNOWN,
        module=call.name,
    )


def _dense(call: ConvolutionCall) -> tuple[Tensor, Tensor]:
    """Return the product and the magnitude of its terms, each (M, C_out) float64."""
    groups = call.module.groups
    features = torch.cat([call.features, call.features.new_zeros(1, call.features.shape[1])])
    features = features.double()
    weight = call.weight.double().transpose(0, 1).flatten(1, 2)
    row_of = _Rows(call.cells)
    products, magnitudes = [], []
    for sites in torch.split(call.sites, _SITES_AT_ONCE):
        rows = row_of(*_places(call.module, sites))
        taken = features[rows].reshape(*rows.shape, groups, -1).permute(2, 0, 1, 3).flatten(2)
        products.append((taken @ weight).transpose(0, 1).flatten(1))
        magnitudes.append((taken.abs() @ weight.abs()).transpose(0, 1).flatten(1))
    return torch.cat(products), torch.cat(magnitudes)


def _places(conv: SparseConv3d, sites: Tensor) -> tuple[Tensor, Tensor]:
    """Return the cell that each site takes from at each offset, and whether it takes any there.

    Args:
        conv: The convolution.
        sites: (M, 4) rows (cloud, x, y, z).

    Returns:
        (M, K, 4) rows, and (M, K) booleans.
    """
    offsets = sites.new_tensor(_offsets(conv))
    stride = sites.new_tensor(conv.stride)
    cells = sites[:, 1:].unsqueeze(1)
    if conv.transposed:
        fine = cells - offsets
        taken = (fine % stride == 0).all(2)
        places = fine.div(stride, rounding_mode="floor")
    else:
        places = cells * stride + offsets
        taken = torch.ones(places.shape[:2], dtype=torch.bool, device=sites.device)
    clouds = sites[:, :1].unsqueeze(1).expand(-1, len(offsets), -1)
    return torch.cat([clouds, places], 2), taken


def _offsets(conv: SparseConv3d) -> list[tuple[int, ...]]:
    """Return the kernel's offsets, row by row; an odd kernel is centred, an even one is not."""
    axes = [
        [step * (tap - (size // 2 if size % 2 else 0)) for tap in range(size)]
        for size, step in zip(conv.kernel_size, conv.dilation, strict=True)
    ]
    return list(itertools.product(*axes))


class _Rows:
    """Finds cells by their coordinates."""

    def __init__(self, cells: Tensor) -> None:
        self._low = cells.amin(0)
        self._size = cells.amax(0) - self._low + 1
        self._keys, self._rows = self._key(cells).sort()

    def __call__(self, places: Tensor, wanted: Tensor) -> Tensor:
        """Return the row of each place; the number of rows where there is none or none wanted."""
        wanted = wanted & ((places >= self._low) & (places < self._low + self._size)).all(-1)
        keys = self._key(places)
        at = torch.searchsorted(self._keys, keys).clamp(max=len(self._keys) - 1)
        wanted = wanted & (self._keys[at] == keys)
        return torch.where(wanted, self._rows[at], len(self._keys))

    def _key(self, places: Tensor) -> Tensor:
        key = torch.zeros_like(places[..., 0])
        for axis in range(4):
            key = key * self._size[axis] + (places[..., axis] - self._low[axis])
        return key
