from __future__ import annotations

import pytest

from harness.verification.request import VerifyRequest, parse_bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [("8GiB", 8 * 2**30), ("500MB", 500_000_000), ("1e6", 1_000_000), ("1.5 kib", 1536), ("3B", 3)],
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "8Gx", "-1MB", "0", "many", "1e400"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no size"):
        parse_bytes(text)


def test_the_command_asks_the_same() -> None:
    request = VerifyRequest(target="a:b", inputs="c d:e", boundaries=("layers.*",), ranks=1)

    assert request.command == (
        "ckpt-lab verify a:b --inputs 'c d:e' --ranks 1 --boundary 'layers.*'"
    )
