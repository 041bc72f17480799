"""Wrong calls: one line on standard error that says what is wrong, and exit status 2."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperGroup

from matrix.choices import nearest, no_such

WRONG_CALL = 2
"""Exit status of a call that is wrong."""

INTERRUPTED = 130
"""Exit status of a run that was interrupted."""

NO_RANKS = 3
"""Exit status of a run whose ranks could not be started."""

_PREFIX = "Invalid value: "
# typer has a copy of click, or click itself, whose base class for wrong calls it does not export.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]


class OneLineErrors(TyperGroup):
    """Commands that tell of a wrong call in one line."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run a command, as its base class does.

        Args:
            *args: As the base class takes them.
            **kwargs: As the base class takes them.
        """
        if not kwargs.get("standalone_mode", True):
            return super().main(*args, **kwargs)
        try:
            status = super().main(*args, **{**kwargs, "standalone_mode": False})
        except _UsageError as error:
            typer.echo(one_line(error), err=True)
            status = WRONG_CALL
        sys.exit(status or 0)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that is called, as its base class does; name all where it is none."""
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            ctx.fail(no_such("command", args[0], self.list_commands(ctx)))
        return super().resolve_command(ctx, args)


@contextmanager
def bad_values_are_usage_errors() -> Iterator[None]:
    """Let an error about a value of the call end it in one line."""
    try:
        yield
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def status_of(run: Callable[[], int]) -> int:
    """Return the exit status of something that runs cases.

    Args:
        run: What runs them and returns its own status.

    Returns:
        Its status, or that of an interrupt or of ranks that could not be started.

    Raises:
        typer.BadParameter: If the arm that it judges cannot be loaded.
    """
    from harness.ranks import RankStartError
    from harness.runner import ArmError

    try:
        return run()
    except ArmError as error:
        raise typer.BadParameter(str(error)) from None
    except RankStartError as error:
        typer.echo(f"the ranks could not be started: {error}", err=True)
        return NO_RANKS
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        return INTERRUPTED


def one_line(error: Any) -> str:
    """Return what is wrong with a call.

    Args:
        error: A usage error of typer's.

    Returns:
        The command, what is wrong, and the nearest option where there is no such option.
    """
    context = error.ctx
    message = " ".join(error.format_message().split()).removeprefix(_PREFIX)
    wanted = getattr(error, "option_name", None)
    if wanted is not None and message.startswith("No such option"):
        options = [name for option in context.command.params for name in option.opts]
        near = nearest(wanted, [name for name in options if name.startswith("-")])
        message = f"no option {wanted!r}" + (f"; did you mean {near!r}?" if near else "")
    command = "ckpt-lab" if context is None else context.command_path
    help_hint = f" (see '{command} --help')" if type(error) is not typer.BadParameter else ""
    return f"{command}: {message}{help_hint}"


def whole_number(least: int, most: int | None = None) -> Callable[[str], int]:
    """Return a reader of whole numbers within bounds.

    Args:
        least: The smallest that is taken.
        most: The largest that is taken; None for no bound.
    """
    bounds = f"of at least {least}" if most is None else f"from {least} to {most}"

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if number < least or (most is not None and number > most):
            raise typer.BadParameter(f"{text!r} is not a whole number {bounds}")
        return number

    return read


def seconds(text: str) -> float:
    """Read a time in seconds.

    Args:
        text: What was typed.

    Raises:
        typer.BadParameter: If it is no number of at least 0.1.
    """
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0.1 <= number < float("inf"):
        raise typer.BadParameter(f"{text!r} is not a number of seconds of at least 0.1")
    return number
