"""The least that a comparison of two arms can do: a loop over jobs in ranks that run already.

The same arms, the same passes and the same observations as the lab, compared by ``torch.equal``; no
hooks, no oracle but the pass that one needs, no votes, no rows.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils import _pytree as pytree

from harness.arms import ORDINARY
from harness.importing import load
from harness.inputs import fresh_arguments
from harness.job import Job
from harness.ranks.context import RankContext
from harness.wrapping import wrap
from matrix.expectations import Fact
from matrix.programs import AutogradGrad, Backward, Forward, OptimizerStep


def run_jobs(jobs: list[Job], context: RankContext) -> float:
    """Compare the arms of some jobs; a task for :meth:`harness.ranks.RankPool.run`.

    Args:
        jobs: The jobs, on the CPU.
        context: The rank.

    Returns:
        Seconds from when the first rank starts until the last one is done.

    Raises:
        RuntimeError: If the arms of a job differ: then this loop is not a measure of anything.
    """
    dist.barrier()
    start = time.monotonic()
    for job in jobs:
        compare_arms(job, context.rank)
    dist.barrier()
    return time.monotonic() - start


def compare_arms(job: Job, rank: int) -> None:
    """Run a job under the ordinary arm and under the judged one, and compare what is seen.

    Args:
        job: The job, on the CPU.
        rank: This rank.

    Raises:
        RuntimeError: If the arms differ.
    """
    ordinary, judged = (observations(job, arm, rank) for arm in (ORDINARY, job.arm))
    if Fact.GRADIENTS_ARE_MEAN in job.facts:
        alone = replace(job, program=replace(job.program, wrapper="none"))
        observations(alone, ORDINARY, rank)
    if len(ordinary) != len(judged) or not all(map(torch.equal, ordinary, judged)):
        raise RuntimeError(f"the arms differ in {job.case}")


def observations(job: Job, arm: str, rank: int) -> list[Tensor]:
    """Run a job under one arm.

    Args:
        job: The job.
        arm: Importable name of the arm's install function.
        rank: This rank.

    Returns:
        Copies of what the lab observes, in program order.
    """
    _seed(job.case_seed + rank)
    module: nn.Module = load(job.factory)(**job.arguments)
    for function, value in job.configure:
        load(function)(module, value)
    module.train()
    switch = load(arm)(module)
    run = _Run(job, rank, module, wrap(module, job.program), switch)
    _seed(job.case_seed + 1 + rank)
    for step in job.program.steps:
        run.step(step)
    return run.seen


def _seed(seed: int) -> None:
    torch.default_generator.manual_seed(seed)
    random.seed(seed)


class _Run:
    def __init__(self, job: Job, rank: int, module: nn.Module, model: nn.Module, switch: Any):
        self.seen: list[Tensor] = []
        self._job, self._module, self._model, self._switch = job, module, model, switch
        self._parameters = list(module.parameters())
        self._optimizer: torch.optim.Optimizer | None = None
        self._checkpointing = True
        self._losses: list[Tensor] = []
        self._returned: dict[Tensor, Tensor] = {}
        self._arguments: dict[int, tuple[Any, ...]] = {}
        self._leaves: list[Tensor] = []
        for microbatch in job.program.microbatches:
            arguments, _, leaves = fresh_arguments(job, rank, microbatch, torch.device("cpu"))
            self._arguments[microbatch] = arguments
            self._leaves += leaves.values()

    def step(self, step: Any) -> None:
        if isinstance(step, Forward):
            self._forward(step)
        elif isinstance(step, Backward):
            with self._sync(step.synced):
                torch.autograd.backward(self._loss(step), retain_graph=step.retain_graph)
            self._keep(p.grad for p in (*self._parameters, *self._leaves))
        elif isinstance(step, AutogradGrad):
            targets = [*self._leaves, *self._parameters]
            gradients = torch.autograd.grad(self._loss(step), targets, allow_unused=True)
            self._keep(gradients)
            for target, gradient in zip(targets, gradients, strict=True):
                if gradient is not None:
                    known = self._returned.get(target)
                    self._returned[target] = gradient if known is None else known + gradient
        else:
            self._optimize(step)
        self._keep(self._module.buffers())

    def _forward(self, step: Forward) -> None:
        self._keep(self._module.buffers())
        if step.checkpointed != self._checkpointing:
            self._switch(step.checkpointed)
            self._checkpointing = step.checkpointed
        dtype = self._job.program.autocast
        cast = torch.autocast("cpu", getattr(torch, dtype)) if dtype else nullcontext()
        generator = torch.Generator().manual_seed(self._job.case_seed + len(self._losses))
        with self._sync(step.synced), cast:
            output = self._model(*self._arguments[step.microbatch])
            leaves = pytree.tree_leaves(output)
            tensors = [t for t in leaves if isinstance(t, Tensor) and t.is_floating_point()]
            weighted = [(t.float() * torch.rand(t.shape, generator=generator)) for t in tensors]
            loss = torch.stack([term.mean() for term in weighted]).sum()
        self._losses.append(loss)
        self._keep([*tensors, loss])

    def _optimize(self, step: OptimizerStep) -> None:
        for parameter in self._parameters:
            if parameter in self._returned:
                parameter.grad = self._returned[parameter]
        self._returned = {}
        if self._optimizer is None:
            self._optimizer = torch.optim.SGD(
                self._parameters, lr=step.learning_rate, momentum=step.momentum
            )
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._keep(self._parameters)
        self._keep(state["momentum_buffer"] for state in self._optimizer.state.values())

    def _loss(self, step: Backward | AutogradGrad) -> Tensor:
        return torch.stack([self._losses[index] for index in step.forwards]).sum()

    def _sync(self, synced: bool) -> AbstractContextManager[Any]:
        if not synced and isinstance(self._model, DistributedDataParallel):
            return self._model.no_sync()
        return nullcontext()

    def _keep(self, tensors: Iterable[Tensor | None]) -> None:
        self.seen += [tensor.detach().clone() for tensor in tensors if tensor is not None]
