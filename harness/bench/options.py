"""An option of the command line whose value may be left out."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

JSON = "--json"


class OptionalJsonFile(TyperCommand):
    """A command whose `--json` means standard output unless `-` or a .json file follows."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Give a bare `--json` its value."""
        given: list[str] = []
        for index, argument in enumerate(args):
            given.append(argument)
            following = args[index + 1] if index + 1 < len(args) else ""
            if argument == JSON and following != "-" and not following.endswith(".json"):
                given.append("-")
        return super().parse_args(ctx, given)
