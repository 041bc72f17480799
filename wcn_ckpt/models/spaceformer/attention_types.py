"""The kind of attention of each level, as users write it."""

from __future__ import annotations

from collections.abc import Sequence

from wcn_ckpt.nn.modules.space_attention import ATTENTION_TYPES

LETTERS = {name[0]: name for name in ATTENTION_TYPES}


def parse_attention_types(types: str | Sequence[str], levels: int, name: str) -> tuple[str, ...]:
    """Return one of `"curve"`, `"space"` and `"all"` for each level.

    Args:
        types: one full name for all levels; a string with one letter (c, s, a) per level, such as
            `"ssccc"`; or a sequence of names. Upper and lower case are the same.
        levels: number of levels.
        name: the argument, for messages.

    Raises:
        ValueError: it is none of these, or names another number of levels.
    """
    how = (
        f"{name} must be one of {list(ATTENTION_TYPES)}, one letter of {''.join(LETTERS)!r} for "
        f"each of the {levels} levels, or a sequence of {levels} names"
    )
    if isinstance(types, str):
        if types.lower() in ATTENTION_TYPES:
            return (types.lower(),) * levels
        kinds = [LETTERS.get(letter, letter) for letter in types.lower()]
    elif isinstance(types, Sequence) and all(isinstance(kind, str) for kind in types):
        kinds = [kind.lower() for kind in types]
    else:
        raise ValueError(f"{how}; got {types!r}")
    if len(kinds) != levels or not set(kinds) <= set(ATTENTION_TYPES):
        raise ValueError(f"{how}; got {types!r}")
    return tuple(kinds)
