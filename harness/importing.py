"""Importable names: how factories, arms and tasks are sent to ranks."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any


def split_name(name: str) -> tuple[str, str]:
    """Split an importable name into the module or file and the attribute.

    Raises:
        ValueError: If the name is not of the form ``module:attribute`` or ``file.py:attribute``.
    """
    source, _, attribute = name.rpartition(":")
    if not source or not attribute:
        raise ValueError(
            f"{name!r} is no importable name; write 'package.module:name' or 'file.py:name'"
        )
    return source, attribute


@functools.cache
def load(name: str) -> Any:
    """Return the object with an importable name.

    Args:
        name: ``"package.module:attribute"`` or ``"path/to/file.py:attribute"``; the attribute may
            be dotted. A path is relative to the working directory.

    Returns:
        The object. A file is executed once per process.

    Raises:
        ValueError: If the name is not of that form, or the module has no such attribute.
        FileNotFoundError: If the file does not exist.
        ModuleNotFoundError: If the module does not exist.
    """
    source, attribute = split_name(name)
    module = _file_module(source) if source.endswith(".py") else importlib.import_module(source)
    try:
        return functools.reduce(getattr, attribute.split("."), module)
    except AttributeError:
        raise ValueError(
            f"{source!r} has no attribute {attribute!r} (asked for {name!r})"
        ) from None


def check_source(name: str) -> None:
    """Check that the module or file of an importable name is there, without running it.

    Args:
        name: As for :func:`load`.

    Raises:
        ValueError: If the name has no such form, or its module or file does not exist.
    """
    source, _ = split_name(name)
    if source.endswith(".py"):
        if not Path(source).is_file():
            raise ValueError(f"no file {source!r} (asked for {name!r})")
        return
    try:
        spec = importlib.util.find_spec(source)
    except ModuleNotFoundError:
        spec = None
    if spec is None:
        raise ValueError(f"no module {source!r} (asked for {name!r})")


def problem_with(name: str, context: object) -> str | None:
    """Say why a name cannot be called; a task for :meth:`harness.ranks.RankPool.run`.

    Args:
        name: As for :func:`load`.
        context: Of no use here.

    Returns:
        What is wrong; None if the name can be loaded and called.
    """
    try:
        value = load(name)
    except (Exception, SystemExit) as error:
        return f"{type(error).__name__}: {error}"
    return None if callable(value) else f"{name!r} cannot be called, it is {value!r:.200}"


@functools.cache
def _file_module(source: str) -> ModuleType:
    path = Path(source).resolve()
    if not path.is_file():
        raise FileNotFoundError(f"no file {source!r} (looked for {path})")
    name = f"_file_{path.stem}_{abs(hash(str(path)))}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{source!r} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
