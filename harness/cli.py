"""The command line: ``ckpt-lab``, also ``python -m harness``.

Nothing here, and nothing it imports, imports ``torch``: that happens on the ranks.
"""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer

from harness.bench.options import OptionalJsonFile
from harness.compare_command import compare
from harness.list_command import list_cases
from harness.options import (
    AxisValues,
    CaseTimeout,
    OptionalArmName,
    OptionalBackend,
    OptionalDevice,
    Ranks,
    Seed,
    Seeds,
    Subjects,
    Suite,
    folder_name,
)
from harness.output import LastingStream, keep_streams
from harness.ranks.launch import take_launch
from harness.replay_command import replay
from harness.scale_commands import merge, predict
from harness.sensitivity_command import sensitivity
from harness.shrink_command import shrink
from harness.termination import interrupt_when_terminated
from harness.usage import (
    INTERRUPTED,
    WRONG_CALL,
    OneLineErrors,
    bad_values_are_usage_errors,
    whole_number,
)
from harness.verification.command import verify

app = typer.Typer(
    cls=OneLineErrors,
    help="Runs checkpointed training steps against ordinary ones on local ranks, and judges them.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # boxes break messages into pieces that cannot be searched for
)


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    if version:
        typer.echo(f"ckpt-lab {_version()}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(WRONG_CALL)


@app.command()
def run(
    suite: Suite = "smoke",
    subject: Subjects = None,
    axis: AxisValues = None,
    arm: OptionalArmName = None,
    ranks: Ranks = None,
    group_size: Annotated[
        int | None,
        typer.Option(
            "--group-size",
            parser=whole_number(1),
            metavar="N",
            help="Run each case on this many ranks, groups side by side.",
        ),
    ] = None,
    shard: Annotated[
        str | None,
        typer.Option("--shard", metavar="I/N", help="Run part I of N that take equally long."),
    ] = None,
    times: Annotated[
        Path | None,
        typer.Option("--times", metavar="FOLDER", help="Cut shards by the times recorded there."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            parser=folder_name,
            metavar="FOLDER",
            help="Results folder; a fresh one by default.",
        ),
    ] = None,
    seed: Seed = 0,
    seeds: Seeds = 1,
    device: OptionalDevice = None,
    backend: OptionalBackend = None,
    case_timeout: CaseTimeout = 60.0,
    baseline: Annotated[
        Path | None,
        typer.Option("--baseline", help="JSON file of known findings, each with its reason."),
    ] = None,
    last_failed: Annotated[
        bool,
        typer.Option(
            "--last-failed",
            help="Run what was not as expected in the latest run, with its arm, seeds, device, "
            "backend and ranks; --subject and --axis narrow it.",
        ),
    ] = False,
    stop_early: Annotated[
        bool, typer.Option("-x", help="Stop after the first case that is not ok.")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in --out; skip what is done.")
    ] = False,
    checklist: Annotated[
        bool | None,
        typer.Option(
            "--checklist/--no-checklist",
            help="Answer the six points of the checklist for each family, which measures a step "
            "of each; by default where nothing narrows the suite.",
        ),
    ] = None,
) -> None:
    """Run a suite and write a report.

    Exit status: 0 all as expected; 1 a case differs, never replayed or raised; 2 the call is
    wrong; 3 a case hung or a rank crashed; 130 interrupted.
    """
    from harness.baseline import BaselineError
    from harness.commands import run_suite
    from harness.ranks import RankStartError
    from harness.request import RunRequest, judging_options
    from harness.runner import ArmError
    from harness.shards import Shard
    from harness.store import StoreError

    if resume and out is None:
        raise typer.BadParameter("--resume needs --out: the folder to continue")
    with bad_values_are_usage_errors():
        judging = judging_options(
            last_failed,
            arm=arm,
            ranks=ranks,
            group_size=group_size,
            device=device,
            backend=backend,
        )
        request = RunRequest(
            suite=suite,
            subjects=tuple(subject or ()),
            axes=tuple(axis or ()),
            shard=None if shard is None else Shard.parse(shard),
            times=times,
            out=out,
            seed=seed,
            seeds=seeds,
            case_timeout=case_timeout,
            stop_early=stop_early,
            resume=resume,
            baseline=baseline,
            last_failed=last_failed,
            checklist=checklist,
            **judging,
        )
        selections = request.select()
    if not selections:
        typer.echo("nothing to run: none of these cases failed in the latest run")
        return
    try:
        status = run_suite(request, selections)
    except (StoreError, BaselineError, ArmError) as error:
        raise typer.BadParameter(str(error)) from None
    except RankStartError as error:
        typer.echo(f"the ranks could not be started: {error}", err=True)
        status = 3
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        status = INTERRUPTED
    raise typer.Exit(status)


app.command("list")(list_cases)
for _command in (replay, shrink, compare, sensitivity):
    app.command()(_command)


@app.command(cls=OptionalJsonFile)
def faults(
    fault: Annotated[
        list[str] | None,
        typer.Option("--fault", metavar="NAME", help="Only this fault; repeatable."),
    ] = None,
    ranks: Annotated[int, typer.Option("--ranks", help="Number of local ranks, at least 2.")] = 2,
    seed: Seed = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            parser=folder_name,
            metavar="FOLDER",
            help="Write faults.json and tables there.",
        ),
    ] = None,
    json_file: Annotated[
        str | None,
        typer.Option(
            "--json",
            metavar="[FILE.json]",
            help="Write a JSON document; to standard output without a file, or with -.",
        ),
    ] = None,
    kill_matrix: Annotated[
        str | None,
        typer.Option(
            "--kill-matrix",
            metavar="SUITE",
            help="Count the cases of this suite that see each fault: smoke or pr.",
        ),
    ] = None,
    sample: Annotated[
        int | None,
        typer.Option(
            "--sample", metavar="N", help="Try at most N cases of the suite with each fault."
        ),
    ] = None,
    only_list: Annotated[
        bool, typer.Option("--list", help="List the faults: name, kind, what is broken.")
    ] = False,
) -> None:
    """Break checkpointing on purpose, and check that the lab catches and names each fault.

    Exit status: 0 every fault is caught and rightly named; 1 one is not, or changes nothing; 2 the
    call is wrong; 3 the ranks could not be started; 130 interrupted.
    """
    from harness.faults.command import list_faults, run_faults
    from harness.ranks import RankStartError

    with bad_values_are_usage_errors():
        if only_list:
            list_faults(fault or ())
            return
        try:
            status = run_faults(
                fault or (),
                ranks=ranks,
                seed=seed,
                out=out,
                json_file=json_file,
                suite=kill_matrix,
                sample=sample,
            )
        except RankStartError as error:
            typer.echo(f"the ranks could not be started: {error}", err=True)
            status = 3
        except KeyboardInterrupt:
            typer.echo("interrupted", err=True)
            status = INTERRUPTED
    raise typer.Exit(status)


