"""Executes the program of a job on one rank and records what it sees."""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from types import GeneratorType
from typing import Any

import torch
from torch import Tensor, nn

from harness.arms import ORDINARY
from harness.compiling import compile_around, compile_inside, forget_compiled_code
from harness.devices import device_of
from harness.importing import load
from harness.inputs import fresh_arguments
from harness.job import Job
from harness.losses import default_loss, own_loss
from harness.modes import modes, modes_put_back
from harness.norms import NormWatch, watch_norms_in_backward
from harness.sharding import whole
from harness.side_effects import SideEffects
from harness.structures import dense, tensors
from harness.trace import (
    Observations,
    Trace,
    buffers_of,
    gradients_of,
    parameters_of,
    raised_at,
    random_states,
)
from harness.wrapping import gradient_sync, synchronize_norms, wrap
from matrix.programs import AutogradGrad, Backward, Forward, OptimizerStep, Step

Watch = Callable[[Trace], AbstractContextManager[None]]
"""A context around the steps of a run, given the trace when the arm is installed."""


def execute(
    job: Job,
    arm: str,
    rank: int,
    *,
    watch_norms: bool = False,
    follow: Trace | None = None,
    watch: Watch | None = None,
) -> Trace:
    """Run a job's program under one arm.

    An exception ends the run; the trace says what was raised and where.

    Args:
        job: The job.
        arm: Importable name of the arm's install function.
        rank: The rank this runs on.
        watch_norms: Record the batch statistics of every norm call.
        follow: Run alone, without a wrapper, and take the parameters and buffers that each
            forward starts from out of this trace of the same job. The gradients are then those
            that this rank contributes there.
        watch: A context around the steps.

    Returns:
        What was seen.
    """
    if follow is not None:
        job = replace(job, program=replace(job.program, wrapper="none"))
    try:
        with modes_put_back():
            return _executed(job, arm, rank, watch_norms, follow, watch)
    finally:
        if job.program.compiled != "off":
            forget_compiled_code()


def _executed(
    job: Job, arm: str, rank: int, watch_norms: bool, follow: Trace | None, watch: Watch | None
) -> Trace:
    try:
        trace, execution = _prepare(job, arm, rank, watch_norms, follow)
    except Exception as error:
        return Trace(nn.Module(), raised=raised_at("set-up", error))
    try:
        with nullcontext() if watch is None else watch(trace):
            execution.start()
            for step in job.program.steps:
                execution.run(step)
            execution.finish()
    except Exception as error:
        if trace.raised is None:
            trace.raised = raised_at("end", error)
    finally:
        execution.let_go()
    return trace


def _prepare(
    job: Job, arm: str, rank: int, watch_norms: bool, follow: Trace | None
) -> tuple[Trace, _Execution]:
    # Ranks build different weights, as they do where nothing is seeded: DDP makes them equal.
    device = device_of(job.program.device, rank)
    seed_everything(job.case_seed + rank, device)
    module = load(job.factory)(**job.arguments)
    for function, value in job.configure:
        replacement = load(function)(module, value)
        module = module if replacement is None else replacement
    program = job.program
    if program.sync_norms:
        module = synchronize_norms(module, program.device)
    module.to(device).train()
    trace = Trace(module)
    keys = tuple(module.state_dict())
    trace.state_keys = (keys, keys)
    switch = load(arm)(module, **(job.arm_arguments if arm == job.arm else {}))
    watch = None
    if program.traces_boundaries:
        entry = compile_around(module, program.compiled)
    else:
        entry = module
        trace.count_calls()
        if arm == ORDINARY:
            trace.watch_reached()
            trace.norms_in_backward = watch_norms_in_backward(module)
        watch = NormWatch(module) if watch_norms else None
    if program.compiled == "inside":
        compile_inside(module)
    model = wrap(entry, program)
    return trace, _Execution(job, rank, trace, entry, model, switch, device, watch, follow)


def seed_everything(seed: int, device: torch.device) -> None:
    """Seed torch's, Python's and NumPy's global generators.

    Args:
        seed: The seed.
        device: CUDA's generator is seeded where this is a CUDA device.
    """
    # torch.manual_seed formats a stack for each kind of accelerator that is not in use, which takes
    # as long as the forward of a small block.
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)


