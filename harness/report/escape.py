"""Makes text from blocks, arms and logs harmless where it is shown.

A case's subject, an error or a log may hold anything: colour codes that hide a line on a terminal,
tags that a page would run, signs that break a table. HTML is escaped by the template itself.
"""

from __future__ import annotations

import re

# Control characters but tab and newline; marks that turn the direction of text around.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")
_MARKDOWN = re.compile(r"([\\`*\[\]|~])")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


def plain(text: object) -> str:
    r"""Return a text with control characters written out, as in ``\x1b[31m``.

    Args:
        text: What is to be shown; tabs and newlines stay.
    """
    return _CONTROL.sub(_written_out, str(text))


def one_line(text: object) -> str:
    """Return the first line of a text, without control characters."""
    return plain(text).partition("\n")[0]


def markdown(text: object) -> str:
    """Return the first line of a text as Markdown that shows it as it is, also in a table."""
    entities = "".join(_ENTITIES.get(sign, sign) for sign in one_line(text))
    return _MARKDOWN.sub(r"\\\1", entities)


def markdown_code(text: object) -> str:
    """Return the first line of a text as a Markdown code span, also in a table.

    A table takes a bar for the end of a cell within a code span too, unless it is escaped.
    """
    line = one_line(text).replace("|", "\\|")
    longest = max((len(ticks) for ticks in re.findall("`+", line)), default=0)
    fence = "`" * (longest + 1)
    space = " " if longest or not line else ""
    return f"{fence}{space}{line}{space}{fence}"


def _written_out(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()
