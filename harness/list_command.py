"""The command ``ckpt-lab list``."""

from __future__ import annotations

from typing import Annotated

import typer

from harness.options import AxisValues, Device, Seed, Seeds, Subjects, Suite
from harness.usage import bad_values_are_usage_errors


def list_cases(
    suite: Suite = "smoke",
    subject: Subjects = None,
    axis: AxisValues = None,
    seed: Seed = 0,
    seeds: Seeds = 1,
    device: Device = "cpu",
    axes: Annotated[
        bool, typer.Option("--axes", help="Print every axis, and what is no case and why.")
    ] = False,
    boundaries: Annotated[
        bool,
        typer.Option("--boundaries", help="Print every boundary, and the cases that prove it."),
    ] = False,
    package: Annotated[
        list[str] | None,
        typer.Option(
            "--package",
            help="With --boundaries: look through this installed package too; repeatable. "
            "warpconvnet is looked through wherever it is installed.",
        ),
    ] = None,
    count: Annotated[
        bool,
        typer.Option(
            "--count", help="Print the number of cases, how long they take and what they cover."
        ),
    ] = False,
) -> None:
    """List the cases of a suite."""
    from harness.report.terminal import make_console

    if axes:
        from harness.axes_page import axes_page

        make_console().print(axes_page(), end="")
        return
    from harness.commands import count_text
    from harness.request import SuiteRequest

    with bad_values_are_usage_errors():
        request = SuiteRequest(
            suite=suite,
            subjects=tuple(subject or ()),
            axes=tuple(axis or ()),
            seed=seed,
            seeds=seeds,
            device=device,
        )
        selections = request.select()
        if count:
            make_console().print(count_text(selections))
            return
    if boundaries or package:
        from harness.boundaries import boundaries_page, packages_to_read

        cases = {case.id: case for s in selections.values() for case in s.cases}
        try:
            packages = packages_to_read(package or ())
            make_console().print(boundaries_page(cases.values(), suite, packages), end="")
        except ModuleNotFoundError as error:
            raise typer.BadParameter(f"--package: {error}") from None
        return
    for case_id in dict.fromkeys(case.id for s in selections.values() for case in s.cases):
        typer.echo(case_id)
