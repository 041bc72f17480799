from __future__ import annotations

import itertools

import torch
from torch.utils import _pytree as pytree

from harness.importing import load
from matrix.batches import terrain_batch, terrain_maps, terrain_rows
from matrix.subjects import SUBJECTS


def test_a_batch_is_a_few_hundred_voxels_with_gradients_for_its_features() -> None:
    batch = terrain_batch(seed=0, rank=0, microbatch=0, channels=8)

    assert batch.batch_size == 2
    assert 100 < len(batch) < 400
    assert batch.feature_tensor.shape == (len(batch), 8)
    assert batch.feature_tensor.requires_grad


def test_ranks_and_microbatches_get_different_data_and_always_the_same() -> None:
    places = list(itertools.product((0, 1), (0, 1), (0, 1)))
    features = [
        terrain_batch(seed=s, rank=r, microbatch=m, channels=8).feature_tensor for s, r, m in places
    ]

    for first, second in itertools.combinations(features, 2):
        assert first.shape != second.shape or not torch.equal(first, second)
    again = terrain_batch(seed=1, rank=1, microbatch=1, channels=8).feature_tensor
    assert torch.equal(again, features[-1])


def test_maps_hold_the_same_features_as_rows() -> None:
    rows = terrain_rows(seed=0, rank=1, microbatch=2, channels=5)
    maps = terrain_maps(seed=0, rank=1, microbatch=2, channels=5)

    assert rows.shape == (108, 5)
    assert maps.shape == (3, 5, 36)
    assert torch.equal(maps[1, :, 7], rows[36 + 7])
    assert rows.requires_grad and maps.requires_grad


def test_batches_of_any_two_neighbouring_ranks_differ_in_size() -> None:
    for subject in SUBJECTS:
        sizes = []
        for rank in range(4):
            made = load(subject.inputs)(seed=0, rank=rank, microbatch=0, **subject.input_arguments)
            first = next(t for t in pytree.tree_leaves(made) if isinstance(t, torch.Tensor))
            sizes.append(first.shape)
        assert all(one != other for one, other in itertools.pairwise(sizes)), subject.name
