"""Models of Transformers under their own flag, after one line of ours."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.checkpointing.steps import differences
from wcn_ckpt import preserve_replay_state

transformers = pytest.importorskip("transformers", reason="needs the `hf` extra")


def conformer() -> tuple[nn.Module, dict[str, Tensor]]:
    config = transformers.Wav2Vec2ConformerConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        conv_dim=(8, 8),
        conv_kernel=(3, 3),
        conv_stride=(2, 2),
        num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2,
        conv_depthwise_kernel_size=3,
        position_embeddings_type=None,
        apply_spec_augment=False,
        layerdrop=0.0,
    )
    return transformers.Wav2Vec2ConformerModel(config), {"input_values": torch.randn(2, 100)}


def mobilevit() -> tuple[nn.Module, dict[str, Tensor]]:
    config = transformers.MobileViTConfig(
        image_size=32,
        hidden_sizes=[8, 12, 16],
        neck_hidden_sizes=[4, 4, 8, 8, 8, 8, 8],
        num_attention_heads=2,
        expand_ratio=1.0,
    )
    return transformers.MobileViTModel(config), {"pixel_values": torch.randn(2, 3, 32, 32)}


def t5() -> tuple[nn.Module, dict[str, Tensor]]:
    config = transformers.T5Config(
        d_model=16,
        num_layers=2,
        num_heads=2,
        d_kv=8,
        d_ff=16,
        vocab_size=50,
        decoder_start_token_id=0,
    )
    tokens = torch.randint(0, 50, (2, 7))
    model = transformers.T5ForConditionalGeneration(config)
    return model, {"input_ids": tokens, "labels": tokens}


def enable(model: Any) -> None:
    kwargs = {"use_reentrant": False}
    getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)(kwargs)


def train(model: nn.Module, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    torch.manual_seed(1)
    model.train()
    seen = {}
    for step in range(2):
        out = model(**inputs)
        loss = out.loss if "loss" in out else out.last_hidden_state.square().mean()
        loss.backward()
        seen |= {f"{step}.{name}": buffer.clone() for name, buffer in model.named_buffers()}
    seen |= {f"{n}.grad": p.grad for n, p in model.named_parameters() if p.grad is not None}
    return seen


@pytest.mark.parametrize(
    ("build", "first"),
    [(conformer, "enable"), (conformer, "preserve"), (mobilevit, "preserve"), (t5, "enable")],
)
def test_training_is_bitwise_that_without_checkpointing(
    build: Callable[[], tuple[nn.Module, dict[str, Tensor]]], first: str
) -> None:
    torch.manual_seed(0)
    ordinary, inputs = build()
    flagged, safe = copy.deepcopy(ordinary), copy.deepcopy(ordinary)
    if first == "enable":
        enable(safe)
    preserved = preserve_replay_state(safe)
    if first == "preserve":
        enable(safe)
    enable(flagged)

    expected = train(ordinary, inputs)
    twice = differences(expected, train(flagged, inputs))
    assert any("num_batches_tracked" in name for name in twice) == (build is not t5)
    assert not differences(expected, train(safe, inputs))
    assert preserved.calls


def test_a_reentrant_flag_is_refused() -> None:
    model, inputs = t5()
    preserved = preserve_replay_state(model)
    kwargs = {"use_reentrant": True}
    getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)(kwargs)
    with pytest.raises(ValueError, match='gradient_checkpointing_kwargs={"use_reentrant": False}'):
        train(model, inputs)

    preserved.undo()
    with pytest.raises(ValueError, match=r"T5Stack 'encoder' cannot keep .*reentrant"):
        preserve_replay_state(model)
