"""Writes docs/verdicts.md: verdicts on models of Transformers, each confirmed without the lab."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

from harness.verification.gallery import MODELS, page, verdict_on

PAGE = Path(__file__).resolve().parent.parent / "docs" / "verdicts.md"


def main(names: list[str]) -> int:
    """Write the page.

    Args:
        names: Classes of Transformers; all of the page by default, which is then written.

    Returns:
        1 if a verdict is not confirmed, else 0.
    """
    verdicts = []
    for name in names or MODELS:
        verdicts.append(verdict_on(name))
        print(f"{name}: {verdicts[-1].report.text.splitlines()[0]}", flush=True)
    versions = ", ".join(
        f"{package} {metadata.version(package)}" for package in ("torch", "transformers")
    )
    text = page(verdicts, versions)
    if names:
        print(text)
    else:
        PAGE.write_text(text, encoding="utf-8")
    return 0 if all(verdict.confirmed for verdict in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
