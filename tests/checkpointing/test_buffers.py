"""`preserve_module_buffers` leaves named tensors as they were."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from wcn_ckpt.nn.modules import preserve_module_buffers

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def trained_norm() -> nn.Module:
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Sequential(nn.InstanceNorm1d(3), nn.BatchNorm1d(3)))
    model[0](torch.randn(5, 3))
    return model


def write(model: nn.Module) -> None:
    model[0](torch.randn(5, 3))
    model.get_submodule("1.1")(torch.randn(5, 3))


def test_values_identity_and_version_are_those_of_the_entry() -> None:
    model = trained_norm()
    before = [(id(b), b._version, b.clone()) for b in model.buffers()]
    with preserve_module_buffers(model, STATISTICS):
        write(model)
        assert model[0].num_batches_tracked == 2

    for (identity, version, value), buffer in zip(before, model.buffers(), strict=True):
        assert (id(buffer), buffer._version) == (identity, version)
        assert torch.equal(buffer, value)


def test_only_named_buffers_of_the_given_types_are_kept() -> None:
    model = trained_norm()
    with preserve_module_buffers(model, "num_batches_tracked", nn.InstanceNorm1d):
        write(model)
    assert model[0].num_batches_tracked == 2


def test_an_error_passes_through_and_values_are_restored() -> None:
    model = trained_norm()
    with pytest.raises(KeyError, match="inside"), preserve_module_buffers(model, STATISTICS):
        write(model)
        raise KeyError("inside")
    assert model[0].num_batches_tracked == 1


def test_the_context_can_be_entered_again_and_nested() -> None:
    model = trained_norm()
    context = preserve_module_buffers(model, STATISTICS)
    for _ in range(2):
        with context:
            write(model)
            with context:
                write(model)
                assert model[0].num_batches_tracked == 3
            assert model[0].num_batches_tracked == 2
        assert model[0].num_batches_tracked == 1


def test_an_alias_held_elsewhere_sees_no_write() -> None:
    norm = nn.BatchNorm1d(3)
    alias = norm.running_mean
    assert alias is not None
    with preserve_module_buffers(norm, STATISTICS):
        norm(torch.randn(5, 3) + 9)
        assert torch.equal(alias, torch.zeros(3))
    assert norm.running_mean is alias


def test_plain_tensor_attributes_and_tied_buffers_are_kept() -> None:
    first, second = nn.Module(), nn.Module()
    first.cache = torch.zeros(2)
    second.cache = first.cache
    tree = nn.ModuleList([first, second])
    with preserve_module_buffers(tree, ["cache"]):
        assert first.cache is second.cache
        first.cache += 1
    assert torch.equal(first.cache, torch.zeros(2))
    assert first.cache is second.cache


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((3, ["a"]), r"needs an nn\.Module, got 3"),
        ((nn.Linear(1, 1), [4]), "must be strings, got 4"),
        ((nn.Linear(1, 1), ["a"], "BatchNorm"), "a class or a tuple of classes, got 'BatchNorm'"),
    ],
)
def test_bad_arguments_are_named(arguments: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        preserve_module_buffers(*arguments)
