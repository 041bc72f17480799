"""One planted fault for each cause: the submodule, the pass, the tensor, the size and the cause."""

from __future__ import annotations

import re

import pytest

from harness.arms import ORDINARY, Arm
from harness.equivalence import equal
from harness.findings import CauseKind, Finding
from harness.localize import Recorder
from harness.program import execute
from harness.ranks import RankPool
from harness.runner import RunOptions, run_case
from tests.harness.localize.cases import BLOCKS, case_of, findings_of, job_of

GRADIENT = "gradients/block.0.weight"


def sizes(text: str) -> list[float]:
    return [float(size) for size in re.findall(r"largest difference ([0-9.e+-]+[0-9])", text)]


def check(finding: Finding, kind: CauseKind, module: str, phase: str, *texts: str) -> None:
    assert (finding.kind, finding.module, finding.phase) == (kind, module, phase), finding.cause
    assert finding.source_rank == 0
    assert finding.remedy
    for text in texts:
        assert text in finding.cause


def test_running_statistics_that_are_updated_again() -> None:
    finding = findings_of("WithNorm", "bare")["buffers/block.1.num_batches_tracked"]

    text = "(2 updates for 1 logical forward): 1 before replay 1 of forward[0] and 2 after it"
    check(finding, CauseKind.REPEATED_UPDATE, "block.1", "replay 1", text)
    assert (finding.point, finding.expected, finding.got, finding.max_abs) == (
        *("backward[0]", 1, 2),
        1.0,
    )


def test_a_python_attribute_that_is_written_again() -> None:
    findings = findings_of("WithSilentCounter", "bare")

    text = "SilentCounter 'block.1' wrote attribute 'block.1.runs' (1 before, 2 after)"
    check(findings["attributes/block.1.runs"], CauseKind.STATE_WRITTEN, "block.1", "replay 1", text)
    assert len(findings) == 1


def test_a_python_attribute_that_is_read_as_well() -> None:
    finding = findings_of("WithCounter", "bare")["gradients/block.2.weight"]

    check(
        finding,
        CauseKind.STATE_MOVED,
        "block.1",
        "replay 1",
        "attribute 'block.1.runs' (0 before, 1 after); the forward itself writes it",
    )
    assert sizes(finding.cause)[0] > 0


def test_a_buffer_that_is_read_and_written() -> None:
    findings = findings_of("WithAverage", "bare")

    written = findings["buffers/block.1.mean"]
    check(written, CauseKind.STATE_WRITTEN, "block.1", "replay 1", "wrote buffer 'block.1.mean'")
    assert f"({written.expected:.9g} before, " in written.cause
    assert sizes(written.cause) == [pytest.approx(written.max_abs, rel=1e-5)]
    moved = findings[GRADIENT]
    check(moved, CauseKind.STATE_MOVED, "block.1", "replay 1", "buffer 'block.1.mean' (0 before, ")


@pytest.mark.parametrize(
    ("block", "arm", "model", "module", "generator"),
    [
        ("WithDropout", "rng_not_preserved", "Model", "block.1", "torch's CPU generator"),
        ("WithPython", "bare", "Model", "block.1", "Python's random"),
        ("WithNumpy", "bare", "Model", "block.1", "NumPy's global generator"),
        ("WithOwnGenerator", "bare", "Model", "block.1", "torch.Generator 'block.1.generators[0]'"),
        ("TakesGenerator", "bare", "WithGenerator", "block", "torch.Generator 'argument[1]'"),
    ],
)
def test_random_numbers_are_told_with_their_generator(
    block: str, arm: str, model: str, module: str, generator: str
) -> None:
    findings = findings_of(block, arm, model=model)

    text = f"it draws random numbers from {generator}, which stood in another state"
    finding = findings["gradients/block.2.weight"]
    check(finding, CauseKind.RANDOM_DRAWN, module, "replay 1", text)


def test_a_generator_that_a_replay_leaves_elsewhere() -> None:
    finding = findings_of("WithPython", "bare")["random_state/python"]

    text = "Noise 'block.1' drew from it and it was not put back"
    check(finding, CauseKind.RANDOM_STATE, "block.1", "replay 1", "left Python's random", text)


