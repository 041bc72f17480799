"""``ckpt-lab`` and ``python -m harness``: starts the command line, if what it needs is there."""

from __future__ import annotations

import importlib.util
import sys

_NEEDED = (
    *("covertable", "deepdiff", "jinja2", "matplotlib", "numpy", "plyfile", "pypcd4", "rich"),
    *("typer",),
)
"""What the extra ``lab`` installs."""


def main() -> None:
    """Run the command line; exit with status 2 and one line where the extra is missing."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        print(
            f"ckpt-lab needs the extra 'lab' ({', '.join(missing)} not found); install it with:\n"
            '    pip install "wcn-ckpt[lab]"',
            file=sys.stderr,
        )
        raise SystemExit(2)
    from harness.cli import main as run

    run()


if __name__ == "__main__":
    main()
