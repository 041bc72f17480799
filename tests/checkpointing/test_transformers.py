"""Transformers finds, enables and trains boundaries of ours with its own methods."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.checkpointing.steps import Block
from wcn_ckpt.nn.modules import GradientCheckpointingModelMixin

transformers = pytest.importorskip("transformers", reason="needs the `hf` extra")


def blocks() -> nn.Sequential:
    return nn.Sequential(
        *(Block(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Tanh())) for _ in range(2))
    )


class Pretrained(transformers.PreTrainedModel):
    config_class = transformers.PretrainedConfig
    supports_gradient_checkpointing = True
    main_input_name = "x"

    def __init__(self) -> None:
        super().__init__(transformers.PretrainedConfig())
        self.blocks = blocks()

    def forward(self, x: Tensor) -> Any:
        return self.blocks(x)


class Ours(GradientCheckpointingModelMixin, nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = blocks()

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        out = self.blocks(x)
        return {"loss": (out - labels).square().mean(), "logits": out}


class Both(GradientCheckpointingModelMixin, Pretrained):
    pass


def enable(model: Any, **kwargs: Any) -> None:
    """Enable by the name of this release; before release 5 the default is reentrant."""
    switch = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
    switch({"use_reentrant": False, **kwargs})


def counts(model: nn.Module) -> list[int]:
    return [int(m.num_batches_tracked) for m in model.modules() if isinstance(m, nn.BatchNorm1d)]


@pytest.mark.parametrize("cls", [Pretrained, Both])
def test_a_pretrained_model_switches_our_boundaries(cls: Any) -> None:
    model = cls().train()
    enable(model)
    assert all(block.gradient_checkpointing for block in model.blocks)
    assert model.blocks[0]._gradient_checkpointing_func.keywords == {"use_reentrant": False}

    model(torch.randn(5, 4)).sum().backward()
    assert [block.calls for block in model.blocks] == [2, 2]
    assert counts(model) == [1, 1]

    getattr(model, "activation_checkpointing_disable", model.gradient_checkpointing_disable)()
    assert not any(block.gradient_checkpointing for block in model.blocks)


@pytest.mark.parametrize("cls", [Pretrained, Both])
def test_keywords_pass_and_a_reentrant_default_is_refused(cls: Any) -> None:
    model = cls()
    enable(model, preserve_rng_state=False)
    assert model.blocks[0]._gradient_checkpointing_func.keywords["preserve_rng_state"] is False

    with pytest.raises(ValueError, match="use_reentrant=False"):
        enable(model, use_reentrant=True)


class Rows(torch.utils.data.Dataset[dict[str, Tensor]]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(index)
        return {
            "x": torch.randn(4, generator=generator),
            "labels": torch.randn(4, generator=generator),
        }


def test_the_trainer_trains_the_same_model_with_and_without(tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="the Trainer needs accelerate")
    fields = transformers.TrainingArguments.__dataclass_fields__
    flag = next(f for f in ("activation_checkpointing", "gradient_checkpointing") if f in fields)
    states = []
    for enable in (False, True):
        torch.manual_seed(0)
        model = Ours()
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path / str(enable)),
            per_device_train_batch_size=4,
            num_train_epochs=2,
            **{flag: enable},
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            use_cpu=True,
        )
        transformers.Trainer(model=model, args=arguments, train_dataset=Rows()).train()
        assert model.is_gradient_checkpointing is enable
        states.append(model.state_dict())

    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
