"""Blocks inside a `PreTrainedModel`, trained by the Trainer of Transformers.

Run it with `python docs/examples/hf_trainer.py`, where the extra `hf` is installed.
`--no-checkpointing` trains the same weights without it, bit for bit; `--out` saves them.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch
from blocks import Block, build_model, make_rows
from torch import Tensor
from torch.nn import functional
from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainingArguments

from wcn_ckpt import make_checkpointable


class Config(PretrainedConfig):
    """The configuration of the model; it has nothing of its own."""

    model_type = "wcn-ckpt-example"


class Classifier(PreTrainedModel):
    """A model of Transformers whose flag switches boundaries of ours."""

    config_class = Config
    supports_gradient_checkpointing = True
    main_input_name = "features"

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.model = build_model()
        make_checkpointable(self.model, Block)
        self.post_init()

    def _init_weights(self, module: torch.nn.Module) -> None:
        """Keep the weights that the layers were built with."""

    def forward(self, features: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return loss and logits for features of shape (N, C) and classes of shape (N,)."""
        logits = self.model(features)
        return {"loss": functional.cross_entropy(logits, labels), "logits": logits}


def main() -> None:
    """Train two epochs on the CPU."""
    parser = argparse.ArgumentParser(description="Trains under the Trainer.")
    parser.add_argument("--no-checkpointing", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()

    torch.manual_seed(0)
    classifier = Classifier(Config())
    rows = [{"features": features, "labels": label} for features, label in make_rows()]
    with tempfile.TemporaryDirectory() as folder:
        arguments: dict[str, Any] = {
            "output_dir": folder,
            "per_device_train_batch_size": 8,
            "num_train_epochs": 2,
            "gradient_checkpointing": not options.no_checkpointing,
            "gradient_checkpointing_kwargs": {"use_reentrant": False},
            "save_strategy": "no",
            "report_to": [],
            "use_cpu": True,
            "disable_tqdm": True,
        }
        trainer = Trainer(model=classifier, args=TrainingArguments(**arguments), train_dataset=rows)
        trainer.train()
    print(f"updates of the first BatchNorm: {classifier.model[0].norm.num_batches_tracked}")
    if options.out is not None:
        torch.save(classifier.model.state_dict(), options.out)


if __name__ == "__main__":
    main()
