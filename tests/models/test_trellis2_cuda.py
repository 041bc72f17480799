"""The models of TRELLIS.2 on CUDA: as on the CPU, and as without checkpointing."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from tests.models.trellis import FAMILIES
from tests.nn.twins import train_step
from wcn_ckpt.nn.modules import configure_gradient_checkpointing

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

DEVICE = "cuda"


@pytest.mark.parametrize("name", FAMILIES)
def test_cuda_agrees_with_the_cpu(name: str) -> None:
    model, args = FAMILIES[name]()
    model.double()

    def wide(value: Tensor) -> Tensor:
        return value.double() if value.is_floating_point() else value

    args = pytree.tree_map_only(Tensor, wide, args)
    expected = train_step(model, args, {})
    got = train_step(
        model.to(DEVICE), pytree.tree_map_only(Tensor, lambda t: t.to(DEVICE), args), {}
    )

    for key, value in expected.items():
        here = None if got[key] is None else got[key].cpu()
        torch.testing.assert_close(here, value, rtol=1e-6, atol=1e-6, msg=key)


@pytest.mark.parametrize("name", FAMILIES)
def test_checkpointing_under_autocast_changes_nothing(name: str) -> None:
    model, args = FAMILIES[name]()
    ordinary = model.to(DEVICE).train()
    recomputed = copy.deepcopy(ordinary)
    configure_gradient_checkpointing(recomputed)
    args = pytree.tree_map_only(Tensor, lambda t: t.to(DEVICE), args)

    expected = train_step(ordinary, args, {}, autocast=True)
    got = train_step(recomputed, args, {}, autocast=True)

    # Kernels on CUDA may add in another order from one call to the next.
    for key, value in expected.items():
        torch.testing.assert_close(got[key], value, rtol=1e-2, atol=1e-2, msg=key)
