from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.importing import check_source, load


def test_a_name_in_a_module_is_loaded() -> None:
    assert load("json:dumps") is json.dumps
    assert load("json:JSONDecoder.decode") is json.JSONDecoder.decode


def test_a_name_in_a_file_is_loaded_once(tmp_path: Path) -> None:
    file = tmp_path / "thing.py"
    file.write_text("class Thing: pass\nOTHER = Thing\n")

    assert load(f"{file}:Thing") is load(f"{file}:OTHER")


def test_a_file_that_fails_to_load_can_be_loaded_later(tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text("raise RuntimeError('not yet')\n")
    with pytest.raises(RuntimeError, match="not yet"):
        load(f"{file}:value")
    file.write_text("value = 3\n\n")

    assert load(f"{file}:value") == 3


@pytest.mark.parametrize("name", ["json", "json:", ":dumps", ""])
def test_a_name_of_another_form_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is no importable name"):
        load(name)
    with pytest.raises(ValueError, match="is no importable name"):
        check_source(name)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'json' has no attribute 'nothing'"):
        load("json:nothing")
    with pytest.raises(FileNotFoundError, match="no file 'nowhere.py'"):
        load("nowhere.py:thing")
    with pytest.raises(ValueError, match="no file 'nowhere.py'"):
        check_source("nowhere.py:thing")
    with pytest.raises(ValueError, match="no module 'no.such.module'"):
        check_source("no.such.module:thing")


def test_a_source_that_is_there_passes() -> None:
    check_source("json:not_looked_at")
    check_source(f"{__file__}:not_looked_at")
