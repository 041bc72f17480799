"""Keys of cells, and looking voxels up by them."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.geometry.clouds import make_voxels
from wcn_ckpt.geometry.cells import CellBox, unique_cells
from wcn_ckpt.geometry.voxel_index import VoxelIndex

LAWS = settings(derandomize=True, max_examples=50, deadline=None)
INT32 = st.integers(-(2**31), 2**31 - 1)
NEAR = st.integers(-5, 5)
ROWS = st.lists(st.tuples(st.integers(0, 2), NEAR, NEAR, NEAR), max_size=30)


def columns(rows: list[tuple[int, int, int, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    table = torch.tensor(rows, dtype=torch.int64).reshape(-1, 4)
    return table[:, 1:], table[:, 0]


@LAWS
@given(ROWS, st.integers(0, 2))
def test_keys_sort_like_cells_and_can_be_read_back(
    rows: list[tuple[int, int, int, int]], margin: int
) -> None:
    cells, clouds = columns(rows)
    box = CellBox.around(cells, 3, margin)

    keys = box.encode(cells, clouds)

    order = keys.argsort(stable=True)
    assert [rows[i] for i in order] == sorted(rows)
    again = box.decode(keys)
    assert torch.equal(again[0], cells)
    assert torch.equal(again[1], clouds)


@LAWS
@given(INT32, INT32)
def test_the_whole_int32_range_has_keys(low: int, high: int) -> None:
    cells = torch.tensor([[low, 0, 0], [high, 0, 0]], dtype=torch.int32)
    clouds = torch.tensor([0, 1])

    box = CellBox.around(cells, 2, margin=1)

    assert torch.equal(box.decode(box.encode(cells, clouds))[0], cells.long())


@LAWS
@given(ROWS)
def test_unique_cells(rows: list[tuple[int, int, int, int]]) -> None:
    cells, clouds = columns(rows)

    unique, counts, inverse = unique_cells(cells, clouds, 3)

    owners = torch.arange(3).repeat_interleave(counts)
    found = torch.cat([owners[:, None], unique], dim=1).tolist()
    assert found == [list(row) for row in sorted(set(rows))]
    assert [found[i] for i in inverse] == [list(row) for row in rows]


@LAWS
@given(st.lists(st.tuples(st.integers(0, 3), INT32, INT32, INT32), max_size=20), st.data())
def test_finds_what_is_there_and_nothing_else(
    strangers: list[tuple[int, int, int, int]], data: st.DataObject
) -> None:
    voxels = make_voxels()
    rows = [tuple(row) for row in voxels.coords.tolist()]
    near = data.draw(st.lists(st.tuples(st.integers(0, 3), NEAR, NEAR, NEAR), max_size=20))
    queries = [*strangers, *near, *rows]
    cells, clouds = columns(queries)
    index = VoxelIndex(voxels.coordinate_tensor, voxels.coords[:, 0].long(), 4)

    keys = index.cloud_keys(clouds)
    for axis in range(3):
        keys = keys + index.axis_keys(cells[:, axis], axis)
    places, found = index.find(keys)

    expected = [query in set(rows) for query in queries]
    assert found.tolist() == expected
    assert [rows[places[i]] for i in range(len(queries)) if found[i]] == [
        query for query, here in zip(queries, expected, strict=True) if here
    ]
