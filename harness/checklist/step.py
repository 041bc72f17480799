"""One training step of one arm, taken apart so that its parts can be measured."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, nn

from harness.devices import device_of
from harness.importing import load
from harness.inputs import fresh_arguments
from harness.job import Job
from harness.losses import default_loss, own_loss
from harness.program import seed_everything
from harness.structures import tensors


class Step:
    """A model built for one arm, with its input and an optimizer.

    Args:
        job: What to build. Its program is not run.
        arm: Importable name of the arm.
        rank: The rank this runs on.

    Attributes:
        module: The model.
        arguments: Its positional and keyword arguments.
        output: What it returned last.
    """

    def __init__(self, job: Job, arm: str, rank: int) -> None:
        self._job = job
        self.device = device_of(job.program.device, rank)
        seed_everything(job.case_seed, self.device)
        self.module: nn.Module = load(job.factory)(**job.arguments)
        for function, value in job.configure:
            load(function)(self.module, value)
        self.module.to(self.device).train()
        load(arm)(self.module, **(job.arm_arguments if arm == job.arm else {}))
        positional, keywords, self._leaves = fresh_arguments(job, rank, 0, self.device)
        self.arguments: tuple[tuple[Any, ...], dict[str, Any]] = positional, keywords
        self.output: Any = None
        trainable = [value for value in self.module.parameters() if value.requires_grad]
        self._optimizer = torch.optim.SGD(trainable, lr=0.0, momentum=0.9) if trainable else None

    def forward(self) -> Tensor:
        """Run the model and return the loss."""
        positional, keywords = self.arguments
        self.output = self.module(*positional, **keywords)
        returned = tensors(self.output)
        if self._job.loss is not None:
            return own_loss(self._job.loss, self.output)
        generator = torch.Generator().manual_seed(self._job.case_seed)
        return default_loss(returned, generator)

    def optimize(self) -> None:
        """Let the optimizer step, with a learning rate of zero, and drop gradients."""
        if self._optimizer is not None:
            self._optimizer.step()
            self._optimizer.zero_grad()
        for leaf in self._leaves.values():
            leaf.grad = None

    def timed(self) -> tuple[float, float, float]:
        """Run a whole step; return the seconds of forward, backward and optimizer."""
        marks = [self._now()]
        loss = self.forward()
        marks.append(self._now())
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        marks.append(self._now())
        del loss
        self.output = None
        self.optimize()
        marks.append(self._now())
        forward, backward, optimizer = (b - a for a, b in zip(marks, marks[1:], strict=False))
        return forward, backward, optimizer

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()
