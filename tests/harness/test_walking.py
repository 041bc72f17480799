"""The quick walks give what torch's own do."""

from __future__ import annotations

import torch
from torch import nn

from harness.walking import dotted_modules, named_buffers, named_parameters


def tree() -> nn.Module:
    shared = nn.BatchNorm1d(3)
    root = nn.Sequential(
        nn.Sequential(nn.Linear(3, 3), shared), shared, nn.Linear(3, 3, bias=False)
    )
    root[2].weight = root[0][0].weight
    root.register_buffer("own", torch.ones(1))
    root.register_buffer("nothing", None)
    root.register_module("none", None)
    root[0].register_parameter("scale", nn.Parameter(torch.ones(1)))
    root[2]._buffers["tied"] = shared.running_mean
    return root


def test_tensors_come_once_in_the_order_of_torch() -> None:
    root = tree()

    for ours, torchs in (
        (named_parameters(root), root.named_parameters()),
        (named_buffers(root), root.named_buffers()),
    ):
        found, expected = list(ours), list(torchs)
        assert [name for name, _ in found] == [name for name, _ in expected]
        assert all(a is b for (_, a), (_, b) in zip(found, expected, strict=True))


def test_modules_come_with_the_prefix_of_their_tensors() -> None:
    root = tree()

    for once in (True, False):
        expected = [
            (f"{path}." if path else "", module)
            for path, module in root.named_modules(remove_duplicate=once)
        ]
        assert dotted_modules(root, remove_duplicate=once) == expected
