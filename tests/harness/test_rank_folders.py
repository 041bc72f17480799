from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from harness.ranks.folders import RankFolder


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def age(path: Path) -> None:
    os.utime(path, (0, 0))


def test_what_a_killed_owner_left_is_removed_by_the_next(tmp_path: Path) -> None:
    left = tmp_path / "ckpt-lab-ranks-left"
    (left / "1").mkdir(parents=True)
    (left / "1" / "log-0").write_text("killed")
    age(left)

    RankFolder().remove()

    assert list(tmp_path.iterdir()) == []


def test_folders_in_use_newborn_or_of_others_stay(tmp_path: Path) -> None:
    used = RankFolder()
    age(used.path)
    newborn, other = tmp_path / "ckpt-lab-ranks-new", tmp_path / "else"
    newborn.mkdir()
    other.mkdir()
    age(other)

    RankFolder().remove()

    assert set(tmp_path.iterdir()) == {used.path, newborn, other}
    used.remove()
    used.remove()
    assert not used.path.exists()
