from __future__ import annotations

from pathlib import Path

import pytest

from ci.night import PAGE, write_page
from harness.row import Outcome, Row
from harness.store import Store
from matrix.case import Case
from matrix.subjects import SUBJECTS

ASKED = {"suite": "smoke", "arm": "checkpointed", "ranks": 2, "device": "cpu"}


def night(folder: Path, outcomes: list[Outcome]) -> Path:
    with Store(folder, ASKED) as store:
        for number, outcome in enumerate(outcomes):
            case = Case.of(SUBJECTS[number])
            store.append(
                Row(
                    case=case.id,
                    subject=case.subject.name,
                    axes=case.assignment,
                    seed=0,
                    arm="checkpointed",
                    ranks=2,
                    outcome=outcome,
                    seconds=30.0,
                )
            )
    return folder


def test_the_first_night_has_nothing_to_compare_with(tmp_path: Path) -> None:
    path = write_page(night(tmp_path / "tonight", ["equal", "equal"]), None)

    text = path.read_text()
    assert path.name == PAGE
    assert text.startswith("# All as expected\n")
    assert "2 cases: 2 equal" in text and "no night before" in text


def test_what_is_new_tonight_is_said_with_the_command_that_replays_it(tmp_path: Path) -> None:
    before = night(tmp_path / "before", ["equal", "equal", "differs"])

    text = write_page(
        night(tmp_path / "tonight", ["equal", "differs", "equal"]), before
    ).read_text()

    assert text.startswith("# 1 case is not as expected\n")
    assert f"- differs: `ckpt-lab replay {SUBJECTS[1].name}" in text
    assert "1 newly failing, 1 fixed" in text
    assert len(text.splitlines()) < 40  # a page that is read in a minute


@pytest.mark.parametrize("failing", [11, 30])
def test_a_bad_night_still_fits_a_page(tmp_path: Path, failing: int) -> None:
    outcomes: list[Outcome] = ["error"] * min(failing, len(SUBJECTS))

    text = write_page(night(tmp_path / "tonight", outcomes), None).read_text()

    assert f"and {len(outcomes) - 10} more" in text
    assert len(text.splitlines()) < 40
