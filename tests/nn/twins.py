"""A module and its checkpointed twin: one training step of each, compared to the last bit."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from wcn_ckpt.nn.modules import configure_gradient_checkpointing


def fill_zeros(module: nn.Module, seed: int = 0) -> None:
    """Give parameters that start at zero small values: behind zeros no gradient could be wrong."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        if not parameter.any():
            with torch.no_grad():
                parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))


def boundaries(module: nn.Module) -> list[nn.Module]:
    return [m for m in module.modules() if hasattr(m, "gradient_checkpointing")]


def count_calls(module: nn.Module) -> dict[str, int]:
    """Count how often each boundary computes; the counts change as it does."""
    calls: dict[str, int] = {}
    for name, boundary in module.named_modules():
        if not hasattr(boundary, "gradient_checkpointing"):
            continue
        calls[name] = 0

        def counted(
            *args: Any, name: str = name, compute: Any = boundary._forward, **kwargs: Any
        ) -> Any:
            calls[name] += 1
            return compute(*args, **kwargs)

        boundary._forward = counted
    return calls


def train_step(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], autocast: bool = False
) -> dict[str, Tensor | None]:
    """Return outputs, gradients of every floating point input and parameter, and buffers.

    Autocast is to bfloat16 on the CPU and to float16 on CUDA, where the module is.
    """
    device = next(module.parameters()).device.type
    half = torch.float16 if device == "cuda" else torch.bfloat16
    inputs: list[Tensor] = []

    def leaf(value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        inputs.append(value.detach().clone().requires_grad_())
        return inputs[-1]

    args, kwargs = pytree.tree_map(leaf, (args, kwargs))
    torch.manual_seed(11)
    with torch.autocast(device, dtype=half, enabled=autocast):
        out = module(*args, **kwargs)
    leaves = [t for t in pytree.tree_leaves(out) if isinstance(t, Tensor)]
    loss = sum(
        (t.double() * torch.arange(t.numel(), device=device).reshape(t.shape).cos()).sum()
        for t in leaves
        if t.requires_grad
    )
    parameters = dict(module.named_parameters())
    grads = torch.autograd.grad(loss, [*inputs, *parameters.values()], allow_unused=True)
    names = [f"input {i}" for i in range(len(inputs))] + [f"grad {name}" for name in parameters]
    return {
        **{f"output {i}": t.detach() for i, t in enumerate(leaves)},
        **dict(zip(names, grads, strict=True)),
        **{f"buffer {name}": b.clone() for name, b in module.named_buffers()},
    }


def differences(expected: dict[str, Tensor | None], got: dict[str, Tensor | None]) -> list[str]:
    assert expected.keys() == got.keys()
    return [
        name
        for name, value in expected.items()
        if (value is None) != (got[name] is None)
        or (value is not None and not torch.equal(value, got[name]))
    ]


def assert_twins_agree(
    module: nn.Module, *args: Any, autocast: bool = False, **kwargs: Any
) -> None:
    """Checkpointing changes no bit, every parameter learns, and each boundary ran twice."""
    fill_zeros(module)
    ordinary, recomputed = copy.deepcopy(module).train(), copy.deepcopy(module).train()
    keys = list(recomputed.state_dict())
    assert configure_gradient_checkpointing(ordinary, False) == len(boundaries(module))
    configure_gradient_checkpointing(recomputed, True)
    plain_calls, calls = count_calls(ordinary), count_calls(recomputed)

    expected = train_step(ordinary, args, kwargs, autocast)
    got = train_step(recomputed, args, kwargs, autocast)

    assert differences(expected, got) == []
    silent = [n for n, v in expected.items() if "grad" in n and (v is None or not v.any())]
    assert silent == []
    assert set(plain_calls.values()) == {1}
    assert set(calls.values()) == {2}
    assert list(recomputed.state_dict()) == keys
    assert not any("checkpoint" in key for key in keys)

    recomputed.eval()
    train_step(recomputed, args, kwargs, autocast)
    assert set(calls.values()) == {3}
    configure_gradient_checkpointing(recomputed.train(), False)
    train_step(recomputed, args, kwargs, autocast)
    assert set(calls.values()) == {4}


def bytes_kept(module: nn.Module, *args: Any, **kwargs: Any) -> int:
    """Return the activations that a forward keeps for backward, each storage once.

    Parameters and integer or complex tables are left out: they live on without a graph.
    """
    own = {p.untyped_storage().data_ptr() for p in module.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if tensor.is_floating_point() and storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        module(*args, **kwargs)
    return sum(kept.values())
