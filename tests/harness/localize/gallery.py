"""The page of findings, from real output: ``python -m tests.harness.localize.gallery > PAGE``."""

from __future__ import annotations

import ast
import inspect
import re
from typing import NamedTuple

from harness import findings
from harness.findings import CauseKind
from harness.remedies import REMEDIES
from harness.report.terminal import finding_text
from tests.harness.localize.cases import findings_of


class Example(NamedTuple):
    title: str
    text: str
    block: str
    arm: str
    path: str
    axes: str = ""
    model: str = "Model"


EXAMPLES = (
    Example(
        "Statistics that a replay updates again",
        "A BatchNorm between two linear layers, under torch's bare checkpoint.",
        "WithNorm",
        "bare",
        "buffers/block.1.num_batches_tracked",
    ),
    Example(
        "State that the block reads and writes",
        "A running mean that is moved and then subtracted: the replay subtracts another one.",
        "WithAverage",
        "bare",
        "gradients/block.0.weight",
    ),
    Example(
        "A Python attribute",
        "A module that counts its calls.",
        "WithSilentCounter",
        "bare",
        "attributes/block.1.runs",
    ),
    Example(
        "Random numbers of torch",
        "Dropout, with `preserve_rng_state=False`.",
        "WithDropout",
        "rng_not_preserved",
        "gradients/block.0.weight",
    ),
    Example(
        "Random numbers of a generator of the module's own",
        "Torch's checkpoint keeps the global generators, and no other.",
        "WithOwnGenerator",
        "bare",
        "gradients/block.2.weight",
    ),
    Example(
        "A generator that is left elsewhere",
        "Python's `random`, which torch's checkpoint does not keep.",
        "WithPython",
        "bare",
        "random_state/python",
    ),
    Example(
        "An input that changed",
        "A keyword tensor that the model sets to zero between forward and backward.",
        "Masked",
        "bare",
        "gradients/block.0.weight",
        model="WithMask",
    ),
    Example(
        "Autocast that is lost",
        "The replay runs without it; torch raises, and the finding says why.",
        "WithNorm",
        "autocast_lost",
        "replay/block.0.saved",
        axes="autocast=bf16",
    ),
    Example(
        "Another order",
        "A block that turns its layers round every second time, by a global variable.",
        "Turns",
        "bare",
        "gradients/before.weight",
    ),
    Example(
        "Torch's CheckpointError",
        "A cache that grows with every call, so that the replay attends to twice as many rows.",
        "WithCache",
        "bare",
        "replay/block.1.saved",
    ),
    Example(
        "The second replay of a retained graph",
        "An arm that moves a buffer in the second backward pass only.",
        "Plain",
        "second_replay_moves_scale",
        "gradients/block.0.weight",
        axes="backward=retained",
    ),
)

_INTRODUCTION = """\
# Findings

When a case differs, the lab runs both arms once more with hooks on every submodule, compares each
replay with its logical forward, and says

- **where** it came about: the first submodule, in execution order, whose replay differs from its
  forward; the pass (`forward`, `replay 2`, `backward`, `optimizer step`, `buffer broadcast`); the
  rank, which under DDP need not be the one that sees the consequence;
- the **cause**: the tensor, its value in the replay and in the forward, the largest difference, and
  what surrounded both: state before and after, random generators, autocast, inputs, order, and
  the globals, context variables, function modes and hooks that the code can read;
- a **remedy**.

The submodule is the innermost one whose inputs are the same in both. What is "saved" is a tensor
that autograd keeps for backward, numbered within its submodule: a replay ends with the last of
them, so the last submodule of a block often has no output to compare. The recording draws no random
number, moves no version counter and calls no collective: the run is bit by bit what it is without
it. Cases that are equal are not recorded.

A `CheckpointError` of torch, and any other exception in a backward pass, is looked into in the same
way, on each rank alone; the traceback stands below what was found.

## Kinds of causes

The kind is the key `kind` of a finding in `results.jsonl`.

| kind | what it says | what to do |
|---|---|---|
"""


def page() -> str:
    """Return the page as Markdown."""
    meanings = _meanings()
    rows = [f"| `{kind.value}` | {meanings[kind.name]} | {REMEDIES[kind]} |" for kind in CauseKind]
    sections = [
        f"### {example.title}\n\n{example.text}\n\n```text\n{output(example)}\n```"
        for example in EXAMPLES
    ]
    return "\n".join(
        [f"{_INTRODUCTION}{rows[0]}", *rows[1:], "\n## Gallery\n", "\n\n".join(sections)]
    )


def output(example: Example) -> str:
    """Return what the terminal shows of an example's finding."""
    found = findings_of(example.block, example.arm, example.axes, model=example.model)
    return finding_text(found[example.path])


def without_numbers(text: str) -> str:
    """Return a text in which the values that kernels compute do not matter."""
    return re.sub(r"\b[0-9a-f]{16}\b|-?\d+\.\d+(e-?\d+)?|-?\d+e-?\d+|\[\d+(, \d+)*\]", "#", text)


def _meanings() -> dict[str, str]:
    (kinds,) = (
        node
        for node in ast.parse(inspect.getsource(findings)).body
        if isinstance(node, ast.ClassDef) and node.name == "CauseKind"
    )
    body = kinds.body[1:]
    return {
        name.targets[0].id: text.value.value  # type: ignore[attr-defined]
        for name, text in zip(body[::2], body[1::2], strict=True)
    }


if __name__ == "__main__":
    print(page())
