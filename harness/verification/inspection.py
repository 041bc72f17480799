"""Looks at a model before anything is judged: can it train, what has it got, which axes apply."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from harness.devices import device_of
from harness.inputs import as_call
from harness.losses import default_loss, own_loss
from harness.ranks.context import RankContext
from harness.structures import tensors, with_tensors
from harness.verification import own_calls, randomness
from harness.verification.boundaries import candidates
from harness.verification.building import model
from harness.verification.flags import own_flag
from harness.verification.inspected import OWN_CALLS, Inspection, Problem, Question
from harness.verification.naming import TargetError, error_text
from harness.verification.targets import build_inputs
from wcn_ckpt.checkpointing.refusals import loaded_class, why_not_checkpointable

_WRAPPERS = (
    ("torch.nn.parallel", "DistributedDataParallel"),
    ("torch.nn", "DataParallel"),
    ("torch.distributed.fsdp", "FullyShardedDataParallel"),
    ("torch._dynamo.eval_frame", "OptimizedModule"),
)
"""What stands around a model, by name: it may not be loaded."""


def inspect(question: Question, context: RankContext) -> Inspection | Problem:
    """Look at a model; a task for :meth:`harness.ranks.RankPool.run`.

    Args:
        question: What to look at.
        context: The rank this runs on.

    Returns:
        What it has, or why it cannot be judged.
    """
    device = device_of(question.device, context.rank)
    try:
        built = model(target=question.target, inputs_target=question.inputs_target)
        if (wrapper := _wrapper(built)) is not None:
            return wrapper
        given = build_inputs(question.inputs_target, question.target, 0)
        flag = own_flag(built)
        found = tuple(candidates(built))
        draws = randomness.draws(built)
        randomness.dropout(built, "off")
        built.to(device).train()
    except TargetError as error:
        cause = error.__cause__
        detail = "".join(traceback.format_exception(cause)) if cause else ""
        return Problem(text=str(error), bad_call=True, detail=detail)
    except Exception as error:
        return _raised("the model could not be prepared:", error, bad_call=True)
    try:
        model(
            target=question.target,
            inputs_target=question.inputs_target,
            boundaries=question.boundaries,
        )
    except TargetError as error:
        return Problem(text=str(error), bad_call=True)
    except ValueError as error:
        return Problem(text=f"--boundary: {error}", bad_call=True)
    with own_calls.counted() as calls:
        step = _ordinary_step(built, given, question.loss, device)
    if isinstance(step, Problem):
        return step
    return Inspection(
        name=type(built).__name__,
        flag=OWN_CALLS if flag is None and calls else flag,
        candidates=found,
        refusal=why_not_checkpointable(built) or "",
        parameters=sum(p.numel() for p in built.parameters() if p.requires_grad),
        batch_norms=any(
            isinstance(child, _BatchNorm) and child.training for child in built.modules()
        ),
        draws=draws,
        unused_parameters=tuple(
            name for name, p in built.named_parameters() if p.requires_grad and p.grad is None
        ),
        foreign_inputs=step,
    )


def _ordinary_step(
    built: nn.Module, given: Any, loss_name: Any, device: torch.device
) -> bool | Problem:
    """Run one ordinary forward and backward; tell whether an input requires grad."""

    def fresh(tensor: Tensor) -> Tensor:
        return tensor.detach().to(device, copy=True).requires_grad_(tensor.requires_grad)

    try:
        positional, keywords = as_call(with_tensors(given, fresh))
        leaves = tensors([*positional, *keywords.values()])
    except Exception as error:
        return _raised("the inputs cannot be copied", error, bad_call=True)
    trainable = any(value.requires_grad for value in built.parameters())
    wanted = any(leaf.requires_grad for leaf in leaves)
    if not trainable and not wanted:
        return Problem(
            text="there is nothing to train: no parameter and no input requires grad, so there is "
            "no backward and checkpointing does nothing; let a parameter or an input require grad",
            bad_call=False,
        )
    try:
        output = built(*positional, **keywords)
        output = list(output) if _is_generator(output) else output
        returned = tensors(output)
    except Exception as error:
        return _raised("an ordinary forward, without checkpointing, raised", error, bad_call=False)
    try:
        if loss_name is None:
            loss = default_loss(returned, torch.Generator().manual_seed(0))
        else:
            loss = own_loss(loss_name, output)
    except (TypeError, ValueError) as error:
        option = "" if loss_name is None else "--loss: "
        return Problem(text=f"{option}{error}", bad_call=loss_name is not None)
    except Exception as error:
        return _raised("the loss raised", error, bad_call=loss_name is not None)
    if not loss.requires_grad:
        return Problem(
            text=f"no output carries a gradient: {_outputs_text(returned)}; there is no backward "
            "and checkpointing does nothing; give a loss with --loss, or check for no_grad and "
            "detach in the model",
            bad_call=False,
        )
    try:
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    except Exception as error:
        return _raised("an ordinary backward, without checkpointing, raised", error, bad_call=False)
    if _all_broken([*built.parameters(), *leaves]):
        return Problem(
            text=f"every gradient of an ordinary step is inf or nan (its loss is {loss.item()}), "
            "and such numbers show no difference; give inputs or a loss with which it trains",
            bad_call=False,
        )
    return wanted


def _all_broken(leaves: Sequence[Tensor]) -> bool:
    gradients = [leaf.grad for leaf in leaves if leaf.grad is not None and leaf.grad.numel()]
    return bool(gradients) and not any(map(_has_finite, gradients))


def _has_finite(gradient: Tensor) -> bool:
    values = gradient.coalesce().values() if gradient.is_sparse else gradient
    return bool(values.isfinite().any())


def _wrapper(built: nn.Module) -> Problem | None:
    """Refuse a model that is inside something that the lab puts around models itself."""
    for python_module, name in _WRAPPERS:
        kind = loaded_class(python_module, name)
        if kind is not None and isinstance(built, kind):
            what = "compiled by torch.compile" if name == "OptimizedModule" else f"inside {name}"
            return Problem(
                text=f"the model is {what} already; name the model without it (--axis wrapper=ddp "
                "judges it under DistributedDataParallel)",
                bad_call=True,
            )
    return None


def _is_generator(output: Any) -> bool:
    return hasattr(output, "gi_frame")


def _outputs_text(returned: Sequence[Tensor]) -> str:
    kinds = sorted({str(tensor.dtype).removeprefix("torch.") for tensor in returned})
    return f"the model returned {len(returned)} tensors ({', '.join(kinds)})"


def _raised(what: str, error: Exception, *, bad_call: bool) -> Problem:
    return Problem(
        text=f"{what} {error_text(error)}; make that work first",
        bad_call=bad_call,
        detail="".join(traceback.format_exception(error)),
    )
