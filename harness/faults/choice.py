"""Which faults a person named."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from harness.faults.catalogue import FAULTS
from harness.faults.fault import Fault


def faults_named(names: Sequence[str], faults: Sequence[Fault] = FAULTS) -> tuple[Fault, ...]:
    """Return the faults with some names, each once, in the order of the catalogue.

    Args:
        names: The names; none for all faults.
        faults: Where they are looked up.

    Raises:
        ValueError: If there is no fault of a name; the message gives the nearest ones.
    """
    known = {fault.name: fault for fault in faults}
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, n=3, cutoff=0.5)
            near = near or [other for other in known if name and name in other][:3]
            hint = f"did you mean {' or '.join(map(repr, near))}?" if near else ", ".join(known)
            raise ValueError(f"no fault {name!r}; {hint}")
    return tuple(fault for fault in faults if not names or fault.name in names)
