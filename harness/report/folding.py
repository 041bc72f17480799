"""Text on a terminal that is narrower than its lines: broken between words, never inside a name."""

from __future__ import annotations

import re
from textwrap import TextWrapper
from typing import Any

from rich.console import Console

_INDENT = 4
_WHOLE = ("ckpt-lab ", "to train like this: ")
"""What a line has in it that is there to be copied; the terminal itself breaks such a line."""


class _Wrapper(TextWrapper):
    # Case ids, exclusions and lists have commas and bars where others have spaces.
    wordsep_re = re.compile(r"(\s+|(?<=[,|])(?=\S))")


def fold(text: str, width: int) -> str:
    """Break lines at spaces and after commas and bars, so that none is longer than need be.

    Args:
        text: Lines. Those that hold a command stay whole.
        width: Columns of the terminal.

    Returns:
        The lines, what is continued indented below its beginning.
    """
    return "\n".join(_folded(line, width) for line in text.split("\n"))


def _folded(line: str, width: int) -> str:
    if len(line) <= width or any(command in line for command in _WHOLE):
        return line
    indent = " " * (len(line) - len(line.lstrip()) + _INDENT)
    wrapper = _Wrapper(
        width,
        subsequent_indent=indent,
        break_long_words=False,
        replace_whitespace=False,
        expand_tabs=False,
    )
    return "\n".join(wrapper.wrap(line))


class FoldingConsole(Console):
    """A console that folds what is printed on a terminal, and leaves it as it is elsewhere."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print, as the base class does.

        Args:
            *objects: As the base class takes them; only strings are folded.
            **options: As the base class takes them.
        """
        if self.is_terminal:
            objects = tuple(fold(o, self.width) if isinstance(o, str) else o for o in objects)
        super().print(*objects, **options)
