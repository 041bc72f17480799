"""The report in a real browser: the search works, in both colour schemes and at any width."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.report.page import write_page
from tests.harness.test_page import ROWS

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome on this machine")


@pytest.fixture
def browse(tmp_path: Path) -> Callable[..., str]:
    report = write_page(tmp_path, ROWS, {"suite": "smoke"})

    def dump(fragment: str = "", *options: str) -> str:
        command = [str(BROWSER), "--headless=new", "--no-sandbox", "--disable-gpu", *options]
        command += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=2000"]
        done = subprocess.run(
            [*command, "--dump-dom", f"{report.as_uri()}{fragment}"],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return done.stdout

    return dump


def shown(page: str) -> list[str]:
    body = page[page.index('<tbody id="rows">') :]
    return re.findall(r"<code>([^<]*)</code>", body[: body.index("</tbody>")])


def test_the_search_finds_words_values_and_defaults(browse: Callable[..., str]) -> None:
    assert len(shown(browse())) == len(ROWS)
    assert shown(browse("#differs,basic")) == ["basic,wrapper=ddp,steps=3"]
    assert shown(browse("#wrapper=none,steps=1")) == ["basic", "dropout,enable=rng_not_preserved"]


@pytest.mark.parametrize("width", [360, 1600])
def test_the_page_is_no_wider_than_the_window(
    browse: Callable[..., str], tmp_path: Path, width: int
) -> None:
    report = tmp_path / "report.html"
    probe = "<script>document.title = document.documentElement.scrollWidth</script></body>"
    report.write_text(report.read_text().replace("</body>", probe))
    page = browse("", f"--window-size={width},900")

    (found,) = re.findall(r"<title>(\d+)</title>", page)
    assert int(found) <= max(width, 500)  # Chromium's windows are at least 500 pixels wide
