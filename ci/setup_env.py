"""Make `.venv` ready for the Makefile; cost nothing when it already is.

Run as `python3 ci/setup_env.py`, with the standard library alone. The environment is current when
its stamp equals the Python, the place and the content of the files that it was made from. The stamp
says "unfinished" while steps run, so an interrupted setup is seen as one and made anew, and
"failed" where pip gave up in good order, so that the next try goes on from there.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = Path("ci", "constraints.txt")
INPUTS = (Path("pyproject.toml"), CONSTRAINTS)
EXTRAS = "lab,hf,dev"
STAMP = "wcn-ckpt-setup.json"
UNFINISHED = {"state": "unfinished"}
IMPORTS = (
    "import numpy, pytest, torch, typer; numpy.ndarray, pytest.main, torch.Tensor, typer.Typer"
)

NO_VENV = """\
{python} cannot make a virtual environment: its `ensurepip` module is missing.
Install it (Debian and Ubuntu: `apt install python3-venv`), or name another Python:
    make PYTHON=/path/to/python3"""

CUDA_BUILD = """\
No CPU-only build of torch {version} is in the places that pip looks at, so pip takes its default.
On Linux that is the CUDA build: several GB. To avoid it, stop this (Ctrl-C), set TORCH_CPU_INDEX to
PyTorch's index of CPU wheels (README, "CPU-only torch") and run make again."""


class SetupError(RuntimeError):
    """The environment could not be made; the message says what to do."""


class BrokenEnvironmentError(SetupError):
    """pip was content, yet what it installed cannot be imported."""


def expected_stamp(root: Path) -> dict[str, str]:
    """Describe the environment that the files under `root` and this Python ask for."""
    digest = hashlib.sha256()
    for path in (*INPUTS, Path("ci", "setup_env.py")):
        digest.update((root / path).read_bytes())
    return {
        "state": "finished",
        "root": str(root),
        "python": platform.python_version(),
        "base": sys.base_prefix,
        "inputs": digest.hexdigest(),
    }


