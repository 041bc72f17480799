"""Geometries: construction, what they refuse, accessors, replacement, arithmetic."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.geometry.clouds import LISTED, make_points, make_voxels, random_cells
from wcn_ckpt.geometry import CatFeatures, Geometry, IntCoords, Points, RealCoords, Voxels

XYZ = torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.5, 2.0], [-1.0, 3.0, 0.25]])
CELLS = torch.tensor([[0, 0, 0], [1, 0, 2], [-1, 3, 0]], dtype=torch.int32)
ROWS = torch.arange(6.0).reshape(3, 2)
NUMBERS: Any = [ROWS.tolist()]
HALF: Any = 1.5
LETTERS: Any = "03"


def test_lists_become_concatenated_rows_with_offsets() -> None:
    points = Points([XYZ, XYZ[:1]], [ROWS, ROWS[:1]])

    assert points.offsets.tolist() == [0, 3, 4]
    assert points.offsets.dtype == torch.int32
    assert points.batch_size == 2
    assert len(points) == 4
    assert torch.equal(points.coordinate_tensor, torch.cat([XYZ, XYZ[:1]]))
    assert torch.equal(points.feature_tensor, torch.cat([ROWS, ROWS[:1]]))


def test_both_forms_give_the_same_geometry() -> None:
    listed = Voxels([CELLS, CELLS[:0], CELLS[:2]], [ROWS, ROWS[:0], ROWS[:2]])
    joined = Voxels(
        torch.cat([CELLS, CELLS[:2]]), torch.cat([ROWS, ROWS[:2]]), torch.tensor([0, 3, 3, 5])
    )

    assert torch.equal(listed.coords, joined.coords)
    assert torch.equal(listed.feats, joined.feats)
    assert listed.offsets.tolist() == joined.offsets.tolist()


def test_accessors_of_voxels() -> None:
    voxels = Voxels([CELLS], [ROWS], tensor_stride=2, voxel_size=0.1, ordering="morton_xyz")

    assert voxels.coordinates is voxels.coordinate_tensor
    assert voxels.features is voxels.feature_tensor
    assert torch.equal(voxels.coords, voxels.batch_indexed_coordinates)
    assert voxels.coords.tolist() == [[0, *cell] for cell in CELLS.tolist()]
    assert voxels.coords.dtype == torch.int32
    assert (voxels.num_channels, voxels.num_spatial_dims) == (2, 3)
    assert (voxels.device.type, voxels.dtype) == ("cpu", torch.float32)
    assert voxels.tensor_stride == voxels.stride == (2, 2, 2)
    assert (voxels.voxel_size, voxels.ordering) == (0.1, "morton_xyz")
    assert isinstance(voxels.batched_features, CatFeatures)
    assert isinstance(voxels.batched_coordinates, IntCoords)


def test_stride_is_unknown_unless_given() -> None:
    assert Voxels([CELLS], [ROWS]).tensor_stride is None
    assert Voxels([CELLS], [ROWS], stride=(1, 2, 4)).tensor_stride == (1, 2, 4)


def test_offsets_come_to_the_cpu_as_they_are() -> None:
    for offsets in (torch.tensor([0, 3], dtype=torch.int32), torch.tensor([0, 3])):
        points = Points(XYZ, ROWS, offsets)
        assert points.offsets.dtype == offsets.dtype
        assert points.offsets.device.type == "cpu"


def test_wrapped_parts_are_taken_as_they_are() -> None:
    cells, rows = IntCoords([CELLS]), CatFeatures([ROWS])

    voxels = Voxels(cells, rows)

    assert voxels.batched_coordinates is cells
    assert voxels.batched_features is rows


def test_a_stride_does_not_reach_a_sibling_through_shared_coordinates() -> None:
    cells = IntCoords([CELLS])
    before = Voxels(cells, CatFeatures([ROWS]))

    after = Voxels(cells, CatFeatures([ROWS]), tensor_stride=4)

    assert before.tensor_stride is None
    assert after.tensor_stride == (4, 4, 4)


@pytest.mark.parametrize("cls", [Points, Voxels])
def test_nothing_at_all_is_a_geometry(cls: type[Geometry]) -> None:
    empty = cls([], [])

    assert len(empty) == 0
    assert empty.batch_size == 0
    assert empty.replace_features(torch.zeros(0, 4)).num_channels == 4


REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "lists of unequal length": (lambda: Points([XYZ], [ROWS, ROWS]), ValueError, "1 .*2 "),
    "clouds of unequal length": (
        lambda: Points([XYZ, XYZ], [ROWS, ROWS[:2]]),
        ValueError,
        "cloud 1 has 3 .* 2 ",
    ),
    "list and tensor": (lambda: Points([XYZ], ROWS), TypeError, "list and Tensor"),
    "tensor and list": (lambda: Points(XYZ, [ROWS], [0, 3]), TypeError, "Tensor and list"),
    "no tensor in a list": (lambda: Points([XYZ], NUMBERS), TypeError, "cloud 0"),
    "no offsets": (lambda: Points(XYZ, ROWS), ValueError, r"\[0, 3\]"),
    "offsets beside lists": (lambda: Points([XYZ], [ROWS], [0, 3]), ValueError, "offsets"),
    "too few coordinate rows": (
        lambda: Points(XYZ[:2], ROWS, [0, 3]),
        ValueError,
        "2 coordinate rows, 3 feature rows .* 3",
    ),
    "offsets that end elsewhere": (lambda: Points(XYZ, ROWS, [0, 4]), ValueError, "3.*3.*4"),
    "float offsets": (lambda: Points(XYZ, ROWS, torch.tensor([0.0, 3.0])), TypeError, "float32"),
    "no offset": (lambda: Points(XYZ, ROWS, []), ValueError, r"shape \(0,\)"),
    "letters as offsets": (lambda: Points(XYZ, ROWS, LETTERS), TypeError, "'03'"),
    "offsets beside wrapped parts": (
        lambda: Points(RealCoords([XYZ]), CatFeatures([ROWS]), [0, 1, 3]),
        ValueError,
        r"\[0, 3\] of their own, got offsets=\[0, 1, 3\]",
    ),
    "scalar features": (lambda: Points([XYZ], [ROWS[0, 0]]), ValueError, "features of cloud 0"),
    "scalar coordinates": (
        lambda: Points(XYZ[1, 1], ROWS, [0, 3]),
        ValueError,
        "coordinates .* scalar tensor 0.5",
    ),
    "letters as features": (
        lambda: RealCoords(LETTERS),
        TypeError,
        "a list with one tensor per cloud, got str",
    ),
    "one offset": (lambda: Points(XYZ, ROWS, torch.tensor([0])), ValueError, "shape"),
    "offsets in two dimensions": (
        lambda: Points(XYZ, ROWS, torch.tensor([[0, 3]])),
        ValueError,
        "shape",
    ),
    "offsets that do not start at 0": (lambda: Points(XYZ, ROWS, [1, 3]), ValueError, "start"),
    "offsets that decrease": (
        lambda: Points(XYZ, ROWS, [0, 3, 2, 3]),
        ValueError,
        "cloud 1 goes from 3 to 2",
    ),
    "floats as voxels": (lambda: Voxels([XYZ], [ROWS]), TypeError, "float32"),
    "small integers as voxels": (lambda: Voxels([CELLS.short()], [ROWS]), TypeError, "int16"),
    "integers as points": (lambda: Points([CELLS], [ROWS]), TypeError, "int32"),
    "coordinates in one dimension": (lambda: Points([XYZ[:, 0]], [ROWS]), ValueError, r"\(3,\)"),
    "two coordinates": (lambda: Points([XYZ[:, :2]], [ROWS]), ValueError, r"\(3, 2\)"),
    "a batch column": (
        lambda: Voxels([torch.cat([CELLS, CELLS[:, :1]], 1)], [ROWS]),
        ValueError,
        r"\(3, 4\).*from_feats_coords",
    ),
    "features in one dimension": (lambda: Points([XYZ], [ROWS[:, 0]]), ValueError, r"\(3,\)"),
    "padded features": (lambda: Points([XYZ], [ROWS[None].mT[0][None]]), ValueError, "rows"),
    "padded feature tensor": (
        lambda: Points(XYZ, ROWS.reshape(3, 1, 2), [0, 3]),
        ValueError,
        r"\(3, 1, 2\)",
    ),
    "channels that differ": (
        lambda: Points([XYZ, XYZ], [ROWS, ROWS[:, :1]]),
        ValueError,
        "cloud 1 has 1",
    ),
    "NaN": (lambda: Points([XYZ.log()], [ROWS]), ValueError, "NaN or infinite.* row 0"),
    "infinity": (lambda: Points([XYZ / 0], [ROWS]), ValueError, "drop"),
    "stride 0": (lambda: Voxels([CELLS], [ROWS], tensor_stride=0), ValueError, "0"),
    "two strides": (lambda: Voxels([CELLS], [ROWS], tensor_stride=(1, 2)), ValueError, "three"),
    "half a stride": (lambda: Voxels([CELLS], [ROWS], tensor_stride=HALF), TypeError, "1.5"),
    "contradicting strides": (
        lambda: Voxels([CELLS], [ROWS], tensor_stride=1, stride=2),
        ValueError,
        "alias",
    ),
    "wrong kind of coordinates": (
        lambda: Points(IntCoords([CELLS]), CatFeatures([ROWS])),
        TypeError,
        "RealCoords",
    ),
    "offsets of the parts differ": (
        lambda: Points(RealCoords(XYZ, [0, 1, 3]), CatFeatures(ROWS, [0, 2, 3])),
        ValueError,
        r"\[0, 2, 3\].*\[0, 1, 3\]",
    ),
    "beyond int32": (
        lambda: Voxels([CELLS.long() + 2**31], [ROWS]),
        ValueError,
        "2147483648",
    ),
    "too far apart for a key": (
        lambda: Voxels([CELLS * 2**29], [ROWS]),
        ValueError,
        "int64 key",
    ),
    "devices that differ": (
        lambda: Points([XYZ], [ROWS.to("meta")]),
        ValueError,
        "cpu.*meta",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refuses(name: str) -> None:
    build, error, message = REFUSED[name]

    with pytest.raises(error, match=message):
        build()


def test_an_empty_cloud_is_kept_wherever_it_is() -> None:
    voxels = make_voxels(LISTED)

    assert voxels.batch_size == 4
    for other in (
        voxels + voxels,
        voxels.to(dtype=torch.float32),
        voxels.replace_features(torch.zeros(55, 1)),
        copy.deepcopy(voxels),
        voxels.to_point(1.0).to_voxels(1.0),
    ):
        assert other.offsets.tolist() == [0, 30, 30, 55, 55]


class TestFromFeatsCoords:
    """Coordinates that carry their cloud in column 0."""

    def test_the_clouds_are_counted(self) -> None:
        voxels = make_voxels((3, 0, 2))

        again = Voxels.from_feats_coords(voxels.feats, voxels.coords, tensor_stride=2)

        assert again.offsets.tolist() == [0, 3, 3, 5]
        assert torch.equal(again.coords, voxels.coords)
        assert again.tensor_stride == (2, 2, 2)

    def test_batch_size_keeps_trailing_empty_clouds(self) -> None:
        voxels = make_voxels((3, 0))

        again = Voxels.from_feats_coords(voxels.feats, voxels.coords, batch_size=4)

        assert again.offsets.tolist() == [0, 3, 3, 3, 3]

    def test_offsets_override_the_column(self) -> None:
        voxels = make_voxels((3,))

        again = Voxels.from_feats_coords(voxels.feats, voxels.coords, offsets=[0, 1, 3])

        assert again.batch_size == 2

    def test_no_rows_are_one_cloud(self) -> None:
        empty = Voxels.from_feats_coords(torch.zeros(0, 2), torch.zeros(0, 4, dtype=torch.int32))

        assert empty.batch_size == 1

    @pytest.mark.parametrize(
        ("clouds", "options", "message"),
        [
            ([0, 2, 1], {}, "row 2 belongs to cloud 1"),
            ([-1, 0, 0], {}, "-1"),
            ([0, 1, 2], {"batch_size": 2}, "from 0 to 2, but batch_size is 2"),
            ([0, 0, 0], {"offsets": [0, 3], "batch_size": 2}, "batch_size is 2"),
        ],
    )
    def test_refuses_clouds_out_of_order(
        self, clouds: list[int], options: dict[str, Any], message: str
    ) -> None:
        coords = torch.cat([torch.tensor(clouds, dtype=torch.int32)[:, None], CELLS], dim=1)

        with pytest.raises(ValueError, match=message):
            Voxels.from_feats_coords(ROWS, coords, **options)

    def test_refuses_other_columns_and_types(self) -> None:
        with pytest.raises(ValueError, match=r"\(3, 3\)"):
            Voxels.from_feats_coords(ROWS, CELLS)
        with pytest.raises(TypeError, match="float32"):
            Voxels.from_feats_coords(ROWS, torch.zeros(3, 4))
        with pytest.raises(TypeError, match="feats must be a tensor, got list"):
            Voxels.from_feats_coords(NUMBERS, CELLS)

    @pytest.mark.parametrize(
        ("batch_size", "error", "message"),
        [(0, ValueError, "at least 1, got 0"), (LETTERS, TypeError, "integer, got '03'")],
    )
    def test_refuses_batch_sizes(
        self, batch_size: int, error: type[Exception], message: str
    ) -> None:
        with pytest.raises(error, match=f"batch_size must be .*{message}"):
            Voxels.from_feats_coords(ROWS[:0], CELLS.new_zeros(0, 4), batch_size=batch_size)


class TestAutocast:
    """Features follow autocast, what is stored does not."""

    def test_floating_features_are_cast_and_gradients_flow(self) -> None:
        rows = ROWS.clone().requires_grad_()
        points = Points(XYZ, rows, [0, 3])

        with torch.autocast("cpu", dtype=torch.bfloat16):
            features = points.feature_tensor
            assert points.dtype == torch.float32
        (gradient,) = torch.autograd.grad(features.float().sum(), rows)

        assert features.dtype == torch.bfloat16
        assert torch.equal(gradient, torch.ones_like(rows))
        assert points.batched_features.tensor is rows

    @pytest.mark.parametrize("dtype", [torch.bool, torch.int64])
    def test_masks_and_integers_are_left_alone(self, dtype: torch.dtype) -> None:
        points = Points([XYZ], [ROWS.to(dtype)])

        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert points.feature_tensor.dtype == dtype

    def test_another_device_type_does_not_count(self) -> None:
        points = Points([XYZ], [ROWS])

        with torch.autocast("cpu", enabled=False):
            assert points.feature_tensor.dtype == torch.float32

    def test_arithmetic_gives_the_autocast_type(self) -> None:
        points = Points([XYZ], [ROWS])

        with torch.autocast("cpu", dtype=torch.bfloat16):
            total = points + points

        assert total.dtype == torch.bfloat16


class TestArithmetic:
    """Row by row, keeping the left operand's coordinates."""

    @pytest.mark.parametrize("sign", ["+", "-", "*", "/", "//", "%", "**"])
    def test_between_geometries_and_with_numbers(self, sign: str) -> None:
        left, right = make_points(seed=1), make_points(seed=2)
        left, right = left * left + 1, right * right + 1

        def apply(a: object, b: object) -> Any:
            return eval(f"a {sign} b", {"a": a, "b": b})

        expected = apply(left.feats, right.feats)
        for result in (
            apply(left, right).feats,
            apply(left.batched_features, right.batched_features).tensor,
        ):
            assert torch.equal(result, expected)
        assert torch.equal(apply(left, 3).feats, apply(left.feats, 3))
        one_element = apply(left, torch.tensor([3.0])).feats
        torch.testing.assert_close(one_element, apply(left.feats, 3.0))

    def test_numbers_may_stand_on_the_left(self) -> None:
        points = make_points()

        assert torch.equal((2 + points).feats, 2 + points.feats)
        assert torch.equal((2 - points).feats, 2 - points.feats)
        assert torch.equal((2 * points).feats, 2 * points.feats)
        assert torch.equal((2 / points).feats, 2 / points.feats)

    def test_numbers_may_be_numpy_scalars(self) -> None:
        points = make_points()

        assert torch.equal((points * np.float32(0.5)).feats, points.feats * 0.5)
        assert torch.equal((np.float32(0.5) - points).feats, 0.5 - points.feats)
        assert torch.equal((np.int64(2) * points).feats, 2 * points.feats)

    def test_the_left_operand_gives_coordinates_and_attributes(self) -> None:
        left, right = make_points(seed=1, voxel_size=1.0), make_points(seed=2, voxel_size=2.0)

        total = left + right

        assert total.batched_coordinates is left.batched_coordinates
        assert total.voxel_size == 1.0

    def test_augmented_assignment_does_not_write(self) -> None:
        points = make_points()
        before, kept = points, points.feats.clone()

        points += 1

        assert torch.equal(before.feats, kept)
        assert points is not before

    def test_refuses_other_rows(self) -> None:
        with pytest.raises(ValueError, match=r"\[0, 3\].*\[0, 2, 3\]"):
            make_points((3,)) + make_points((2, 1))
        with pytest.raises(ValueError, match=r"\(3, 4\).*\(3, 2\)"):
            make_points((3,)) + make_points((3,), channels=2)

    @pytest.mark.parametrize("other", [torch.zeros(3, 4), "1", None])
    def test_refuses_other_operands(self, other: object) -> None:
        with pytest.raises(TypeError, match="cannot combine"):
            make_points((3,)) + other


