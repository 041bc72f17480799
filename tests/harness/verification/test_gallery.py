"""Verdicts on real models, each confirmed by two plain steps without the lab."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers", reason="needs Transformers: pip install 'wcn-ckpt[hf]'")

from harness.verification import randomness, tiny
from harness.verification.advice import PRESERVE
from harness.verification.gallery import MODELS, REASONS, Verdict, verdict_on

PAGE = Path(__file__).resolve().parents[3] / "docs" / "verdicts.md"


def local_verdict(model: str) -> Verdict:
    return verdict_on(model, local=True)


@pytest.mark.parametrize("model", ["Wav2Vec2ConformerModel", "MobileViTModel"])
def test_a_double_update_is_found_named_and_gone_after_one_line(model: str) -> None:
    verdict = local_verdict(model)

    assert verdict.report.exit_status == 1
    assert "updated twice a step" in verdict.finding
    assert any("running_mean" in name for name in verdict.changed)
    assert {finding.remedy for finding in verdict.report.findings} == {PRESERVE}
    assert verdict.report.remedied is not None and verdict.report.remedied.passed
    assert not verdict.changed_after
    assert verdict.confirmed


@pytest.mark.parametrize("model", ["BertModel", "LlamaModel", "WhisperModel"])
def test_a_model_without_state_in_its_blocks_is_safe(model: str) -> None:
    verdict = local_verdict(model)

    assert verdict.report.passed, verdict.report.text
    assert not verdict.changed
    assert verdict.confirmed


@pytest.mark.parametrize(("attention", "equal"), [("sdpa", False), ("eager", True)])
def test_the_flag_of_t5_changes_the_kernel_of_its_attention_alone(
    attention: str, equal: bool
) -> None:
    torch.manual_seed(0)
    plain = tiny.build("T5Model").train()
    randomness.dropout(plain, "off")
    plain.set_attn_implementation(attention)  # type: ignore[operator]  # a method
    flagged = copy.deepcopy(plain)
    enable = getattr(flagged, "activation_checkpointing_enable", None)
    (enable or flagged.gradient_checkpointing_enable)()  # type: ignore[operator]  # a method
    batch = tiny.inputs(plain)
    outputs = [model(**batch).last_hidden_state for model in (plain, flagged)]

    assert torch.equal(*outputs) is equal
    assert "T5Model" in REASONS


@pytest.mark.gallery
@pytest.mark.parametrize("model", MODELS)
def test_each_verdict_of_the_page_is_confirmed(model: str) -> None:
    verdict = local_verdict(model)

    assert verdict.confirmed, verdict.report.text


def test_the_page_has_every_model_and_nothing_unconfirmed() -> None:
    text = PAGE.read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| `")]

    assert [line.split("`")[1] for line in rows] == list(MODELS)
    assert all(line.endswith("| yes |") for line in rows)
    assert sum("**not safe**" in line for line in rows) >= 3
