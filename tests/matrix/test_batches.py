from __future__ import annotations

import itertools

import torch

from matrix.batches import terrain_batch


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
