"""The Trainer of Transformers on two CPU ranks: checkpointing changes no bit of what it trains."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

transformers = pytest.importorskip("transformers", reason="needs the `hf` extra")
pytest.importorskip("accelerate", reason="the Trainer needs accelerate")

ROOT = Path(__file__).resolve().parents[2]
ARRANGEMENTS = ["ours", "pretrained", "made", "preserved"]
REENTRANT_BY_DEFAULT = int(transformers.__version__.partition(".")[0]) < 5

Runs = dict[str, Any]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Runs]]:
    """What each of two ranks found in the runs of every arrangement."""
    folder = tmp_path_factory.mktemp("trainer")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    task = ["--nproc-per-node", "2", "-m", "tests.integrations.trainer_task", str(folder)]
    done = subprocess.run(
        [*launcher, *task],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [torch.load(folder / f"rank{rank}.pt") for rank in range(2)]


def different(expected: dict[str, Tensor], got: dict[str, Tensor]) -> list[str]:
    keys = expected.keys() | got.keys()
    return [k for k in keys if k not in expected or not torch.equal(expected[k], got[k])]


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
def test_twenty_steps_are_bitwise_those_without_checkpointing(
    arrangement: str, ranks: list[dict[str, Runs]]
) -> None:
    for runs in (rank[arrangement] for rank in ranks):
        assert not different(runs["off"], runs["kwargs"])
        assert runs["off"]["layers.0.norm.num_batches_tracked"] == 20
        assert runs["calls"] == [40, 40]


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
def test_ranks_train_one_model_on_different_data(
    arrangement: str, ranks: list[dict[str, Runs]]
) -> None:
    first, second = (rank[arrangement]["kwargs"] for rank in ranks)

    assert torch.equal(first["layers.0.linear.weight"], second["layers.0.linear.weight"])
    assert not torch.equal(
        first["layers.0.norm.running_mean"], second["layers.0.norm.running_mean"]
    )


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
def test_without_kwargs_it_trains_the_same_or_names_the_cure(
    arrangement: str, ranks: list[dict[str, Runs]]
) -> None:
    for runs in (rank[arrangement] for rank in ranks):
        if REENTRANT_BY_DEFAULT and arrangement != "ours":
            assert 'gradient_checkpointing_kwargs={"use_reentrant": False}' in runs["default"]
        else:
            assert not different(runs["off"], runs["default"])


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
def test_what_was_saved_is_what_was_trained(arrangement: str, ranks: list[dict[str, Runs]]) -> None:
    runs = ranks[0][arrangement]

    assert not different(runs["kwargs"], runs["reloaded"])


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
def test_a_run_that_was_resumed_in_the_middle_ends_at_the_same_parameters(
    arrangement: str, ranks: list[dict[str, Runs]]
) -> None:
    if "cpu:0" in ranks[0][arrangement]["resumed"]:
        pytest.skip(f"Transformers {transformers.__version__} cannot resume on several CPU ranks")
    runs = ranks[0][arrangement]

    assert not different(runs["off"], runs["resumed"])


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
def test_a_reentrant_argument_is_refused_with_the_cure(
    arrangement: str, ranks: list[dict[str, Runs]]
) -> None:
    message = ranks[0][arrangement]["reentrant"]

    assert "use_reentrant=True" in message
    assert 'gradient_checkpointing_kwargs={"use_reentrant": False}' in message
