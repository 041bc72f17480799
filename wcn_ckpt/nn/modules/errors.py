"""Errors that are more than one of Python's own kinds."""

from __future__ import annotations


class UnknownNameError(KeyError, ValueError):
    """A name that is not among the known ones."""

    def __str__(self) -> str:
        """Show the message as it is; `KeyError` would show its repr."""
        return str(self.args[0])


class UnsupportedError(NotImplementedError, ValueError):
    """A value that has a meaning elsewhere but not here."""
