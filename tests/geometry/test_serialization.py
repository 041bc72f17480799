"""Orders of rows along a curve, cloud by cloud."""

from __future__ import annotations

import pytest
import torch

from tests.geometry.clouds import make_points, make_voxels
from wcn_ckpt.geometry import POINT_ORDERING, WARPCONVNET_ORDERS, PointOrdering, Serialization
from wcn_ckpt.geometry.origins import Origin, from_origin
from wcn_ckpt.geometry.serialization import resolve_order, serialize
from wcn_ckpt.geometry.space_filling import hilbert_codes, morton_codes

CURVES = [order for order in PointOrdering if order is not PointOrdering.RANDOM]


@pytest.mark.parametrize("order", CURVES)
@pytest.mark.parametrize("origin", ["cloud", "batch"])
def test_rows_of_each_cloud_are_sorted_by_code(order: PointOrdering, origin: Origin) -> None:
    voxels = make_voxels()
    cells, offsets = voxels.coordinate_tensor, voxels.offsets.tolist()
    along = hilbert_codes if "HILBERT" in order.name else morton_codes

    rows = serialize(cells, voxels.offsets, order, origin).permutation

    for start, stop in zip(offsets, offsets[1:], strict=False):
        if start == stop:
            continue
        corner = (cells if origin == "batch" else cells[start:stop]).amin(0)
        codes = along((cells[rows[start:stop]] - corner).long(), order.axes)
        assert (codes.diff() > 0).all()
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


def test_transposed_hilbert_has_x_and_y_exchanged() -> None:
    voxels = make_voxels()

    transposed = serialize(voxels.coordinate_tensor, voxels.offsets, "hilbert_transposed")

    swapped = voxels.coordinate_tensor[:, [1, 0, 2]]
    plain = serialize(swapped, voxels.offsets, "hilbert")
    assert torch.equal(transposed.permutation, plain.permutation)


def test_names() -> None:
    assert POINT_ORDERING is PointOrdering
    assert [order.value for order in WARPCONVNET_ORDERS] == list(range(7))
    assert [order.name for order in PointOrdering][7:] == ["HILBERT", "HILBERT_TRANSPOSED"]
    assert PointOrdering.parse("Morton") is PointOrdering.MORTON_XYZ
    assert PointOrdering.parse("morton_zyx") is PointOrdering.MORTON_ZYX
    with pytest.raises(ValueError, match="'peano'"):
        PointOrdering.parse("peano")


def test_points_are_put_into_cells_of_unit_length() -> None:
    points = make_points()
    moved = points.replace(batched_coordinates=points.coordinate_tensor * 20)

    order = serialize(moved.coordinate_tensor, points.offsets, "hilbert")

    clouds = moved.coords[:, 0].long()
    cells = from_origin(moved.coordinate_tensor, clouds, points.batch_size).floor().long()
    assert torch.equal(order.permutation, serialize(cells, points.offsets, "hilbert").permutation)


def test_resolving_draws_what_is_random_and_nothing_else() -> None:
    voxels = make_voxels()
    torch.manual_seed(0)
    state = torch.get_rng_state()

    assert resolve_order(voxels, "hilbert") is PointOrdering.HILBERT
    assert torch.equal(torch.get_rng_state(), state)

    drawn = resolve_order(voxels, "random")
    assert isinstance(drawn, Serialization)
    assert not torch.equal(torch.get_rng_state(), state)
    assert resolve_order(voxels, drawn) is drawn
    with pytest.raises(ValueError, match="permutation of 55 rows, but the geometry has 30"):
        resolve_order(voxels[0], drawn)


def test_refuses_what_does_not_fit_a_code() -> None:
    cells = torch.tensor([[0, 0, 0], [1 << 21, 0, 0]])

    with pytest.raises(ValueError, match="2097153"):
        serialize(cells, torch.tensor([0, 2]))
    with pytest.raises(ValueError, match="'world'"):
        serialize(cells, torch.tensor([0, 2]), origin="world")  # type: ignore[arg-type]  # tested


def test_nothing_is_sorted_as_nothing() -> None:
    empty = torch.zeros(0, 3, dtype=torch.int32)

    assert serialize(empty, torch.tensor([0, 0])).permutation.shape == (0,)
