"""Executes the program of a job on one rank and records what it sees."""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from harness.importing import load
from harness.job import Job
from harness.trace import Trace, buffers_of, gradients_of, raised_at, random_states
from harness.wrapping import wrap
from matrix.programs import AutogradGrad, Backward, Forward

_INPUTS: dict[tuple[str, str], Any] = {}
"""Inputs of this rank, kept between cases: drawing them costs more than a small case."""


def execute(job: Job, arm: str, rank: int, *, alone: bool = False) -> Trace:
    """Run a job's program under one arm.

    An exception ends the run; the trace says what was raised and where.

    Args:
        job: The job.
        arm: Importable name of the arm's install function.
        rank: The rank this runs on.
        alone: Leave out the wrapper, so that nothing is exchanged with other ranks.

    Returns:
        What was seen.
    """
    if alone:
        job = replace(job, program=replace(job.program, wrapper="none"))
    try:
        trace, execution = _prepare(job, arm, rank)
    except Exception as error:
        return Trace(nn.Module(), raised=raised_at("set-up", error))
    try:
        for step in job.program.steps:
            execution.run(step)
        execution.finish()
    except Exception as error:
        if trace.raised is None:
            trace.raised = raised_at("end", error)
    return trace


def _prepare(job: Job, arm: str, rank: int) -> tuple[Trace, _Execution]:
    _seed(job.case_seed)
    module = load(job.factory)(**job.arguments)
    for function, value in job.configure:
        load(function)(module, value)
    module.train()
    trace = Trace(module)
    keys = tuple(module.state_dict())
    trace.state_keys = (keys, keys)
    switch = load(arm)(module)
    trace.count_calls()
    return trace, _Execution(job, rank, trace, wrap(module, job.program), switch)


def _seed(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed)


class _Execution:
    """One run of a program: the model, its inputs and losses, and the trace being written."""

    def __init__(
        self,
        job: Job,
        rank: int,
        trace: Trace,
        model: nn.Module,
        switch: Callable[[bool], None],
    ) -> None:
        self._job = job
        self._rank = rank
        self._trace = trace
        self._model = model
        self._switch = switch
        self._losses: list[Tensor] = []
        self._backwards = 0
        self._leaves: dict[str, Tensor] = {}
        self._arguments = {
            microbatch: self._fresh_arguments(microbatch) for microbatch in job.program.microbatches
        }
        # Ranks draw different numbers, as they do in a real run.
        _seed(job.case_seed + 1 + rank)

    def run(self, step: Forward | Backward | AutogradGrad) -> None:
        """Run one step and record what is to be seen after it."""
        if isinstance(step, Forward):
            self._forward(step)
        elif isinstance(step, Backward):
            self._backward(step)
        else:
            self._autograd_grad(step)

    def finish(self) -> None:
        """Record what is to be seen at the end."""
        trace = self._trace
        trace.points["end"] = {"random_state": dict(random_states())}
        trace.state_keys = (trace.state_keys[0], tuple(trace.module.state_dict()))

    def _fresh_arguments(self, microbatch: int) -> tuple[Any, ...]:
        leaves, structure = pytree.tree_flatten(_inputs(self._job, self._rank, microbatch))
        fresh = []
        for position, leaf in enumerate(leaves):
            if isinstance(leaf, Tensor) and leaf.requires_grad:
                leaf = leaf.detach().clone().requires_grad_()
                self._leaves[f"microbatch{microbatch}.{position}"] = leaf
            fresh.append(leaf)
        arguments: tuple[Any, ...] = pytree.tree_unflatten(fresh, structure)
        return arguments

    def _forward(self, step: Forward) -> None:
        trace, index = self._trace, len(self._losses)
        hook: AbstractContextManager[Any] = nullcontext()
        with trace.point(f"forward[{index}]"):
            self._switch(step.checkpointed)
            if index > 0:
                hook = trace.module.register_forward_pre_hook(self._record_start)
            before = Counter(trace.total_calls)
            with hook, self._autocast():
                output = self._model(*self._arguments[step.microbatch])
                tensors = _tensors(output)
                loss = self._loss(tensors, index)
            trace.forward_calls.append(trace.total_calls - before)
            self._losses.append(loss)
            trace.points[f"forward[{index}]"] = {
                "outputs": {str(i): tensor.detach().clone() for i, tensor in enumerate(tensors)},
                "losses": {str(index): loss.detach().clone()},
                "buffers": buffers_of(trace.module),
            }

    def _record_start(self, module: nn.Module, arguments: Any) -> None:
        point = f"start of forward[{len(self._losses)}]"
        self._trace.points.setdefault(point, {"buffers": buffers_of(module)})

    def _backward(self, step: Backward) -> None:
        with self._trace.point(self._backward_point):
            torch.autograd.backward(self._summed(step.forwards), retain_graph=step.retain_graph)
            self._record_backward({})

    def _autograd_grad(self, step: AutogradGrad) -> None:
        parameters = dict(self._trace.module.named_parameters())
        targets = {
            **{f"inputs.{name}": leaf for name, leaf in self._leaves.items()},
            **{name: value for name, value in parameters.items() if value.requires_grad},
        }
        with self._trace.point(self._backward_point):
            gradients = torch.autograd.grad(
                self._summed(step.forwards), list(targets.values()), allow_unused=True
            )
            self._record_backward(dict(zip(targets, gradients, strict=True)))

    def _record_backward(self, returned: dict[str, Tensor | None]) -> None:
        self._trace.points[self._backward_point] = {
            "gradients": gradients_of(self._trace.module),
            "returned_gradients": returned,
            "input_gradients": {
                name: None if leaf.grad is None else leaf.grad.detach().clone()
                for name, leaf in self._leaves.items()
            },
            "buffers": buffers_of(self._trace.module),
        }
        self._backwards += 1

    @property
    def _backward_point(self) -> str:
        return f"backward[{self._backwards}]"

    def _summed(self, forwards: tuple[int, ...]) -> Tensor:
        return torch.stack([self._losses[index] for index in forwards]).sum()

    def _autocast(self) -> AbstractContextManager[Any]:
        dtype = self._job.program.autocast
        return torch.autocast("cpu", getattr(torch, dtype)) if dtype else nullcontext()

    def _loss(self, tensors: list[Tensor], index: int) -> Tensor:
        # Random weights: a plain sum behind a BatchNorm has a gradient of nearly zero.
        generator = torch.Generator().manual_seed(self._job.case_seed + index)
        terms = [
            (tensor.float() * torch.rand(tensor.shape, generator=generator)).mean()
            for tensor in tensors
        ]
        return torch.stack(terms).sum()


def _inputs(job: Job, rank: int, microbatch: int) -> tuple[Any, ...]:
    place = f"{job.seed} {rank} {microbatch} {sorted(job.input_arguments.items())}"
    key = (job.inputs, place)
    if key not in _INPUTS:
        made = load(job.inputs)(
            seed=job.seed, rank=rank, microbatch=microbatch, **job.input_arguments
        )
        _INPUTS[key] = made if isinstance(made, tuple) else (made,)
    inputs: tuple[Any, ...] = _INPUTS[key]
    return inputs


def _tensors(output: Any) -> list[Tensor]:
    return [
        leaf
        for leaf in pytree.tree_leaves(output)
        if isinstance(leaf, Tensor) and leaf.is_floating_point()
    ]
