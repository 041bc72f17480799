"""``ckpt-lab`` and ``python -m harness``: starts the command line, if what it needs is there."""

from __future__ import annotations

import sys

from harness.needed import what_is_missing


def main() -> None:
    """Run the command line; exit with status 2 and one line where the extra is missing."""
    missing = what_is_missing()
    if missing is not None:
        print(missing, file=sys.stderr)
        raise SystemExit(2)
    from harness.cli import main as run

    run()


if __name__ == "__main__":
    main()