class TestReplace:
    """New geometries from old ones."""

    def test_features_are_exchanged_and_the_rest_stays(self) -> None:
        voxels = make_voxels(tensor_stride=2, voxel_size=0.5, colour="red")
        rows = torch.randn(55, 7, requires_grad=True)

        other = voxels.replace_features(rows)

        assert type(other) is Voxels
        assert other.batched_coordinates is voxels.batched_coordinates
        assert other.feature_tensor is rows
        assert other.extra_attributes == {"voxel_size": 0.5, "colour": "red"}
        assert voxels.num_channels == 4

    def test_extra_attributes_override(self) -> None:
        voxels = make_voxels(voxel_size=0.5, colour="red")

        assert voxels.replace(voxel_size=1.0).extra_attributes == {
            "voxel_size": 1.0,
            "colour": "red",
        }
        assert voxels.voxel_size == 0.5

    def test_new_coordinates_keep_the_stride_and_leave_the_tables(self) -> None:
        voxels = make_voxels(tensor_stride=2)
        voxels.spatial_cache["table"] = 1

        other = voxels.replace(batched_coordinates=voxels.coordinate_tensor + 1)

        assert other.tensor_stride == (2, 2, 2)
        assert "table" not in other.spatial_cache
        assert voxels.replace(tensor_stride=4).tensor_stride == (4, 4, 4)

    def test_the_spatial_cache_is_shared_once_it_exists(self) -> None:
        voxels = make_voxels()
        sibling = voxels.replace_features(voxels.feats)
        voxels.spatial_cache["table"] = 1

        later = voxels.replace_features(voxels.feats)

        assert later.spatial_cache is voxels.spatial_cache
        assert sibling.spatial_cache == {}

    def test_refuses_another_number_of_rows(self) -> None:
        with pytest.raises(ValueError, match="54 rows.*55"):
            make_voxels().replace_features(torch.zeros(54, 2))

    @pytest.mark.parametrize("features", [None, LETTERS, NUMBERS])
    def test_refuses_features_that_are_no_tensor(self, features: Any) -> None:
        with pytest.raises(TypeError, match="features must be a tensor"):
            make_voxels().replace_features(features)

    def test_refuses_features_elsewhere(self) -> None:
        voxels = make_voxels()
        with pytest.raises(ValueError, match="on cpu and features on meta"):
            voxels.replace_features(voxels.feats.to("meta"))