@app.command(cls=OptionalJsonFile)
def bench(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="Benchmarks to run; see --list."),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option("--group", help="All benchmarks of a group: quick, the default, or long."),
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option("--samples", min=1, help="Samples of each, instead of its own number."),
    ] = None,
    json_file: Annotated[
        Path | None,
        typer.Option(
            "--json",
            metavar="[FILE.json]",
            help="Write a JSON document; to standard output without a file, or with -.",
        ),
    ] = None,
    plots: Annotated[
        Path | None,
        typer.Option("--plots", parser=folder_name, metavar="FOLDER", help="Draw plots there."),
    ] = None,
    only_list: Annotated[
        bool, typer.Option("--list", help="List the benchmarks with their goals.")
    ] = False,
) -> None:
    """Measure what checkpointing and the lab cost, each figure against its limit in one run.

    The interval of a figure decides whether it reaches its goal. Exit status: 0; 2 the call is
    wrong; 3 a figure could not be measured; 130 interrupted.
    """
    from harness.bench.command import run_bench, show_list

    if only_list:
        show_list()
        return
    with bad_values_are_usage_errors():
        status = run_bench(names or (), group, samples, json_file, plots)
    raise typer.Exit(status)


app.command()(verify)
app.command()(merge)
app.command()(predict)


def _version() -> str:
    try:
        return metadata.version("wcn-ckpt")
    except metadata.PackageNotFoundError:  # run from a checkout that is not installed
        from wcn_ckpt import __version__

        return __version__


def main() -> None:
    """Run the command line; under torchrun, on rank 0, while the other ranks run its cases.

    A reader of the output that leaves early changes nothing. Where output is lost otherwise, a
    status that would be 0 is 2.
    """
    output = keep_streams()
    launch = take_launch()
    if launch is None:
        raise SystemExit(_main(output))
    from harness.ranks.torchrun import run_as_rank

    run_as_rank(launch, lambda: _main(output))


def _main(output: LastingStream | None) -> int:
    interrupt_when_terminated()
    try:
        app(prog_name="ckpt-lab")
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    else:
        status = 0
    sys.stdout.flush()
    if output is None or output.error is None:
        return status
    typer.echo(f"standard output was lost: {output.error}", err=True)
    return status or 2
