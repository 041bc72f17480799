"""``torch.compile`` inside the boundaries of a subject, and around it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from wcn_ckpt import replay_options

INSIDE_BACKEND = "aot_eager"
"""Backend of what is compiled inside boundaries: it computes what eager mode does."""

_AS_EAGER: dict[str, Any] = {"emulate_precision_casts": True}
"""Without it inductor skips roundings to bfloat16 inside a kernel, and other ones in a replay."""


class Compiled(nn.Module):
    """A module that runs compiled, as one graph; hooks on this one run in eager mode.

    Args:
        module: The module.
        backend: Backend of ``torch.compile``.
    """

    def __init__(self, module: nn.Module, backend: str) -> None:
        super().__init__()
        self.module = module
        options = _AS_EAGER if backend == "inductor" else None
        # Not registered: it would be a second path to every parameter.
        self.__dict__["_compiled"] = torch.compile(
            module, backend=backend, fullgraph=True, options=options
        )

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the compiled module, whose graph may be retained."""
        with torch._functorch.config.patch(donated_buffer=False):
            return self.__dict__["_compiled"](*args, **kwargs)


def compile_around(module: nn.Module, backend: str) -> nn.Module:
    """Return a module that runs ``module``, boundaries included, as one compiled graph.

    Args:
        module: The subject. Its boundaries are told to let ``torch.compile`` trace them.
        backend: Backend of ``torch.compile``.
    """
    replay_options(module, allow_compile=True)
    return Compiled(module, backend)


def compile_inside(module: nn.Module) -> None:
    """Compile, in place, the largest modules below boundaries that hold no boundary themselves.

    Args:
        module: The subject.
    """
    for boundary in module.modules():
        if _is_boundary(boundary):
            _compile_children(boundary)


def forget_compiled_code() -> None:
    """Drop what was compiled, so that the next case starts as the first one did."""
    torch._dynamo.reset()


def _compile_children(module: nn.Module) -> None:
    for child in module.children():
        if _is_boundary(child):
            continue
        if any(_is_boundary(below) for below in child.modules()):
            _compile_children(child)
        else:
            child.compile(backend=INSIDE_BACKEND)


def _is_boundary(module: nn.Module) -> bool:
    return hasattr(module, "gradient_checkpointing")
