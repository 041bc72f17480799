"""Build the wheel, install it somewhere else and use it from there.

Run as `.venv/bin/python ci/check_wheel.py`. It finds what an editable install hides: a package or a
data file that the wheel lacks, and a console script that points nowhere.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

PROBE = """
import importlib.metadata, pathlib, sys
import harness, matrix, wcn_ckpt
site = pathlib.Path(sys.argv[1]).resolve()
for package in (harness, matrix, wcn_ckpt):
    where = pathlib.Path(package.__file__).resolve()
    if site not in where.parents:
        sys.exit(f"{package.__name__} came from {where}, not from the wheel in {site}")
if not (site / "wcn_ckpt" / "py.typed").is_file():
    sys.exit("the wheel has no wcn_ckpt/py.typed")
version = importlib.metadata.version("wcn-ckpt")
if version != wcn_ckpt.__version__:
    sys.exit(f"the wheel says {version}, wcn_ckpt says {wcn_ckpt.__version__}")
"""


def run(*command: str, cwd: Path, **env: str) -> None:
    """Run `command` in `cwd` with `env` added; stop the check where it fails."""
    subprocess.run(
        command, cwd=cwd, env={**os.environ, **env}, stdin=subprocess.DEVNULL, check=True
    )


def main() -> int:
    """Build, install, import and call; return the exit status."""
    with tempfile.TemporaryDirectory(prefix="wcn-ckpt-wheel-") as name:
        place = Path(name)
        python, site = sys.executable, place / "site"
        build = (python, "-m", "build", "--wheel", "--no-isolation", "--outdir", name)
        run(*build, str(ROOT), cwd=place)
        (wheel,) = place.glob("*.whl")
        pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        run(*pip, "--no-deps", "--target", str(site), str(wheel), cwd=place)
        run(python, "-c", PROBE, str(site), cwd=place, PYTHONPATH=str(site))
        run(str(site / "bin" / "ckpt-lab"), "--help", cwd=place, PYTHONPATH=str(site))
    print(f"{wheel.name} works outside the checkout")
    return 0


if __name__ == "__main__":
    sys.exit(main())