def test_an_input_that_is_changed_in_place_between_forward_and_replay() -> None:
    finding = findings_of("Masked", "bare", model="WithMask")[GRADIENT]

    text = "mask is not what the forward got (0.5 then, 0 now): it changed after the forward"
    check(finding, CauseKind.INPUT_CHANGED, "block", "replay 1", text)
    assert sizes(finding.cause) == [0.5]


@pytest.mark.parametrize("arm", ["autocast_lost", "autocast_lost_unchecked"])
def test_autocast_that_is_lost(arm: str) -> None:
    finding = findings_of("WithNorm", arm, "autocast=bf16")["replay/block.0.saved"]

    text = "autocast was bfloat16 on cpu in the forward and is off in the replay"
    check(finding, CauseKind.DTYPE_DRIFT, "block.0", "replay 1", text)


def test_another_order() -> None:
    finding = findings_of("Turns", "bare")["gradients/before.weight"]

    text = "Turns 'block' went on with a call of 'block.2' instead of a call of 'block.0'"
    check(finding, CauseKind.ORDER_DRIFT, "block", "replay 1", text)
    assert "global 'len(HIDDEN)' (0 before, 1 after)" in finding.cause


SURROUNDINGS = {
    "ReadsGlobal": "global \"FLAGS['scaled']\" (True before, False after)",
    "ReadsGlobalInHelper": "global \"FLAGS['scaled']\" (True before, False after)",
    "ReadsClassAttribute": "global 'Settings.scale' (5 before, 1 after)",
    "ReadsThreadLocal": "global 'LOCAL.scale' (5 before, 1 after)",
    "ReadsContextVariable": "context variable 'scale' (5 before, None after)",
    "UnderFunctionMode": "setting 'torch function modes' (Threefold before, none after)",
    "WithPassingHook": "hooks 'block.1._forward_hooks' (fivefold before, none after)",
    "ReadsClosure": "closure variable 'closing.<locals>.scaled.factors[0]' (5 before, 1 after)",
}


@pytest.mark.parametrize("block", SURROUNDINGS)
def test_what_surrounds_the_code_of_a_block(block: str) -> None:
    finding = findings_of(block, "bare", model="Scaling")["gradients/block.2.weight"]

    where = "block" if block == "WithPassingHook" else "block.1"
    check(finding, CauseKind.STATE_MOVED, where, "replay 1", SURROUNDINGS[block])


def test_a_generator_that_is_a_global() -> None:
    finding = findings_of("DrawsFromGlobal", "bare")["gradients/before.weight"]

    text = "it draws random numbers from torch.Generator 'GENERATOR'"
    check(finding, CauseKind.RANDOM_DRAWN, "block.1", "replay 1", text)


def test_a_gradient_of_zeros_that_the_state_explains() -> None:
    finding = findings_of("Saturating", "bare", model="Scaling")["gradients/before.weight"]

    assert finding.got == 0
    text = "attribute 'block.1.factor'"
    check(finding, CauseKind.STATE_MOVED, "block.1", "replay 1", text)


def test_torchs_checkpoint_error_is_a_finding_like_others() -> None:
    (finding,) = findings_of("WithCache", "bare").values()

    assert finding.path == "replay/block.1.saved[0]"
    assert finding.expected == "float32 tensor of shape (4, 72)"
    assert str(finding.got).startswith("float32 tensor of shape (4, 144)\nCheckpointError: ")
    text = "attribute 'block.1.len(rows)' (0 before, 1 after)"
    check(finding, CauseKind.STATE_MOVED, "block.1", "replay 1", text, "CheckpointError")


def test_gradients_that_are_not_recorded() -> None:
    (finding,) = findings_of("Plain", "without_gradients").values()

    text = "gradients are recorded in the forward and not in the replay"
    check(finding, CauseKind.ORDER_DRIFT, "block.0", "replay 1", text)


def test_a_kernel_that_is_not_deterministic() -> None:
    findings = findings_of("WithJitter", "bare").values()

    for finding in findings:
        assert finding.kind is CauseKind.NONDETERMINISTIC
        assert finding.module == "block.1"
        assert "the ordinary arm differs from itself" in finding.cause


