from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness import commands
from harness.merging import merge
from harness.ranks import RankPool, Ranks
from harness.request import RunRequest
from harness.shards import Shard
from harness.store import read_rows

SHARDS = 8


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, lone_rank: RankPool) -> Iterator[Path]:
    """One run, and its eight shards, on one pool of ranks."""
    place = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)

        @contextmanager
        def open_groups(size: int, group_size: int, backend: str) -> Iterator[Sequence[Ranks]]:
            yield [lone_rank]

        patch.setattr(commands, "open_groups", open_groups)
        run(place / "whole", None)
        for number in range(1, SHARDS + 1):
            run(place / f"shard-{number}", Shard(number, SHARDS))
        yield place


def run(folder: Path, shard: Shard | None) -> None:
    request = RunRequest(
        subjects=("readme", "called-twice"),
        axes=("wrapper=none", "steps=1", "compile=off", "autocast=off", "enable=model_call"),
        arm="torch_checkpoint",
        ranks=1,
        shard=shard,
        out=folder,
    )
    assert commands.run_suite(request, request.select()) in (0, 1)


def shards(runs: Path) -> list[Path]:
    return [runs / f"shard-{number}" for number in range(1, SHARDS + 1)]


def test_shards_merged_give_the_verdicts_and_the_report_of_one_run(
    runs: Path, tmp_path: Path
) -> None:
    status = merge(list(reversed(shards(runs))), tmp_path / "merged")

    assert status == 1
    whole, merged = read_rows(runs / "whole"), read_rows(tmp_path / "merged")
    assert [(row.case, row.outcome) for row in merged] == [(r.case, r.outcome) for r in whole]
    assert {row.outcome for row in merged} > {"equal"}
    assert [row.findings for row in merged] == [row.findings for row in whole]
    for name in ("summary.md", "run.json"):
        assert (tmp_path / "merged" / name).exists()
    assert (tmp_path / "merged" / "summary.md").read_text() == (
        runs / "whole" / "summary.md"
    ).read_text()
    asked = json.loads((tmp_path / "merged" / "run.json").read_text())["asked"]
    assert asked == json.loads((runs / "whole" / "run.json").read_text())["asked"]


def test_a_missing_shard_is_named_and_is_no_success(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = merge(shards(runs)[:-1], tmp_path / "merged")

    assert status == 3
    assert "missing: shard 8/8" in capsys.readouterr().out


def test_folders_that_do_not_belong_together_are_refused(runs: Path, tmp_path: Path) -> None:
    first, second, *_ = shards(runs)
    with pytest.raises(ValueError, match="holds a whole run"):
        merge([first, runs / "whole"], tmp_path / "merged")
    with pytest.raises(ValueError, match="are both shard 1/8"):
        merge([first, first], tmp_path / "merged")
    with pytest.raises(ValueError, match="no results folder"):
        merge([tmp_path], tmp_path / "merged")

    other = tmp_path / "other"
    other.mkdir()
    (other / "results.2-of-8.jsonl").write_bytes((second / "results.2-of-8.jsonl").read_bytes())
    content = json.loads((second / "run.json").read_text())
    for change, message in [({"cut": "other"}, "different cuts"), ({}, "was run with seed=0")]:
        asked = content["asked"] if change else {**content["asked"], "seed": 7}
        (other / "run.json").write_text(json.dumps({**content, **change, "asked": asked}))
        with pytest.raises(ValueError, match=message):
            merge([first, other], tmp_path / "merged")
    assert not (tmp_path / "merged").exists()