def read_stamp(env: Path) -> dict[str, str] | None:
    """Return the stamp in `env`, or None where there is none that can be read."""
    try:
        stamp = json.loads((env / STAMP).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return stamp if isinstance(stamp, dict) else None


def write_stamp(env: Path, stamp: dict[str, str]) -> None:
    """Replace the stamp in `env` in one step."""
    partial = env / f"{STAMP}.partial"
    partial.write_text(json.dumps(stamp, indent=2) + "\n", encoding="utf-8")
    partial.replace(env / STAMP)


def interpreter(env: Path) -> Path:
    """Return the path of the Python inside `env`."""
    return env / "bin" / "python"


def is_current(env: Path, expected: dict[str, str]) -> bool:
    """Tell whether `env` was finished for exactly `expected` and still has its Python."""
    return read_stamp(env) == expected and os.access(interpreter(env), os.X_OK)


def can_be_updated(env: Path, expected: dict[str, str]) -> bool:
    """Tell whether installing into `env` is enough, or it must be made anew.

    An environment that a person made (no stamp) is kept as long as its pip works and its Python is
    the expected one.
    """
    stamp = read_stamp(env)
    if stamp is not None:
        same_place = all(stamp.get(key) == expected[key] for key in ("root", "python", "base"))
        if not same_place or stamp.get("state") not in ("finished", "failed"):
            return False
    probe = "import pip._internal, platform; print(platform.python_version())"
    try:
        done = subprocess.run(
            [str(interpreter(env)), "-c", probe], capture_output=True, text=True, check=False
        )
    except OSError:
        return False
    return done.returncode == 0 and done.stdout.strip() == expected["python"]


def has_nvidia_gpu() -> bool:
    """Tell whether the NVIDIA driver lists a GPU."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return False
    done = subprocess.run([tool, "-L"], capture_output=True, text=True, check=False)
    return done.returncode == 0 and "GPU " in done.stdout


def pinned(root: Path, name: str) -> str:
    """Return the version that the constraints pin `name` to.

    Raises:
        SetupError: The constraints do not pin `name`.
    """
    for line in (root / CONSTRAINTS).read_text(encoding="utf-8").splitlines():
        requirement = line.split(";")[0].split("#")[0].strip()
        if requirement.startswith(f"{name}=="):
            return requirement.removeprefix(f"{name}==")
    raise SetupError(f"{CONSTRAINTS} has no line '{name}==VERSION'; add it.")


def say(text: str) -> None:
    """Print one message of the setup, at once."""
    print(f"[setup] {text}", file=sys.stderr, flush=True)


def pip_install(env: Path, *arguments: str, root: Path, hide_failure: bool = False) -> bool:
    """Run `pip install` in `env` under the project's constraints; return whether it went well.

    Args:
        env: The virtual environment.
        *arguments: What follows `pip install`.
        root: The checkout, where the constraints are.
        hide_failure: Keep pip's output to ourselves, since failing is one of the good answers.
    """
    command: Sequence[str] = (
        str(interpreter(env)),
        *("-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
        *("--constraint", str(CONSTRAINTS)),
        *arguments,
    )
    done = subprocess.run(
        command, cwd=root, stdin=subprocess.DEVNULL, capture_output=hide_failure, check=False
    )
    return done.returncode == 0


def install_torch(env: Path, root: Path) -> None:
    """Install the pinned torch, as a CPU build where there is no GPU to use.

    Raises:
        SetupError: pip could install neither build.
    """
    version = pinned(root, "torch")
    if platform.system() == "Linux" and not has_nvidia_gpu():
        say(f"installing torch {version}, the CPU build")
        index = os.environ.get("TORCH_CPU_INDEX")
        where = ("--extra-index-url", index) if index else ()
        if pip_install(env, f"torch=={version}+cpu", *where, root=root, hide_failure=True):
            return
        for line in CUDA_BUILD.format(version=version).splitlines():
            say(line)
    else:
        say(f"installing torch {version}")
    if not pip_install(env, f"torch=={version}", root=root):
        raise SetupError(f"pip could not install torch=={version}; its message is above.")


def install_project(env: Path, root: Path) -> None:
    """Install this checkout, editable, with everything that lab, tests and linters need.

    The build backend goes in first and the build runs without isolation: what builds the project is
    then pinned like the rest.

    Raises:
        SetupError: pip could not install it.
    """
    say(f"installing the project with its extras {EXTRAS}")
    backend = ("hatchling", "editables")
    project = ("--no-build-isolation", "--editable", f".[{EXTRAS}]")
    if not (pip_install(env, *backend, root=root) and pip_install(env, *project, root=root)):
        raise SetupError("pip could not install the project; its message is above.")


def install(env: Path, root: Path, expected: dict[str, str]) -> None:
    """Install everything into `env` and stamp it.

    Raises:
        SetupError: A step failed.
        BrokenEnvironmentError: Every step went well, yet an import fails.
    """
    write_stamp(env, UNFINISHED)
    try:
        install_torch(env, root)
        install_project(env, root)
    except SetupError:
        write_stamp(env, {**expected, "state": "failed"})
        raise
    probe = subprocess.run([str(interpreter(env)), "-c", IMPORTS], cwd=env, check=False)
    if probe.returncode != 0:
        raise BrokenEnvironmentError(f"{env} is broken: the import error is above.")
    write_stamp(env, expected)


def create(env: Path) -> None:
    """Make an empty environment with pip at `env`, in place of whatever was there.

    Raises:
        SetupError: This Python cannot make one.
    """
    try:
        import ensurepip  # noqa: F401  (asked for here, since Debian's python3 may lack it)
    except ImportError:
        raise SetupError(NO_VENV.format(python=sys.executable)) from None
    if env.is_symlink() or env.is_file():
        env.unlink()
    elif env.exists():
        say(f"{env} is unfinished or belongs to another Python or place: making it anew")
        shutil.rmtree(env)
    else:
        say(f"making {env} with Python {platform.python_version()}")
    env.mkdir(parents=True)
    write_stamp(env, UNFINISHED)
    try:
        venv.EnvBuilder(with_pip=True, symlinks=True).create(env)
    except subprocess.CalledProcessError as error:
        output = error.output.decode(errors="replace") if error.output else ""
        raise SetupError(f"{sys.executable} could not make {env}: {error}\n{output}") from error


def ensure(root: Path) -> None:
    """Bring `root/.venv` up to date, doing nothing when it is current.

    Raises:
        SetupError: It could not be done.
    """
    env = root / ".venv"
    expected = expected_stamp(root)
    if is_current(env, expected):
        return
    with (root / ".venv.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if is_current(env, expected):
            return
        start = time.monotonic()
        if can_be_updated(env, expected):
            say(f"updating {env}")
        else:
            create(env)
        try:
            install(env, root, expected)
        except BrokenEnvironmentError as error:
            say(f"{error} Trying once more from an empty one.")
            create(env)
            install(env, root, expected)
        say(f"{env} is ready ({time.monotonic() - start:.0f} s)")


def main() -> int:
    """Run the setup and return the exit status: 0 ready, 2 impossible, 130 interrupted."""
    try:
        ensure(ROOT)
    except SetupError as error:
        say(str(error))
        return 2
    except KeyboardInterrupt:
        say("interrupted; the next make starts it anew")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
