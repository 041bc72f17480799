"""The command ``ckpt-lab verify``. Nothing here imports torch: that happens on the ranks."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from harness.verification.axes import CHOSEN_AXES
from harness.verification.naming import TargetError, check_target
from harness.verification.request import VerifyRequest, parse_bytes
from matrix.choices import no_such

_AXES = ", ".join(axis.name for axis in CHOSEN_AXES)
_DEVICES = ("cpu", "cuda")
_BROKEN = 3
_INTERRUPTED = 130


def verify(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="The model: 'package.module:callable', 'file.py:name', or the name of a class of "
            "Transformers, which is built tiny with random weights, or of a model of timm or "
            "torchvision.",
        ),
    ],
    inputs: Annotated[
        str | None,
        typer.Option(
            "--inputs",
            metavar="TARGET",
            help="Its inputs, or a callable that makes them and gets 'seed' if it takes one. A "
            "dict is keywords, a tuple several arguments. A model of a library has its own.",
        ),
    ] = None,
    boundary: Annotated[
        list[str] | None,
        typer.Option(
            "--boundary",
            metavar="CLASS-OR-GLOB",
            help="Make these modules boundaries: a class, or a pattern of paths such as "
            "'layers.*'; '.' is the model itself; repeatable. By default the model's own gradient "
            "checkpointing is judged, or its repeated blocks are made boundaries.",
        ),
    ] = None,
    axis: Annotated[
        list[str] | None,
        typer.Option(
            "--axis",
            metavar="NAME=V1,V2",
            help=f"Narrow an axis to these values; repeatable. Axes: {_AXES}.",
        ),
    ] = None,
    loss: Annotated[
        str | None,
        typer.Option(
            "--loss",
            metavar="MODULE:FUNCTION",
            help="Makes a loss of what the model returns; random weights on all of it by default.",
        ),
    ] = None,
    preserve: Annotated[
        bool,
        typer.Option(
            "--preserve",
            help="Judge the model's own checkpointing after wcn_ckpt.preserve_replay_state(model).",
        ),
    ] = False,
    suggest: Annotated[
        bool,
        typer.Option(
            "--suggest", help="Measure candidates for boundaries, and sets of them that grow."
        ),
    ] = False,
    budget: Annotated[
        str | None,
        typer.Option(
            "--budget",
            metavar="SIZE",
            help="With --suggest: pick the fastest set that keeps no more than this for backward, "
            "as in 8GiB.",
        ),
    ] = None,
    ranks: Annotated[int, typer.Option("--ranks", min=1, help="Number of local ranks.")] = 2,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of weights and data.")] = 0,
    device: Annotated[
        str, typer.Option("--device", help="Where the model is: cpu or cuda.")
    ] = "cpu",
    case_timeout: Annotated[
        float, typer.Option("--case-timeout", min=0.1, help="Seconds until a case counts as hung.")
    ] = 120.0,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FOLDER", help="Write the reports to this folder too."),
    ] = None,
) -> None:
    """Say whether it is safe to checkpoint a model, and if not, what to do.

    Exit status: 0 all checks pass; 1 there is a finding; 2 the call is wrong; 3 a case hung or a
    rank crashed; 130 interrupted.
    """
    # A name like 'my_package.models:build' is looked for from here, as 'python -m' does.
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        check_target(target, "TARGET")
        if inputs is not None:
            check_target(inputs, "--inputs")
        elif ":" in target:
            raise TargetError("--inputs is missing: name what the model's forward is to be given")
        if loss is not None:
            check_target(loss, "--loss")
        if budget is not None and not suggest:
            suggest = True
        size = None if budget is None else parse_bytes(budget)
        if device not in _DEVICES:
            raise ValueError(no_such("device", device, _DEVICES))
        if device != "cpu":
            from harness.request import check_device

            check_device(device, "auto", ranks)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    request = VerifyRequest(
        target=target,
        inputs=inputs,
        ranks=ranks,
        boundaries=tuple(boundary or ()),
        axes=tuple(axis or ()),
        loss=loss,
        preserve=preserve,
        suggest=suggest,
        budget=size,
        out=out,
        seed=seed,
        device=device,
        case_timeout=case_timeout,
    )
    raise typer.Exit(_run(request))


def _run(request: VerifyRequest) -> int:
    from harness.ranks import RankStartError
    from harness.report.terminal import make_console
    from harness.store import Store, StoreError
    from harness.verification.files import write_files
    from harness.verification.progress import progress_on
    from harness.verification.verifying import verify_request

    console = make_console()
    with ExitStack() as stack:
        try:
            store = (
                None
                if request.out is None
                else stack.enter_context(Store(request.out, request.asked))
            )
        except StoreError as error:
            raise typer.BadParameter(str(error)) from None
        try:
            report = verify_request(request, progress_on(console))
        except RankStartError as error:
            typer.echo(f"the ranks could not be started: {error}", err=True)
            return _BROKEN
        except KeyboardInterrupt:
            typer.echo("interrupted", err=True)
            return _INTERRUPTED
        if report.bad_call:
            raise typer.BadParameter(report.problem)
        console.print(report.text)
        if store is not None:
            console.print(f"report: {write_files(store, report, request)}")
    return report.exit_status