@pytest.mark.parametrize("arm", ["rng_not_preserved", "no_early_stop"])
def test_the_last_submodule_is_named_with_and_without_early_stop(arm: str) -> None:
    finding = findings_of("EndsInDropout", arm)[GRADIENT]

    check(finding, CauseKind.RANDOM_DRAWN, "block.2", "replay 1", "saved another tensor")


def test_the_second_of_two_replays_of_a_retained_graph() -> None:
    findings = findings_of("Plain", "second_replay_moves_scale", "backward=retained")

    finding = findings[GRADIENT]
    assert finding.point == "backward[1]"
    text = "replay 2 of forward[0]"
    check(finding, CauseKind.STATE_MOVED, "block", "replay 2", text, "'block.scale' (1 before, 2")
    assert {f.phase for f in findings.values()} == {"replay 2"}


def test_nested_boundaries_name_the_innermost_submodule() -> None:
    findings = findings_of("Outer", "bare")

    check(findings["gradients/before.weight"], CauseKind.STATE_MOVED, "block.block.1", "replay 1")
    written = findings["buffers/block.block.1.mean"]
    check(written, CauseKind.STATE_WRITTEN, "block.block.1", "replay 1")


def test_joint_forwards_through_a_block_that_is_called_twice() -> None:
    findings = findings_of("WithNorm", "bare", "accumulation=joint", model="Chain")

    finding = findings["buffers/block.1.num_batches_tracked"]
    assert (finding.expected, finding.got) == (4, 8)
    check(finding, CauseKind.REPEATED_UPDATE, "block.1", "replay 1")


def test_a_checkpoint_that_is_not_torchs() -> None:
    findings = findings_of("WithDropout", "own_function")

    assert {f.module for f in findings.values()} == {"block.1"}
    check(
        findings[GRADIENT], CauseKind.RANDOM_DRAWN, "block.1", "replay 1", "torch's CPU generator"
    )


def test_the_reentrant_variant() -> None:
    findings = findings_of("WithNorm", "reentrant")
    assert findings["buffers/block.1.running_mean"].kind is CauseKind.REPEATED_UPDATE

    (finding,) = findings_of("WithNorm", "reentrant", "backward=autograd.grad").values()
    assert finding.kind is CauseKind.REENTRANT
    assert finding.remedy == "use the non-reentrant variant: use_reentrant=False"


@pytest.mark.parametrize(
    ("block", "arm", "axes"),
    [
        ("WithDropout", "rng_not_preserved", ""),
        ("WithAverage", "bare", "backward=retained,steps=3"),
        ("Outer", "bare", "accumulation=joint"),
        ("WithNorm", "bare", "autocast=bf16"),
        ("WithPython", "bare", ""),
        ("WithCache", "bare", ""),
    ],
)
def test_a_recording_changes_nothing(block: str, arm: str, axes: str) -> None:
    job = job_of(block, arm, axes)
    for name in (ORDINARY, job.arm):
        plain = execute(job, name, 0)
        recorded = execute(job, name, 0, watch=Recorder().watch)

        assert equal(plain.points, recorded.points)
        assert plain.forward_calls == recorded.forward_calls
        assert plain.state_keys == recorded.state_keys
        first, second = plain.raised, recorded.raised
        assert (first and first.error) == (second and second.error)


def test_the_rank_at_fault_is_named_on_every_rank(rank_pool: RankPool) -> None:
    arm = Arm("faulty", f"{BLOCKS}:rng_not_preserved_on_rank_1", "")
    row = run_case(case_of("WithDropout", "wrapper=ddp"), rank_pool, RunOptions(arm=arm))

    assert row.outcome == "differs"
    assert row.findings[0].rank == 1
    gradients = [f for f in row.findings if f.path.startswith("gradients/")]
    assert {finding.rank for finding in gradients} == {0, 1}
    for finding in gradients:
        assert finding.source_rank == 1
        assert (finding.kind, finding.module) == (CauseKind.RANDOM_DRAWN, "block.1")
        assert finding.phase == "replay 1"
        assert finding.cause.startswith("on rank 1, ") == (finding.rank == 0)
