"""A LightningModule with checkpointed blocks.

Run it with `python docs/examples/lightning_loop.py`, where `lightning` is installed.
`--no-checkpointing` trains the same weights without it, bit for bit; `--out` saves them.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import lightning
import torch
from blocks import Block, build_model, make_rows
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader

from wcn_ckpt import configure_gradient_checkpointing, make_checkpointable


class Classifier(lightning.LightningModule):
    """Two blocks that are boundaries, and a head.

    Args:
        checkpointing: whether the blocks are recomputed in backward.
    """

    def __init__(self, checkpointing: bool) -> None:
        super().__init__()
        self.model = build_model()
        make_checkpointable(self.model, Block)  # before a strategy wraps the module
        configure_gradient_checkpointing(self.model, checkpointing)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Return the loss of one batch."""
        features, classes = batch
        return functional.cross_entropy(self.model(features), classes)

    def configure_optimizers(self) -> Any:
        """Return plain SGD."""
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main() -> None:
    """Train two epochs on the CPU."""
    parser = argparse.ArgumentParser(description="Trains under Lightning.")
    parser.add_argument("--no-checkpointing", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()

    lightning.seed_everything(0)
    classifier = Classifier(not options.no_checkpointing)
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,  # this one is about saving weights
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(classifier, DataLoader(make_rows(), batch_size=8, shuffle=True))
    print(f"updates of the first BatchNorm: {classifier.model[0].norm.num_batches_tracked}")
    if options.out is not None:
        torch.save(classifier.model.state_dict(), options.out)


if __name__ == "__main__":
    main()
