"""Which code a run is made with, so that only the same code continues it."""

from __future__ import annotations

import hashlib
import subprocess
from importlib import util
from pathlib import Path

from harness.importing import split_name

_PACKAGES = ("wcn_ckpt", "matrix", "harness")


def code_revision() -> str:
    """Return a digest of the sources of all packages of the lab.

    A commit alone would not tell an edited checkout from a clean one, and a wheel has none.

    Raises:
        ModuleNotFoundError: If a package is not there.
    """
    digest = hashlib.sha256()
    for name in _PACKAGES:
        folder = _folder(name)
        for path in sorted(folder.rglob("*.py")):
            digest.update(f"{name}/{path.relative_to(folder).as_posix()}\n".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def file_revision(importable: str) -> str | None:
    """Return a digest of the file that an importable name is in.

    Args:
        importable: ``file.py:name`` or ``package.module:name``.

    Returns:
        None where a module is named: it is not looked for.
    """
    source, _ = split_name(importable)
    if not source.endswith(".py"):
        return None
    return hashlib.sha256(Path(source).read_bytes()).hexdigest()[:16]


def commit() -> str | None:
    """Return the commit of the checkout that the lab runs from; None where it is installed."""
    root = _folder("harness").parent
    if not (root / ".git").exists():
        return None
    try:
        done = subprocess.run(
            ["git", "rev-parse", "--short=12", "HEAD"],
            cwd=root,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _folder(package: str) -> Path:
    spec = util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"no package {package!r}")
    return Path(next(iter(spec.submodule_search_locations)))