class _Execution:
    """One run of a program: the model, its inputs and losses, and the trace being written."""

    def __init__(
        self,
        job: Job,
        rank: int,
        trace: Trace,
        entry: nn.Module,
        model: nn.Module,
        switch: Callable[[bool], None],
        device: torch.device,
        watch: NormWatch | None,
        follow: Trace | None,
    ) -> None:
        self._job = job
        self._trace = trace
        self._model = model
        self._switch = switch
        self._checkpointing = True
        self._device = device
        self._watch = watch
        self._follow = follow
        self._optimizer: torch.optim.Optimizer | None = None
        self._losses: list[Tensor] = []
        self._returned: dict[str, Tensor] = {}
        self._counts: Counter[str] = Counter()
        self._leaves: dict[str, Tensor] = {}
        self._arguments: dict[int, tuple[tuple[Any, ...], dict[str, Any]]] = {}
        for microbatch in job.program.microbatches:
            arguments, keywords, leaves = fresh_arguments(job, rank, microbatch, device)
            self._arguments[microbatch] = arguments, keywords
            self._leaves.update(leaves)
        if watch is not None:
            trace.norm_calls = watch.forwards
        self._hook = entry.register_forward_pre_hook(self._record_start)
        if follow is not None:
            self._load_parameters(follow, "set-up")
        trace.points["set-up"] = {
            "parameters": parameters_of(trace.module),
            "buffers": buffers_of(trace.module),
        }
        # Ranks draw different numbers, as they do in a real run.
        seed_everything(job.case_seed + 1 + rank, device)

    def start(self) -> None:
        """Take what the module holds now, hooks of a watch included, for no effect of a step."""
        self._effects = SideEffects(self._trace.module)

    def run(self, step: Step) -> None:
        """Run one step and record what is to be seen after it."""
        if isinstance(step, Forward):
            self._forward(step)
        elif isinstance(step, Backward):
            self._backward(step)
        elif isinstance(step, AutogradGrad):
            self._autograd_grad(step)
        else:
            self._optimizer_step(step)

    def finish(self) -> None:
        """Record what is to be seen at the end."""
        trace = self._trace
        states = {**random_states(), **self._effects.generators()}
        trace.points["end"] = {"random_state": states, "modes": modes()}
        trace.state_keys = (trace.state_keys[0], tuple(trace.module.state_dict()))

    def let_go(self) -> None:
        """Let the graphs of this run go.

        A retained one holds modules, and these, through their hooks, what holds the graph: a cycle
        that Python's collector does not see, since a part of it is autograd's.
        """
        self._hook.remove()
        self._losses.clear()
        self._returned.clear()

    def _forward(self, step: Forward) -> None:
        trace, index = self._trace, len(self._losses)
        point = f"forward[{index}]"
        with trace.point(point):
            if step.checkpointed != self._checkpointing:
                with self._effects.left_out():
                    self._switch(step.checkpointed)
                self._checkpointing = step.checkpointed
            if self._follow is not None:
                self._load_buffers(self._follow, f"start of {point}")
            before = trace.total_calls - trace.calls_in_backward
            watching = self._watch.forward() if self._watch is not None else nullcontext()
            with gradient_sync(self._model, step.synced), watching, self._autocast():
                arguments, keywords = self._arguments[step.microbatch]
                output = self._model(*arguments, **keywords)
                if isinstance(output, GeneratorType):
                    output = list(output)
                returned = tensors(output)
                loss = self._loss(output, returned, index)
            trace.forward_calls.append(trace.total_calls - trace.calls_in_backward - before)
            self._losses.append(loss)
            trace.points[point] = {
                "outputs": {str(i): dense(t).detach().clone() for i, t in enumerate(returned)},
                "losses": {str(index): loss.detach().clone()},
                **self._state(),
            }

    def _record_start(self, module: nn.Module, arguments: Any) -> None:
        point = f"start of forward[{len(self._losses)}]"
        self._trace.points.setdefault(point, {"buffers": buffers_of(self._trace.module)})

    def _backward(self, step: Backward) -> None:
        with self._trace.point(self._point("backward")), gradient_sync(self._model, step.synced):
            torch.autograd.backward(self._summed(step.forwards), retain_graph=step.retain_graph)
            self._record_backward({})

    def _autograd_grad(self, step: AutogradGrad) -> None:
        parameters = dict(self._trace.module.named_parameters())
        targets = {
            **{f"inputs.{name}": leaf for name, leaf in self._leaves.items()},
            **{name: value for name, value in parameters.items() if value.requires_grad},
        }
        with self._trace.point(self._point("backward")):
            gradients = torch.autograd.grad(
                self._summed(step.forwards), list(targets.values()), allow_unused=True
            )
            returned: dict[str, Tensor | None] = dict(zip(targets, gradients, strict=True))
            for name, gradient in returned.items():
                if gradient is not None and name in parameters:
                    known = self._returned.get(name)
                    self._returned[name] = gradient if known is None else known + gradient
            self._record_backward(returned)

    def _record_backward(self, returned: dict[str, Tensor | None]) -> None:
        self._trace.points[self._point("backward")] = {
            "gradients": gradients_of(self._trace.module),
            "returned_gradients": {
                name: None if gradient is None else dense(gradient)
                for name, gradient in returned.items()
            },
            "input_gradients": {
                name: None if leaf.grad is None else dense(leaf.grad).detach().clone()
                for name, leaf in self._leaves.items()
            },
            **self._state(),
        }
        self._counts["backward"] += 1

    def _optimizer_step(self, step: OptimizerStep) -> None:
        module, point = self._trace.module, self._point("step")
        with self._trace.point(point):
            if self._follow is not None:
                self._load_parameters(self._follow, point)
                module.zero_grad()
            else:
                for name, parameter in module.named_parameters():
                    if name in self._returned:
                        parameter.grad = self._returned[name]
                parameters = list(module.parameters())
                if self._optimizer is None and parameters:
                    self._optimizer = torch.optim.SGD(
                        parameters, lr=step.learning_rate, momentum=step.momentum
                    )
                if self._optimizer is not None:
                    self._optimizer.step()
                    self._optimizer.zero_grad()
            self._returned = {}
            self._trace.points[point] = {
                "parameters": parameters_of(module),
                "momenta": self._momenta(),
                **self._state(),
            }
            self._counts["step"] += 1

    def _state(self) -> Observations:
        return {
            "buffers": buffers_of(self._trace.module),
            "attributes": self._effects.attributes(),
            "rebound": dict(self._effects.rebound()),
        }

    def _momenta(self) -> dict[str, Tensor | None]:
        if self._optimizer is None:
            return {}
        momenta = {
            name: self._optimizer.state.get(parameter, {}).get("momentum_buffer")
            for name, parameter in self._trace.module.named_parameters()
        }
        return whole({name: None if m is None else dense(m) for name, m in momenta.items()})

    def _load_parameters(self, source: Trace, point: str) -> None:
        values = source.points[point]["parameters"]
        for name, parameter in self._trace.module.named_parameters():
            parameter.data.copy_(values[name])

    def _load_buffers(self, source: Trace, point: str) -> None:
        values = source.points[point]["buffers"]
        for name, buffer in self._trace.module.named_buffers():
            # .data: an earlier graph may have saved the buffer, as DDP's own copies allow.
            buffer.data.copy_(values[name])

    def _point(self, kind: str) -> str:
        return f"{kind}[{self._counts[kind]}]"

    def _summed(self, forwards: tuple[int, ...]) -> Tensor:
        return torch.stack([self._losses[index] for index in forwards]).sum()

    def _autocast(self) -> AbstractContextManager[Any]:
        dtype = self._job.program.autocast
        return torch.autocast(self._device.type, getattr(torch, dtype)) if dtype else nullcontext()

    def _loss(self, output: Any, returned: list[Tensor], index: int) -> Tensor:
        if self._job.loss is not None:
            return own_loss(self._job.loss, output)
        generator = torch.Generator().manual_seed(self._job.case_seed + index)
        return default_loss(returned, generator)