class TestMoves:
    """Devices, dtypes, copies and single clouds."""

    def test_dtype_changes_features_alone(self) -> None:
        voxels = make_voxels(tensor_stride=2)

        for other in (voxels.half(), voxels.to(torch.float16), voxels.to("cpu", torch.float16)):
            assert other.dtype == torch.float16
            assert other.coordinate_tensor.dtype == torch.int32
            assert other.tensor_stride == (2, 2, 2)
        assert voxels.float().dtype == torch.float32
        assert voxels.float().double().dtype == torch.float64

    def test_another_device_keeps_the_stride_and_leaves_the_tables(self) -> None:
        voxels = make_voxels(tensor_stride=2, voxel_size=1.0)
        voxels.spatial_cache["table"] = 1

        moved = voxels.to("meta")

        assert moved.device.type == "meta"
        assert moved.offsets.device.type == "cpu"
        assert moved.tensor_stride == (2, 2, 2)
        assert moved.extra_attributes == {"voxel_size": 1.0}

    def test_one_cloud(self) -> None:
        voxels = make_voxels((3, 0, 2), tensor_stride=2, voxel_size=1.0)

        assert [len(voxels[b]) for b in range(3)] == [3, 0, 2]
        assert torch.equal(voxels[-1].feats, voxels.feats[3:])
        assert voxels[2].batch_size == 1
        assert voxels[2].tensor_stride == (2, 2, 2)
        assert voxels[2].voxel_size == 1.0
        assert len(voxels[np.int64(2)]) == 2
        with pytest.raises(IndexError, match="cloud 3 of a batch of 3"):
            voxels[3]
        with pytest.raises(TypeError, match="number of a cloud"):
            voxels["1"]  # type: ignore[index]  # that is what is tested

    @pytest.mark.parametrize("copied", [copy.deepcopy, lambda v: pickle.loads(pickle.dumps(v))])
    def test_copies_are_complete_and_leave_the_tables(
        self, copied: Callable[[Voxels], Voxels]
    ) -> None:
        voxels = make_voxels(tensor_stride=2, voxel_size=1.0)
        voxels.spatial_cache["table"] = 1
        index = voxels.batched_coordinates.index

        other = copied(voxels)

        assert torch.equal(other.coords, voxels.coords)
        assert torch.equal(other.feats, voxels.feats)
        assert other.tensor_stride == (2, 2, 2)
        assert other.extra_attributes == {"voxel_size": 1.0}
        assert other.batched_coordinates.index is not index

    def test_representation_shows_shapes(self) -> None:
        text = repr(make_voxels(voxel_size=1.0))

        assert "num_channels=4" in text
        assert "voxel_size" in text
        assert "offsets=[0, 30, 30, 55, 55]" in repr(make_voxels().batched_features)


