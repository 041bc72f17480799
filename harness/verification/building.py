"""What the ranks build for a case of verify: the model of a target, and its inputs."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from harness.inputs import as_call
from harness.verification.boundaries import matching
from harness.verification.flags import own_flag, switch_own_flag
from harness.verification.naming import TargetError
from harness.verification.own_calls import OwnCalls
from harness.verification.targets import build_inputs, build_model
from matrix import configure
from wcn_ckpt import make_checkpointable


def model(
    *, target: Any, inputs_target: Any, boundaries: tuple[str, ...] = (), own_calls: bool = False
) -> nn.Module:
    """Build the model of a target for a case.

    Args:
        target: What was named.
        inputs_target: What the inputs were named by; a lazy model is run on them once.
        boundaries: Patterns of modules that become boundaries, enabled. Empty for a model with
            gradient checkpointing of its own, which is then off, save for blocks of wcn_ckpt.
        own_calls: Whether it calls torch's checkpoint without a switch; these calls are then off.

    Raises:
        TargetError: If it cannot be built, or a pattern matches nothing.
        ValueError: If what a pattern matches cannot be a boundary; the message says why.
    """
    built = build_model(target)
    materialize(built, inputs_target, target)
    if own_calls:
        OwnCalls(built)
    flag = own_flag(built)
    if flag is not None and flag != "wcn_ckpt":
        switch_own_flag(built, False)
    if boundaries:
        chosen = matching(built, boundaries)
        if not chosen:
            classes = sorted({type(child).__name__ for child in built.modules()})
            raise TargetError(
                f"--boundary {' '.join(boundaries)} matches no module; classes in the model: "
                f"{', '.join(classes)}"
            )
        identities = {id(child) for child in chosen.values()}
        make_checkpointable(built, lambda module: id(module) in identities, use_checkpoint=True)
    elif flag == "wcn_ckpt":
        switch_own_flag(built, True)
    return built


def inputs(
    *, seed: int, rank: int, microbatch: int, target: Any, model_target: Any, **_: Any
) -> Any:
    """Make the inputs of a target, others for each rank and microbatch where it draws them.

    Args:
        seed: Seed of the run.
        rank: The rank they are for.
        microbatch: Number of the microbatch.
        target: What was named.
        model_target: What the model was named by.
    """
    digest = hashlib.sha256(f"{seed}:{rank}:{microbatch}".encode()).digest()
    return build_inputs(target, model_target, int.from_bytes(digest[:4], "big"))


def materialize(module: nn.Module, inputs_target: Any, model_target: Any) -> None:
    """Give the lazy parameters of a model their shapes: one forward in eval mode.

    Args:
        module: The model.
        inputs_target: What its inputs were named by.
        model_target: What it was named by.
    """
    if not any(is_lazy(value) for value in (*module.parameters(), *module.buffers())):
        return
    given = build_inputs(inputs_target, model_target, 0)
    positional, keywords = as_call(given)
    was_training = module.training
    module.eval()
    with torch.no_grad():
        module(*positional, **keywords)
    module.train(was_training)


def bn_momentum(module: nn.Module, momentum: float | str | None) -> None:
    """Set the momentum of every BatchNorm, or leave it.

    Args:
        module: The model.
        momentum: Weight of the newest batch; None for the cumulative average.
    """
    if not isinstance(momentum, str):
        configure.bn_momentum(module, momentum)
