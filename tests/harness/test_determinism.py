from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from harness.determinism import SETTINGS, settle
from matrix.axes import axis_named


@pytest.fixture(autouse=True)
def _keep_settings() -> Iterator[None]:
    threads = torch.get_num_threads()
    benchmark, deterministic = torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic
    cudnn_tf32 = torch.backends.cudnn.allow_tf32
    matmul_tf32 = torch.backends.cuda.matmul.allow_tf32
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = benchmark, deterministic
    torch.backends.cudnn.allow_tf32 = cudnn_tf32
    torch.backends.cuda.matmul.allow_tf32 = matmul_tf32


def test_every_device_has_settings() -> None:
    assert set(SETTINGS) == set(axis_named("device").values)


def test_the_settings_of_the_cpu_are_one_thread() -> None:
    settle("cpu")

    assert torch.get_num_threads() == 1
    assert not torch.are_deterministic_algorithms_enabled()


def test_the_settings_of_cuda_are_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")

    settle("cuda")

    assert torch.are_deterministic_algorithms_enabled()
    assert torch.is_deterministic_algorithms_warn_only_enabled()
    assert torch.backends.cudnn.deterministic and not torch.backends.cudnn.benchmark
    assert not torch.backends.cuda.matmul.allow_tf32
