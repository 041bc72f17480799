from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.findings import Finding
from harness.row import OUTCOMES, Row, exit_status
from harness.store import RESULTS_FILE, RUN_FILE, Store, StoreError, read_rows

ASKED = {"suite": "smoke", "seed": 0, "axes": []}
FINDING = Finding(
    rank=1, point="backward[0]", path="buffers/x", expected=1, got="nan", cause="c", remedy="r"
)


def row(case: str, outcome: str = "equal") -> Row:
    return Row(
        case=case,
        subject="basic",
        axes={"bn_momentum": None, "running_stats": True},
        seed=0,
        arm="checkpointed",
        ranks=2,
        outcome=outcome,  # type: ignore[arg-type]  # parametrized over all outcomes
        findings=(FINDING,) if outcome != "equal" else (),
        noise=None,
        seconds=0.25,
    )


def test_rows_are_on_disk_before_the_store_is_closed(tmp_path: Path) -> None:
    with Store(tmp_path / "out", ASKED) as store:
        store.append(row("a"))
        store.append(row("b", "differs"))

        assert read_rows(tmp_path / "out") == [row("a"), row("b", "differs")]


def test_a_row_has_the_documented_keys(tmp_path: Path) -> None:
    with Store(tmp_path / "out", ASKED) as store:
        store.append(row("a", "differs"))

    data = json.loads((tmp_path / "out" / RESULTS_FILE).read_text())
    assert list(data) == [
        *("schema", "case", "subject", "axes", "seed", "arm", "ranks", "outcome", "findings"),
        *("noise", "seconds"),
    ]
    assert list(data["findings"][0]) == [
        *("rank", "point", "path", "expected", "got", "max_abs", "tolerance"),
        *("tolerance_source", "cause", "remedy", "kind", "module", "phase", "source_rank"),
    ]


def test_a_run_file_says_what_was_asked_and_where_it_ran(tmp_path: Path) -> None:
    with Store(tmp_path / "out", ASKED):
        pass

    run = json.loads((tmp_path / "out" / RUN_FILE).read_text())
    assert run["asked"] == ASKED
    assert run["versions"]["torch"]
    assert set(run) == {"asked", "started", "versions", "machine", "code", "commit"}


def test_a_folder_that_holds_results_is_refused(tmp_path: Path) -> None:
    with Store(tmp_path, ASKED):
        pass
    with pytest.raises(StoreError, match="already holds results; .* --resume"):
        Store(tmp_path, ASKED)


def test_an_empty_folder_is_used(tmp_path: Path) -> None:
    with Store(tmp_path, ASKED) as store:
        store.append(row("a"))


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(StoreError, match="is not a folder"):
        Store(tmp_path / "out", ASKED)


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file" / "x", Path("/proc/nope")):
        with pytest.raises(StoreError, match="cannot be used"):
            Store(folder, ASKED)


def test_a_folder_with_other_things_is_not_taken_for_results(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(StoreError, match="is not empty, it holds 'notes.txt'"):
        Store(tmp_path, ASKED)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("resume", [False, True])
def test_two_runs_cannot_use_one_folder_at_a_time(tmp_path: Path, resume: bool) -> None:
    with Store(tmp_path, ASKED) as store:
        with pytest.raises(StoreError, match="another run is using" if resume else "already"):
            Store(tmp_path, ASKED, resume=resume)
        store.append(row("a"))
    with Store(tmp_path, ASKED, resume=True) as again:
        assert again.rows == [row("a")]


def test_a_run_that_began_in_the_meantime_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store(tmp_path, ASKED):
        monkeypatch.setattr("harness.store._check_empty", lambda folder: None)
        with pytest.raises(StoreError, match="another run is using"):
            Store(tmp_path, ASKED)
    with pytest.raises(StoreError, match="already holds results"):
        Store(tmp_path, ASKED)


@pytest.mark.parametrize(
    "damaged",
    [
        "{",
        "3",
        '{"schema": 1}',
        '{"schema": 1, "findings": []}',
        '{"schema": 2}',
        json.dumps({**row("a").to_dict(), "outcome": "fine"}),
        json.dumps({**row("a").to_dict(), "axes": 3}),
        "\udcff",
    ],
)
def test_a_damaged_line_is_named_on_resume(tmp_path: Path, damaged: str) -> None:
    with Store(tmp_path, ASKED) as store:
        store.append(row("a"))
    with open(tmp_path / RESULTS_FILE, "a", errors="surrogateescape") as file:
        file.write(damaged + "\n" + json.dumps(row("b").to_dict()) + "\n")

    with pytest.raises(StoreError, match=f"line 2 of .*{RESULTS_FILE} cannot be read"):
        Store(tmp_path, ASKED, resume=True)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"asked": 3}'])
