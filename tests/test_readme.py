"""What the README and the pages in docs show is what happens."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def blocks(page: Path, language: str) -> list[str]:
    """Return the fenced blocks of a page in one language."""
    text = page.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def commands(tool: str) -> list[tuple[str, list[str]]]:
    """Return the page and the words of each command line that starts with `tool`."""
    lines = [
        (name_of(page), line)
        for page in PAGES
        for block in blocks(page, "sh")
        for line in block.splitlines()
    ]
    words = [(page, line.partition("  #")[0].split()) for page, line in lines]
    return [(page, found) for page, found in words if found[:1] == [tool]]


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=name_of)
def test_python_blocks_print_what_they_say(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = "\n".join(blocks(page, "python"))
    promised = re.findall(r"print\(.*\)  # -> (.*)$", source, flags=re.MULTILINE)

    exec(compile(source, name_of(page), "exec"), {"__name__": "__main__"})

    assert capsys.readouterr().out.splitlines() == promised


def test_make_goals_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    goals = set(re.findall(r"^([a-z]+):", makefile, flags=re.MULTILINE))

    shown = {words[1] for _, words in commands("make")}

    assert {"lab", "test"} <= shown <= goals


@functools.cache
def help_of(subcommand: str) -> subprocess.CompletedProcess[str]:
    call = [sys.executable, "-m", "harness", subcommand, "--help"]
    return subprocess.run(call, capture_output=True, text=True, check=False, cwd=ROOT)


def test_command_line_options_exist() -> None:
    shown = commands("ckpt-lab")
    assert shown
    for page, words in shown:
        done = help_of(words[1])
        assert done.returncode == 0, f"{page}: ckpt-lab {words[1]}: {done.stderr}"
        for word in words[2:]:
            if word.startswith("--"):
                assert word.partition("=")[0] in done.stdout, f"{page}: {' '.join(words)}"


def test_the_finding_shown_is_what_the_command_prints() -> None:
    (shown,) = blocks(ROOT / "README.md", "text")
    (call,) = [words for page, words in commands("ckpt-lab") if words[1] == "replay"]

    done = subprocess.run(
        [sys.executable, "-m", "harness", *call[1:]],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )

    assert done.returncode == 1, done.stderr
    for line in shown.splitlines():
        assert line in done.stdout.splitlines()


def test_links_inside_the_project_lead_to_files() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{name_of(page)} links to {target}"
