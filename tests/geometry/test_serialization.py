"""Orders along the Morton curve."""

from __future__ import annotations

import pytest
import torch

from tests.geometry.clouds import make_voxels
from wcn_ckpt.geometry import POINT_ORDERING, PointOrdering
from wcn_ckpt.geometry.serialization import serialize

MORTON = [order for order in PointOrdering if order is not PointOrdering.RANDOM]


def code(cell: list[int], axes: tuple[int, ...]) -> int:
    """Interleave bits one by one."""
    return sum(
        (cell[axis] >> bit & 1) << (3 * bit + place)
        for place, axis in enumerate(axes)
        for bit in range(21)
    )


@pytest.mark.parametrize("order", MORTON)
@pytest.mark.parametrize("origin", ["cloud", "batch"])
def test_rows_of_each_cloud_are_sorted_by_code(order: PointOrdering, origin: str) -> None:
    voxels = make_voxels()
    cells, offsets = voxels.coordinate_tensor, voxels.offsets.tolist()

    rows = serialize(cells, voxels.offsets, order, origin).permutation  # type: ignore[arg-type]  # str

    for start, stop in zip(offsets, offsets[1:], strict=False):
        if start == stop:
            continue
        corner = (cells if origin == "batch" else cells[start:stop]).amin(0)
        codes = [code((cells[row] - corner).tolist(), order.axes) for row in rows[start:stop]]
        assert codes == sorted(codes)
        assert sorted(rows[start:stop].tolist()) == list(range(start, stop))


@pytest.mark.parametrize("order", list(PointOrdering))
def test_the_inverse_undoes_the_permutation(order: PointOrdering) -> None:
    voxels = make_voxels()

    result = serialize(voxels.coordinate_tensor, voxels.offsets, order)

    assert torch.equal(result.permutation[result.inverse], torch.arange(len(voxels)))
    clouds = voxels.coords[:, 0]
    assert torch.equal(clouds[result.permutation], clouds)


def test_the_first_axis_named_changes_fastest() -> None:
    cells = torch.tensor([[0, 0, 1], [0, 1, 0], [1, 0, 0]])

    rows = serialize(cells, torch.tensor([0, 3]), "morton_yzx").permutation

    assert cells[rows].tolist() == [[0, 1, 0], [0, 0, 1], [1, 0, 0]]


def test_names() -> None:
    assert POINT_ORDERING is PointOrdering
    assert [order.value for order in PointOrdering] == list(range(7))
    assert PointOrdering.parse("Morton") is PointOrdering.MORTON_XYZ
    assert PointOrdering.parse("morton_zyx") is PointOrdering.MORTON_ZYX
    with pytest.raises(ValueError, match="'hilbert'"):
        PointOrdering.parse("hilbert")


def test_refuses_what_does_not_fit_a_code() -> None:
    cells = torch.tensor([[0, 0, 0], [1 << 21, 0, 0]])

    with pytest.raises(ValueError, match="2097153"):
        serialize(cells, torch.tensor([0, 2]))
    with pytest.raises(ValueError, match="'world'"):
        serialize(cells, torch.tensor([0, 2]), origin="world")  # type: ignore[arg-type]  # tested


def test_nothing_is_sorted_as_nothing() -> None:
    empty = torch.zeros(0, 3, dtype=torch.int32)

    assert serialize(empty, torch.tensor([0, 0])).permutation.shape == (0,)