def test_a_damaged_run_file_is_named_on_resume(tmp_path: Path, text: str) -> None:
    with Store(tmp_path, ASKED):
        (tmp_path / RUN_FILE).write_text(text)

    with pytest.raises(StoreError, match=f"{RUN_FILE} cannot be read"):
        Store(tmp_path, ASKED, resume=True)


def test_results_without_their_run_file_are_not_continued(tmp_path: Path) -> None:
    with Store(tmp_path, ASKED) as store:
        store.append(row("a"))
    (tmp_path / RUN_FILE).unlink()

    with pytest.raises(StoreError, match="no run.json"):
        Store(tmp_path, ASKED, resume=True)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.integers(1, 400))
def test_a_torn_last_line_is_cut_off_on_resume(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    folder = tmp_path_factory.mktemp("torn")
    with Store(folder, ASKED) as store:
        store.append(row("a"))
        store.append(row("b"))
    file = folder / RESULTS_FILE
    content = file.read_bytes()
    line = len(content) // 2
    file.write_bytes(content[: -min(cut, line - 1)])

    with Store(folder, ASKED, resume=True) as store:
        assert store.rows == [row("a")]
        store.append(row("b"))

    assert read_rows(folder) == [row("a"), row("b")]


def test_resuming_with_other_options_is_refused(tmp_path: Path) -> None:
    with Store(tmp_path, ASKED):
        pass
    with pytest.raises(StoreError, match="was run with seed=0, not 1"):
        Store(tmp_path, {**ASKED, "seed": 1}, resume=True)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"asked": {**ASKED, "seed": 1}}, "with seed=1, not 0"),
        ({"asked": {**ASKED, "suite": "pr"}}, "with suite='pr', not 'smoke'"),
        ({"asked": {**ASKED, "ranks": 3}}, "with ranks=3, not None"),
        ({"code": "0123"}, "with code='0123', not '"),
        ({"versions": {"torch": "1.0"}}, r"with versions\.\w+=.*, not '"),
        ({"determinism": {"threads": 4}}, "with determinism.threads=4, not 1"),
    ],
)
def test_a_run_of_another_configuration_is_not_continued(
    tmp_path: Path, changed: dict[str, object], message: str
) -> None:
    notes = {"determinism": {"threads": 1}}
    with Store(tmp_path, ASKED, notes=notes) as store:
        store.append(row("a"))
    run_file = tmp_path / RUN_FILE
    run_file.write_text(json.dumps({**json.loads(run_file.read_text()), **changed}))

    with pytest.raises(StoreError, match=message):
        Store(tmp_path, ASKED, resume=True, notes=notes)


def test_another_machine_commit_or_time_does_not_matter(tmp_path: Path) -> None:
    with Store(tmp_path, ASKED) as store:
        store.append(row("a"))
    run_file = tmp_path / RUN_FILE
    changed = {"machine": {"cpus": 99}, "commit": "0123", "started": "then"}
    run_file.write_text(json.dumps({**json.loads(run_file.read_text()), **changed}))

    with Store(tmp_path, ASKED, resume=True) as store:
        assert store.rows == [row("a")]


@pytest.mark.parametrize("folder", ["new", "."])
def test_where_no_run_was_begun_there_is_none_to_resume(tmp_path: Path, folder: str) -> None:
    with pytest.raises(StoreError, match="holds no run to resume; leave --resume out"):
        Store(tmp_path / folder, ASKED, resume=True)
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_was_killed_before_it_said_what_was_asked_is_begun_anew(tmp_path: Path) -> None:
    (tmp_path / RESULTS_FILE).write_text("")

    with Store(tmp_path, ASKED, resume=True) as store:
        assert store.rows == []
    assert json.loads((tmp_path / RUN_FILE).read_text())["asked"] == ASKED


def test_a_row_of_another_format_is_refused() -> None:
    with pytest.raises(ValueError, match="row has schema 99"):
        Row.from_dict({**row("a").to_dict(), "schema": 99})


@pytest.mark.parametrize(
    ("outcomes", "status"),
    [
        ([], 0),
        (["equal", "expected_difference"], 0),
        (["equal", "differs"], 1),
        (["never_replayed"], 1),
        (["error"], 1),
        (["hung"], 3),
        (["differs", "crashed", "error"], 3),
    ],
)
def test_exit_statuses(outcomes: list[str], status: int) -> None:
    assert exit_status([row(str(n), outcome) for n, outcome in enumerate(outcomes)]) == status


def test_every_outcome_is_documented_once() -> None:
    assert OUTCOMES == (
        *("equal", "differs", "expected_difference", "never_replayed"),
        *("error", "hung", "crashed"),
    )
