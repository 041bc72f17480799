"""What makes a run repeat itself, for each kind of device; written down in ``run.json``."""

from __future__ import annotations

import os
from collections.abc import Mapping

Setting = bool | int | str

SETTINGS: Mapping[str, Mapping[str, Setting]] = {
    # With one thread, torch's CPU kernels sum in a fixed order.
    "cpu": {"num_threads": 1, "deterministic_algorithms": "off"},
    # "warn": operations without a deterministic kernel run all the same. What they leave to chance
    # is measured: the ordinary arm is run twice, and its difference from itself is the tolerance.
    "cuda": {
        "num_threads": 1,
        "deterministic_algorithms": "warn",
        "cublas_workspace_config": ":4096:8",
        "cudnn_benchmark": False,
        "cudnn_deterministic": True,
        "allow_tf32": False,
    },
}
"""Kind of device -> name of a setting -> value."""


def settle(kind: str) -> None:
    """Apply the settings of a kind of device to this process.

    Args:
        kind: ``cpu`` or ``cuda``. CUDA's workspace setting counts only if it comes before the
            first use of a device.

    Raises:
        KeyError: If there are no settings for that kind.
    """
    import torch

    settings = SETTINGS[kind]
    torch.set_num_threads(int(settings["num_threads"]))
    strict = settings["deterministic_algorithms"] != "off"
    torch.use_deterministic_algorithms(strict, warn_only=strict)
    if kind == "cuda":
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = str(settings["cublas_workspace_config"])
        torch.backends.cudnn.benchmark = bool(settings["cudnn_benchmark"])
        torch.backends.cudnn.deterministic = bool(settings["cudnn_deterministic"])
        torch.backends.cudnn.allow_tf32 = bool(settings["allow_tf32"])
        torch.backends.cuda.matmul.allow_tf32 = bool(settings["allow_tf32"])
