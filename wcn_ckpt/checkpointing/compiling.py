"""Whether a boundary is being run by `torch.compile`, beyond `torch.compiler.is_compiling()`."""

from __future__ import annotations

import sys

from torch._C._dynamo.eval_frame import get_eval_frame_callback

__all__ = ["dynamo_is_compiling", "get_eval_frame_callback"]


def dynamo_is_compiling() -> bool:
    """Whether Dynamo, if it was ever imported, says that it is tracing."""
    dynamo = sys.modules.get("torch._dynamo")
    return dynamo is not None and bool(dynamo.is_compiling())
