"""A plain training loop under DistributedDataParallel, with checkpointed blocks.

Run it with::

    torchrun --nproc-per-node 2 docs/examples/ddp_loop.py

`--no-checkpointing` trains the same weights without it, bit for bit; `--out` saves them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # noqa: F401 - see main
from blocks import Block, build_model, make_rows
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from wcn_ckpt import configure_gradient_checkpointing, make_checkpointable


def train(model: nn.Module) -> None:
    """Train two epochs; DistributedDataParallel is gone when this returns."""
    wrapped = DistributedDataParallel(model)
    rows = make_rows()
    sampler = DistributedSampler(rows)
    loader = DataLoader(rows, batch_size=8, sampler=sampler)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for features, classes in loader:
            optimizer.zero_grad()
            functional.cross_entropy(wrapped(features), classes).backward()
            optimizer.step()


def main() -> None:
    """Train on the ranks of torchrun."""
    parser = argparse.ArgumentParser(description="Trains under DDP.")
    parser.add_argument("--no-checkpointing", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()

    # A process group that something still holds when it is destroyed keeps its threads, and a rank
    # may then abort or hang at exit. So DDP lives in train() alone, and
    # torch.distributed.nn.functional, which DDP imports and which keeps the group it finds as
    # default argument, is imported before there is one.
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = build_model()
    make_checkpointable(model, Block)  # before wrapping
    configure_gradient_checkpointing(model, not options.no_checkpointing)
    train(model)

    if dist.get_rank() == 0:
        print(f"updates of the first BatchNorm: {model[0].norm.num_batches_tracked}")
        if options.out is not None:
            torch.save(model.state_dict(), options.out)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
