"""The lab: runs the cases of a matrix on local ranks and judges what each rank saw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.verification.report import Report

__all__ = ["verify"]


def verify(
    model_factory: Any,
    inputs: Any = None,
    *,
    ranks: int = 2,
    boundaries: str | type | Sequence[str | type] = (),
    axes: str | Sequence[str] = (),
    loss: Any = None,
    preserve: bool = False,
    suggest: bool = False,
    budget: int | None = None,
    seed: int = 0,
    device: str = "cpu",
    case_timeout: float = 120.0,
) -> Report:
    """Say whether it is safe to checkpoint a model, and if not, what to do.

    What is given by name, or can be imported by its name, is judged on ``ranks`` local processes,
    and under DDP. A closure, a lambda or a value cannot be sent there: then everything runs in this
    process, without the distributed axes.

    Args:
        model_factory: A callable or class that returns a new model; or a name, as on the command
            line: ``"package.module:callable"``, ``"file.py:name"``, a class of Transformers.
        inputs: What the model's forward is given: a dict of keywords, a tuple of arguments, one
            argument, or a callable or name that makes them and gets ``seed`` if it takes one. None
            for a model that a library knows by name.
        ranks: Number of local ranks.
        boundaries: Classes or their names, or patterns of paths such as ``"layers.*"``, that become
            boundaries; one or several. Without them the model's own gradient checkpointing is
            judged, or blocks are proposed.
        axes: ``"name=v1,v2"`` narrows an axis to some values.
        loss: ``function(output)`` that returns a tensor with one element, or its name; by default
            random weights on everything that the model returns.
        preserve: Judge the model's own checkpointing after ``wcn_ckpt.preserve_replay_state``.
        suggest: Measure candidates for boundaries too.
        budget: With ``suggest``: bytes that may be kept for backward.
        seed: Seed of weights and data.
        device: ``cpu`` or ``cuda``.
        case_timeout: Seconds until a case counts as hung, where there are ranks.

    Returns:
        The report; ``print(report.text)``. What is wrong with the arguments is in it too.

    Raises:
        RuntimeError: If a rank imports the file that calls this at its top level.
        harness.ranks.RankStartError: If no ranks can be started.
    """
    from harness.verification.request import VerifyRequest
    from harness.verification.verifying import verify_request

    request = VerifyRequest(
        target=model_factory,
        inputs=inputs,
        ranks=ranks,
        boundaries=tuple(map(_name, _several(boundaries))),
        axes=_several(axes),
        loss=loss,
        preserve=preserve,
        suggest=suggest,
        budget=budget,
        seed=seed,
        device=device,
        case_timeout=case_timeout,
    )
    return verify_request(request)


def _several(given: Any) -> tuple[Any, ...]:
    return (given,) if isinstance(given, str | type) else tuple(given)


def _name(boundary: str | type) -> str:
    return boundary if isinstance(boundary, str) else boundary.__name__
