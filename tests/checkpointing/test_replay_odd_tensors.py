"""Buffers of every sort of tensor can be watched, kept and guarded."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.checkpointing.steps import Block
from wcn_ckpt.nn.modules import configure_gradient_checkpointing

BUFFERS: dict[str, Callable[[], Tensor]] = {
    "sparse": lambda: torch.eye(4).to_sparse(),
    "sparse csr": lambda: torch.eye(4).to_sparse_csr(),
    "complex": lambda: torch.randn(3, dtype=torch.cfloat),
    "complex of half precision": lambda: torch.ones(3, dtype=torch.complex32),
    "quantized": lambda: torch.quantize_per_tensor(torch.randn(3), 0.1, 0, torch.qint8),
    "bool": lambda: torch.tensor([True, False]),
    "nan": lambda: torch.tensor([float("nan"), 1.0]),
    "empty": lambda: torch.empty(0),
    "expanded": lambda: torch.ones(1).expand(5),
    "float8": lambda: torch.ones(3).to(torch.float8_e4m3fn),
}


@pytest.mark.filterwarnings("ignore:.*quantize_per_tensor:UserWarning")
@pytest.mark.filterwarnings("ignore:Sparse CSR:UserWarning")
@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")
@pytest.mark.parametrize("name", BUFFERS)
def test_a_constant_buffer_of_any_sort_is_no_hindrance(name: str) -> None:
    block = Block(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
    block.register_buffer("constant", BUFFERS[name]())
    configure_gradient_checkpointing(block)
    for _ in range(3):
        block(torch.randn(5, 4)).sum().backward()

    assert block.body.get_submodule("1").num_batches_tracked == 3


def test_inference_tensors_are_no_hindrance() -> None:
    with torch.inference_mode():
        constant = torch.randn(4)
    block = Block(nn.Linear(4, 4))
    block.register_buffer("constant", constant)
    configure_gradient_checkpointing(block)
    block(torch.randn(5, 4)).sum().backward()

    assert block.calls == 2


def test_tensors_without_values_are_no_hindrance() -> None:
    with torch.device("meta"):
        meta = Block(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
    configure_gradient_checkpointing(meta)
    meta(torch.randn(5, 4, device="meta")).sum().backward()
    assert meta.calls == 2


def test_a_step_on_fake_tensors_leaves_nothing_fake_behind() -> None:
    block = Block(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
    configure_gradient_checkpointing(block)
    with FakeTensorMode(allow_non_fake_inputs=True):
        block(torch.randn(5, 4)).sum().backward()
    block.zero_grad()
    block(torch.randn(5, 4)).sum().backward()

    assert all(type(p.grad) is Tensor for p in block.parameters())
    assert torch.isfinite(block.body.get_submodule("1").running_mean).all()