class TestTables:
    """Tables are kept with unchanged coordinates."""

    def test_batch_indexed_coordinates_are_built_once(self) -> None:
        voxels = make_voxels()

        assert voxels.coords is voxels.replace_features(voxels.feats).coords

    def test_writing_into_coordinates_empties_the_cache(self) -> None:
        voxels = make_voxels()
        before = voxels.coords

        voxels.coordinate_tensor.add_(1)

        assert torch.equal(voxels.coords[:, 1:], before[:, 1:] + 1)

    def test_repeated_voxels_are_refused_when_looked_up(self) -> None:
        cells = random_cells(5)
        voxels = Voxels([cells[:0], torch.cat([cells, cells[:2]])], [ROWS[:0], torch.zeros(7, 2)])

        with pytest.raises(ValueError, match="2 of 7 voxels repeat.*cloud 1"):
            _ = voxels.batched_coordinates.index

    def test_the_same_cell_in_two_clouds_is_no_repetition(self) -> None:
        cells = random_cells(5)

        assert Voxels([cells, cells], [torch.zeros(5, 1)] * 2).batched_coordinates.index

    def test_tables_built_under_inference_mode_can_be_saved_for_backward(self) -> None:
        voxels = make_voxels()
        with torch.inference_mode():
            clouds: Tensor = voxels.batched_coordinates.batch_indices

        assert not clouds.is_inference()
