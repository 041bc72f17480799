"""Messages about names that do not exist: the nearest one that does, and all of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches

from matrix.values import Condition, value_text

_LEAST_LIKENESS = 0.6
_LEAST_PART = 3


def no_such(kind: str, name: str, choices: Iterable[str], plural: str = "") -> str:
    """Return a message that a name is none of some choices.

    Args:
        kind: What it was to be the name of, for example ``suite``.
        name: What was given.
        choices: What there is.
        plural: What the choices are called; the kind with an *s* by default.

    Returns:
        For example ``no suite 'smok'; did you mean 'smoke'? valid suites: smoke, pr``.
    """
    choices = list(choices)
    near = nearest(name, choices)
    hint = "" if near is None else f" did you mean {near!r}?"
    return f"no {kind} {name!r};{hint} valid {plural or kind + 's'}: {', '.join(choices)}"


def no_case(narrowed: Condition, reasons: Mapping[str, Condition]) -> str:
    """Return a message that exclusions leave no case of what was asked for.

    Args:
        narrowed: Axis name -> the values that were asked for.
        reasons: The text of each exclusion, and what it excludes.
    """
    asked = ", ".join(f"{n}={'|'.join(map(value_text, v))}" for n, v in narrowed.items())
    met = [
        text
        for text, when in reasons.items()
        if narrowed.keys() & when.keys()
        and all(set(narrowed.get(name, values)) & set(values) for name, values in when.items())
    ]
    return f"exclusions leave no case of {asked} ({'; '.join(met)})"


def nearest(name: str, choices: Iterable[str]) -> str | None:
    """Return the choice that a name was most likely meant to be; None where none is like it.

    Args:
        name: What was given.
        choices: What there is.
    """
    folded = {choice.casefold(): choice for choice in choices}
    wanted = name.casefold()
    close = get_close_matches(wanted, folded, 1, _LEAST_LIKENESS)
    if close:
        return folded[close[0]]
    if len(wanted) < _LEAST_PART:
        return None
    within = [choice for choice in folded if len(choice) >= _LEAST_PART and choice in wanted]
    around = [choice for choice in folded if wanted in choice]
    found = max(within, key=len, default=None) or min(around, key=len, default=None)
    return None if found is None else folded[found]
