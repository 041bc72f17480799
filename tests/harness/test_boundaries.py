"""Boundaries are found by attribute, in our package and in any other."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from harness.boundaries import (
    boundaries_in,
    boundaries_page,
    find_boundaries,
    is_boundary,
    packages_to_read,
    proofs,
)
from harness.cli import app
from matrix.containers import CONTAINERS, Container
from matrix.suites import select, suite_named
from wcn_ckpt import models

ROOT = Path(__file__).resolve().parents[2]
FOREIGN = """
import torch
from torch import nn

class Mixin:
    def _gradient_checkpointed_call(self, fn, *args):
        return fn(*args)

class Block(Mixin, nn.Module): ...
class Layer(nn.Module):
    gradient_checkpointing = False
class Plain(nn.Module): ...
"""


@pytest.fixture
def foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = "foreign_blocks"
    (tmp_path / name / "inner").mkdir(parents=True)
    (tmp_path / name / "__init__.py").write_text("")
    (tmp_path / name / "inner" / "__init__.py").write_text(FOREIGN)
    (tmp_path / name / "broken.py").write_text("import surely_not_installed")
    monkeypatch.syspath_prepend(tmp_path)
    return name


@pytest.mark.parametrize("container", CONTAINERS, ids=lambda c: f"{c.name}-{list(c.boundaries)}")
def test_a_model_has_the_boundaries_of_the_guide(container: Container) -> None:
    whole = container.factory.startswith("wcn_ckpt.models")  # too large to be given values
    with torch.device("meta" if whole else "cpu"):
        found = boundaries_in(container.factory, container.arguments)

    assert {kind.__name__: number for kind, number in found.items()} == container.boundaries


def test_every_model_is_in_the_table_of_models() -> None:
    named = {container.name for container in CONTAINERS}

    assert set(models.__all__) - {"MinkUNetBase"} == named


def test_every_boundary_of_the_library_is_run_by_some_case() -> None:
    found = find_boundaries("wcn_ckpt")
    known = proofs(select(suite_named("smoke")).cases)

    assert found.unread == {}
    unproved = [kind.__name__ for kind in found.classes if kind not in known]
    assert unproved == ["ModulatedBlock", "ModulatedCrossBlock", "SpaCeFormerBlockBase"]
    assert all(known[kind].cells for kind in found.classes if kind in known)


def test_boundaries_of_another_package_are_found_by_attribute(foreign: str) -> None:
    found = find_boundaries(foreign)

    assert [kind.__name__ for kind in found.classes] == ["Block", "Layer"]
    assert list(found.unread) == [f"{foreign}.broken"]
    assert "surely_not_installed" in found.unread[f"{foreign}.broken"]
    assert not is_boundary(nn.Linear(1, 1))


def test_the_command_prints_the_boundaries_of_a_named_package(foreign: str) -> None:
    result = CliRunner().invoke(
        app, ["list", "--boundaries", "--subject", "dropout", "--package", foreign]
    )

    assert result.exit_code == 0, result.output
    assert f"## {foreign}" in result.output
    assert f"| `Layer` | `{foreign}.inner` | unknown | nothing: no subject has it |" in (
        result.output
    )
    assert f"not read: `{foreign}.broken` (ModuleNotFoundError" in result.output


def test_a_package_that_is_not_installed_is_a_usage_error() -> None:
    result = CliRunner().invoke(app, ["list", "--boundaries", "--package", "no_such_blocks"])

    assert result.exit_code == 2
    assert "no_such_blocks" in result.output


def test_named_packages_come_after_ours() -> None:
    assert packages_to_read(["torch", "wcn_ckpt"])[0] == "wcn_ckpt"
    assert packages_to_read(["torch"])[-1] == "torch"


def test_the_page_in_the_docs_is_what_the_command_prints() -> None:
    page = ROOT / "docs" / "boundaries.md"

    made = boundaries_page(select(suite_named("smoke")).cases, "smoke")

    assert page.read_text(encoding="utf-8") == made, (
        "make it again: ckpt-lab list --boundaries > docs/boundaries.md"
    )
