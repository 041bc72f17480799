"""What a user gets: public names with docstrings, one version, a wheel that is whole."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
import zipfile
from email import message_from_string
from email.message import Message
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import wcn_ckpt

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("wcn_ckpt", "matrix", "harness")
INFO = f"wcn_ckpt-{wcn_ckpt.__version__}.dist-info"


def modules_with_public_names() -> list[str]:
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    parts = [
        path.relative_to(ROOT).with_suffix("").parts
        for path in sorted(files)
        if re.search(r"^__all__ = ", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    ]
    return [".".join(part for part in names if part != "__init__") for names in parts]


@pytest.mark.parametrize("module", modules_with_public_names())
def test_public_names_exist_and_explain_themselves(module: str) -> None:
    namespace = importlib.import_module(module)

    for name in namespace.__all__:
        value = getattr(namespace, name, None)
        assert value is not None, f"{module}.__all__ lists {name!r}, which is not there"
        ours = getattr(value, "__module__", None) or ""
        if ours.startswith(PACKAGES) and (inspect.isclass(value) or inspect.isroutine(value)):
            assert inspect.getdoc(value), f"{module}.{name} has no docstring"


@pytest.mark.parametrize("module", modules_with_public_names())
def test_public_names_are_listed_once(module: str) -> None:
    listed = importlib.import_module(module).__all__

    assert len(listed) == len(set(listed))


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("wcn_ckpt.nn.modules", "GradientCheckpointingMixin"),
        ("wcn_ckpt.nn.modules", "GradientCheckpointingModelMixin"),
        ("wcn_ckpt.nn.modules", "configure_gradient_checkpointing"),
        ("wcn_ckpt.nn.modules", "preserve_module_buffers"),
        ("wcn_ckpt.geometry", "Points"),
        ("wcn_ckpt.geometry", "Voxels"),
        ("wcn_ckpt.geometry", "points_to_voxels"),
        ("wcn_ckpt.models", "MinkUNetBase"),
    ],
)
def test_the_documented_paths_lead_somewhere(module: str, name: str) -> None:
    namespace = importlib.import_module(module)

    assert name in namespace.__all__
    assert callable(getattr(namespace, name))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, built as a release would be."""
    place = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(place)]
    subprocess.run([*build, str(ROOT)], check=True, cwd=place)
    (built,) = place.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    """What the wheel says about itself."""
    return message_from_string(read(wheel, f"{INFO}/METADATA"))


def read(wheel: Path, name: str) -> str:
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(name).decode()


def test_there_is_one_version(metadata: Message) -> None:
    assert metadata["Version"] == wcn_ckpt.__version__
    assert f"## [{wcn_ckpt.__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_wheel_is_whole(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    sources = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
    }

    assert wheel.name == f"wcn_ckpt-{wcn_ckpt.__version__}-py3-none-any.whl"
    assert {name.partition("/")[0] for name in names} == {*PACKAGES, INFO}
    assert sources <= names
    assert {f"{package}/py.typed" for package in PACKAGES} <= names
    assert f"{INFO}/licenses/LICENSE" in names


def test_the_console_script_points_at_the_command_line(wheel: Path) -> None:
    assert "ckpt-lab = harness.__main__:main" in read(wheel, f"{INFO}/entry_points.txt")


def test_installing_the_library_installs_torch_alone(metadata: Message) -> None:
    assert [r.name for r in requirements(metadata) if r.marker is None] == ["torch"]


def test_the_extras_are_the_promised_ones(metadata: Message) -> None:
    assert set(metadata.get_all("Provides-Extra", [])) == {"lab", "hf", "peers", "dev"}


def requirements(metadata: Message) -> list[Requirement]:
    return [Requirement(text) for text in metadata.get_all("Requires-Dist", [])]


def test_every_requirement_has_a_pin_that_satisfies_it(metadata: Message) -> None:
    lines = (ROOT / "ci" / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [Requirement(line) for line in lines if not line.startswith("#")]
    versions = {canonicalize_name(p.name): str(p.specifier).removeprefix("==") for p in pins}

    for wanted in requirements(metadata):
        name = canonicalize_name(wanted.name)
        assert name in versions, f"ci/constraints.txt does not pin {wanted.name}"
        assert wanted.specifier.contains(versions[name]), f"{wanted} against {versions[name]}"


def test_every_pin_is_exact() -> None:
    lines = (ROOT / "ci" / "constraints.txt").read_text(encoding="utf-8").splitlines()

    for line in lines:
        if not line.startswith("#"):
            (specifier,) = Requirement(line).specifier
            assert specifier.operator == "==" and "*" not in specifier.version, line
