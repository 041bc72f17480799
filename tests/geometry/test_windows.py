"""Windows of a grid against their definition, and offsets by name and by value."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.geometry.clouds import make_points, make_voxels
from wcn_ckpt.geometry import Geometry
from wcn_ckpt.geometry.coordinates import Triple
from wcn_ckpt.geometry.origins import Origin
from wcn_ckpt.geometry.windows import (
    OFFSET_FRACTIONS,
    check_window_offset,
    resolve_window_offset,
    rows_by_window,
    window_shift,
)


def windows_by_definition(
    x: Geometry, size: Triple, shift: Triple, origin: Origin
) -> list[tuple[int, ...]]:
    """Return `(cloud, window)` of each row, one by one."""
    result = []
    clouds = x.coords[:, 0].long()
    for row, cloud in zip(x.coordinate_tensor, clouds, strict=True):
        others = x.coordinate_tensor[clouds == cloud] if origin == "cloud" else x.coordinates
        corner = others.amin(0)
        window = [
            int((row[i] - corner[i] + shift[i]).div(size[i], rounding_mode="floor"))
            for i in range(3)
        ]
        result.append((int(cloud), *window))
    return result


@pytest.mark.parametrize("origin", ["cloud", "batch"])
@pytest.mark.parametrize("kind", [make_voxels, make_points])
@given(
    edge=st.integers(1, 7),
    fractions=st.tuples(*[st.floats(-1, 1)] * 3),
)
@settings(derandomize=True, max_examples=15, deadline=None)
def test_rows_are_sorted_by_cloud_and_window(
    kind: Any, origin: Origin, edge: int, fractions: tuple[float, float, float]
) -> None:
    x, size = kind((12, 0, 9, 0)), (edge, edge + 1, 2)
    if kind is make_points:
        x = x.replace(batched_coordinates=x.coordinate_tensor * 4)
    shift = window_shift(fractions, size)

    rows, counts = rows_by_window(x.batched_coordinates, size, shift, origin)

    windows = windows_by_definition(x, size, shift, origin)
    ordered = [windows[row] for row in rows.tolist()]
    assert ordered == sorted(windows)
    assert counts.tolist() == [windows.count(each) for each in sorted(set(windows))]


def test_half_an_edge_is_rounded_to_even_cells() -> None:
    assert window_shift("xyz", (3, 1, 5)) == (2, 0, 2)
    assert window_shift("zero", (3, 1, 5)) == (0, 0, 0)
    assert window_shift((0.25, 0.0, 1.0), (8, 8, 8)) == (2, 0, 8)


def test_names_say_which_axes_move() -> None:
    for name, fractions in OFFSET_FRACTIONS.items():
        moved = "".join(axis for axis, part in zip("xyz", fractions, strict=True) if part)
        assert moved == (name if name != "zero" else "")
        assert set(fractions) <= {0.0, 0.5}


def test_resolving_draws_what_is_random_and_nothing_else() -> None:
    torch.manual_seed(0)
    state = torch.get_rng_state()
    assert resolve_window_offset("xy") == "xy"
    assert resolve_window_offset([0, 0.5, 1]) == (0.0, 0.5, 1.0)
    assert torch.equal(torch.get_rng_state(), state)

    first, second = resolve_window_offset("random"), resolve_window_offset("random")

    assert first != second
    assert all(isinstance(part, float) and 0 <= part < 1 for part in first)
    torch.manual_seed(0)
    assert resolve_window_offset("random") == first


@pytest.mark.parametrize(
    ("offset", "error", "message"),
    [
        ("yx", ValueError, "got 'yx'"),
        ((0.5, 0.5), ValueError, "three finite fractions"),
        ((0.5, 0.5, float("nan")), ValueError, "nan"),
        (("x", 0, 0), TypeError, "'x'"),
        (0.5, TypeError, "float"),
        (None, TypeError, "NoneType"),
    ],
)
def test_refuses(offset: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        check_window_offset(offset)
