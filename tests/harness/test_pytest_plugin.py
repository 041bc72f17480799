"""The pytest plugin in somebody else's repository, with ranks and under xdist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

ROOT = Path(__file__).resolve().parents[2]

BLOCKS = """
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Safe(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Layer(), Layer()])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x):
        return self.norm(self.linear(x)).tanh()


class Unsafe(Safe):
    grad_checkpointing = False

    def set_grad_checkpointing(self, enable=True):
        self.grad_checkpointing = enable

    def forward(self, x):
        for layer in self.layers:
            if self.grad_checkpointing:
                x = checkpoint(layer, x, use_reentrant=False)
            else:
                x = layer(x)
        return x


def batch():
    return torch.randn(6, 4, requires_grad=True)


def rows(*, seed, rank, microbatch):
    generator = torch.Generator().manual_seed(100 * seed + 10 * rank + microbatch)
    return torch.randn(6, 4, generator=generator, requires_grad=True)


SEEN = [0]


class WritesAGlobal(Safe):
    def forward(self, x):
        SEEN[0] += 1
        return super().forward(x)


def safe_block():
    from wcn_ckpt import make_checkpointable

    block = Safe()
    make_checkpointable(block, Layer)
    return block
"""

TESTS = """
import os

import pytest
from blocks import Safe, Unsafe, WritesAGlobal, batch
from matrix.axes import AXES
from matrix.values import value_text

DEFAULTS = [f"{a.name}={value_text(a.default)}" for a in AXES if a.name != "device"]
NARROW = ["wrapper=none,ddp", "backward=plain", "accumulation=one", "autocast=off", "steps=1",
          "bn_momentum=1.0", "running_stats=on", "broadcast_buffers=on", "init_sync=on"]


@pytest.mark.ckpt_lab(Safe, batch, axes=NARROW)
def test_case_by_case(ckpt_lab, ckpt_lab_case):
    row = ckpt_lab.check(ckpt_lab_case)
    print("ranks of", os.getpid(), row.outcome)


def test_all_at_once(ckpt_lab):
    ckpt_lab.assert_equivalent("blocks:Safe", "blocks:batch", boundaries=["layers.*"], axes=NARROW)


def test_unsafe(ckpt_lab):
    ckpt_lab.assert_equivalent(Unsafe, batch, axes=NARROW)


def test_unsafe_after_one_line(ckpt_lab):
    ckpt_lab.assert_equivalent(Unsafe, batch, axes=NARROW, preserve=True)


def test_global(ckpt_lab):
    ckpt_lab.assert_equivalent(WritesAGlobal, batch, boundaries=["."], axes=NARROW)


def test_closure(ckpt_lab):
    ckpt_lab.assert_equivalent(lambda: Safe(), batch)


@pytest.mark.ckpt_lab(subject="their-block", axes=DEFAULTS)
def test_registered(ckpt_lab, ckpt_lab_case):
    ckpt_lab.check(ckpt_lab_case)
"""

SUBJECTS = """
from matrix.subject import NO_BATCH_NORM, Subject

SUBJECTS = [
    Subject(name="their-block", factory="blocks:safe_block", inputs="blocks:rows", doc="theirs")
]
"""


@pytest.fixture
def repository(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A repository whose package registers a subject."""
    pytester.makepyfile(blocks=BLOCKS, test_blocks=TESTS, their_lab=SUBJECTS)
    info = pytester.mkdir("their_package-1.0.dist-info")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[ckpt_lab.subjects]\ntheirs = their_lab:SUBJECTS\n")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{pytester.path}")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return pytester


def test_a_repository_asserts_equivalence_under_xdist(repository: pytest.Pytester) -> None:
    result = repository.runpytest_subprocess(
        "-p", "harness.pytest_plugin", "-n", "1", "-v", "-rA", "-p", "no:cacheprovider"
    )
    output = result.stdout.str()
    lines = re.findall(r"^(PASSED|FAILED|ERROR) \S+?::(\S+)", output, re.MULTILINE)
    ended = {name: outcome for outcome, name in lines}

    items = [name for name in ended if name.startswith("test_case_by_case[Safe")]
    assert len(items) == 2 and any("wrapper=ddp" in name for name in items)
    assert all(ended[name] == "PASSED" for name in items)
    assert ended["test_all_at_once"] == ended["test_unsafe_after_one_line"] == "PASSED"
    assert ended["test_registered[their-block]"] == "PASSED"

    assert ended["test_unsafe"] == "FAILED"
    result.stdout.fnmatch_lines(
        [
            "2 of 2 cases are not as without checkpointing",
            "differs: Unsafe*",
            "*num_batches_tracked*expected 1*got 2*",
            "*cause:*updated twice*",
            "replay: ckpt-lab verify blocks:Unsafe --inputs blocks:batch*",
        ]
    )
    assert ended["test_global"] == "FAILED"
    assert "a replay wrote 'blocks.SEEN[0]' (" in output
    assert ended["test_closure"] == "FAILED"
    assert "factory must be importable, so that ranks can build it" in output
    assert "no lambda, no function inside a test" in output


def test_a_marker_that_cannot_be_used_is_one_clear_line(repository: pytest.Pytester) -> None:
    repository.makepyfile(
        test_blocks="""
        import pytest
        from blocks import Safe, batch

        def test_without_marker(ckpt_lab_case): ...
        """,
        test_wrong="""
        import pytest
        from blocks import Safe, batch

        @pytest.mark.ckpt_lab(lambda: Safe(), batch)
        def test_closure(ckpt_lab_case): ...
        """,
        test_suite="""
        import pytest
        from blocks import Safe, batch

        @pytest.mark.ckpt_lab(Safe, batch, suite="everything")
        def test_suite(ckpt_lab_case): ...
        """,
    )
    repository.makepyfile(
        test_nightly="""
        import pytest
        from blocks import Safe, batch

        @pytest.mark.ckpt_lab(Safe, batch, suite="nightly")
        def test_nightly(ckpt_lab_case): ...
        """,
    )
    result = repository.runpytest_subprocess("-p", "harness.pytest_plugin", "--collect-only", "-q")
    output = result.stdout.str()

    assert "test_without_marker takes ckpt_lab_case but has no marker" in output
    assert "factory must be importable" in output
    assert "no suite 'everything'; valid suites: smoke" in output
    assert "suite 'nightly' is about the lab's own subjects; suites for a module: smoke" in output


def test_the_plugin_imports_nothing_before_a_test_uses_it() -> None:
    code = (
        "import sys; import harness.pytest_plugin; "
        "print([m for m in ('torch', 'typer', 'deepdiff', 'covertable') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == "[]"
