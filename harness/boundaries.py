"""Which classes of a package are checkpoint boundaries, and which cases prove each of them."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pkgutil
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from harness.importing import load
from matrix.case import Case
from matrix.containers import CONTAINERS
from matrix.subjects import SUBJECTS, Subject

OWN_PACKAGE = "wcn_ckpt"
"""The package whose boundaries the matrix tries."""

REFERENCE = "warpconvnet"
"""The package that the families follow."""

MARKS = ("_gradient_checkpointed_call", "gradient_checkpointing")
"""Attributes of a class, of which a boundary has at least one."""


@dataclass(frozen=True)
class Found:
    """The boundaries of a package."""

    classes: tuple[type[nn.Module], ...]
    """In the order of their modules and names."""
    unread: Mapping[str, str]
    """Modules that could not be imported -> why."""


def is_boundary(thing: Any) -> bool:
    """Tell whether a module, or a class of modules, carries the attributes of a boundary."""
    return any(hasattr(thing, mark) for mark in MARKS)


def find_boundaries(package: str) -> Found:
    """Look through an installed package, importing all of its modules.

    Args:
        package: Name of the package, such as ``warpconvnet``.

    Returns:
        Classes of ``torch.nn.Module`` that are defined in it and carry the attributes.

    Raises:
        ModuleNotFoundError: The package is not installed.
    """
    root = importlib.import_module(package)
    unread: dict[str, str] = {}
    path = getattr(root, "__path__", ())
    walk = pkgutil.walk_packages(path, f"{package}.", lambda name: unread.update({name: "error"}))
    names = [package, *(info.name for info in walk)]
    classes: dict[tuple[str, str], type[nn.Module]] = {}
    for name in names:
        try:
            module = importlib.import_module(name)
        except Exception as error:  # a foreign module may raise anything when it is imported
            unread[name] = f"{type(error).__name__}: {error}"
            continue
        for _, value in inspect.getmembers(module, inspect.isclass):
            if value.__module__ == name and issubclass(value, nn.Module) and is_boundary(value):
                classes[name, value.__qualname__] = value
    return Found(tuple(classes[key] for key in sorted(classes)), unread)


def boundaries_in(factory: str, arguments: Mapping[str, Any]) -> Counter[type[nn.Module]]:
    """Build a module and count the boundaries in it by class.

    Args:
        factory: Importable name of its factory.
        arguments: Its keyword arguments.
    """
    module: nn.Module = load(factory)(**arguments)
    return Counter(type(child) for child in module.modules() if is_boundary(child))


@dataclass(frozen=True)
class Proof:
    """What the matrix has to say about a boundary."""

    subjects: tuple[str, ...]
    """Subjects in which it is."""
    cells: tuple[str, ...]
    """Ids of their cases."""
    keeps: str
    """State that its replays keep."""


def proofs(
    cases: Iterable[Case], subjects: Iterable[Subject] = SUBJECTS
) -> dict[type[nn.Module], Proof]:
    """Return, for each class of boundary in the subjects, which cases run it.

    Args:
        cases: The cases of a suite.
        subjects: What is built and looked through.
    """
    ids = _by_subject(cases)
    found: dict[type[nn.Module], list[Subject]] = {}
    keeps: dict[type[nn.Module], set[str]] = {}
    for subject in subjects:
        module: nn.Module = load(subject.factory)(**subject.arguments)
        for boundary in filter(is_boundary, module.modules()):
            kind = type(boundary)
            if subject not in found.setdefault(kind, []):
                found[kind].append(subject)
            keeps.setdefault(kind, set()).update(
                type(child).__name__ for child in boundary.modules() if child._buffers
            )
    return {
        kind: Proof(
            tuple(subject.name for subject in having),
            tuple(cell for subject in having for cell in ids.get(subject.name, ())),
            ", ".join(f"buffers of {name}" for name in sorted(keeps[kind])) or "none",
        )
        for kind, having in found.items()
    }


def packages_to_read(named: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the packages to look through: ours, WarpConvNet where it is installed, the named.

    Args:
        named: Further packages.
    """
    present = (REFERENCE,) if importlib.util.find_spec(REFERENCE) else ()
    return tuple(dict.fromkeys((OWN_PACKAGE, *present, *named)))


def boundaries_page(
    cases: Iterable[Case], suite: str, packages: Iterable[str] = (OWN_PACKAGE,)
) -> str:
    """Return a Markdown page of every boundary.

    Args:
        cases: The cases of the suite that is to prove them.
        suite: Its name.
        packages: The packages to look through.

    Raises:
        ModuleNotFoundError: A package is not installed.
    """
    cells = tuple(cases)
    known = proofs(cells)
    lines = [
        "# Boundaries",
        "",
        f"Made by `ckpt-lab list --boundaries`, from the installed code and the suite `{suite}`.",
    ]
    for package in packages:
        lines += ["", f"## {package}", "", *_package_lines(find_boundaries(package), known)]
    return "\n".join([*lines, "", *_container_lines(), "", *_cell_lines(cells)]) + "\n"


def _package_lines(found: Found, known: Mapping[type[nn.Module], Proof]) -> list[str]:
    lines = ["| boundary | module | state of its replays | proved by |", "|---|---|---|---|"]
    for kind in found.classes:
        proof = known.get(kind)
        heirs = [f"`{heir.__name__}`" for heir in found.classes if kind in heir.__bases__]
        if proof is not None:
            proved = f"{len(proof.cells)} cells of {', '.join(map(_code, proof.subjects))}"
        else:
            proved = f"through {', '.join(heirs)}" if heirs else "nothing: no subject has it"
        keeps = "as those" if proof is None and heirs else proof.keeps if proof else "unknown"
        lines.append(f"| `{kind.__name__}` | `{kind.__module__}` | {keeps} | {proved} |")
    if not found.classes:
        lines = ["No class has the attributes of a boundary."]
    lines += [f"- not read: `{name}` ({why})" for name, why in found.unread.items()]
    return lines


def _container_lines() -> list[str]:
    lines = ["## Models", "", "| model | boundaries | rule |", "|---|---|---|"]
    for container in CONTAINERS:
        counts = [f"{number} `{name}`" for name, number in container.boundaries.items()]
        lines.append(f"| `{container.name}` | {', '.join(counts) or 'none'} | {container.rule} |")
    return lines


def _cell_lines(cells: Iterable[Case]) -> list[str]:
    lines = ["## Cells", "", "`ckpt-lab replay CELL` runs one again."]
    for name, of_subject in _by_subject(cells).items():
        lines += ["", f"### {name}", "", *(f"- `{cell}`" for cell in of_subject)]
    return lines


def _by_subject(cells: Iterable[Case]) -> dict[str, list[str]]:
    ids: dict[str, list[str]] = {}
    for case in cells:
        ids.setdefault(case.subject.name, []).append(case.id)
    return ids


def _code(name: str) -> str:
    return f"`{name}`"
