from __future__ import annotations

import pytest
import torch

from harness.devices import check_device, device_of, group_backend


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> int:
    count: int = request.param
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    return count


@pytest.mark.parametrize("devices", [2], indirect=True)
def test_ranks_share_devices_where_there_are_fewer(devices: int) -> None:
    assert [device_of("cuda", rank) for rank in range(3)] == [
        torch.device("cuda", index) for index in (0, 1, 0)
    ]
    assert device_of("cpu", 1) == torch.device("cpu")


@pytest.mark.parametrize(
    ("devices", "backend", "ranks", "expected"),
    [
        (0, "auto", 2, "gloo"),
        (1, "auto", 2, "gloo"),
        (2, "auto", 2, "cpu:gloo,cuda:nccl"),
        (2, "gloo", 2, "gloo"),
        (2, "nccl", 2, "cpu:gloo,cuda:nccl"),
    ],
    indirect=["devices"],
)
def test_nccl_is_taken_where_each_rank_has_a_device(
    devices: int, backend: str, ranks: int, expected: str
) -> None:
    assert group_backend(backend, ranks) == expected


@pytest.mark.parametrize(
    ("devices", "kind", "backend", "message"),
    [
        (0, "cuda", "auto", "torch finds no CUDA device here"),
        (2, "cpu", "nccl", "--backend nccl needs --device cuda"),
        (1, "cuda", "nccl", "2 ranks, 1 devices; use --backend gloo"),
    ],
    indirect=["devices"],
)
def test_what_is_not_there_is_refused(devices: int, kind: str, backend: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_device(kind, backend, ranks=2)


@pytest.mark.parametrize("devices", [2], indirect=True)
def test_what_is_there_is_not_refused(devices: int) -> None:
    check_device("cuda", "nccl", ranks=2)
    check_device("cpu", "gloo", ranks=8)
