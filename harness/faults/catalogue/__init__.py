"""Every fault on purpose, by what it is about."""

from __future__ import annotations

from harness.faults.catalogue.autocast import AUTOCAST
from harness.faults.catalogue.gradients import GRADIENTS
from harness.faults.catalogue.inputs import INPUTS
from harness.faults.catalogue.random_numbers import RANDOM_NUMBERS
from harness.faults.catalogue.ranks import RANKS
from harness.faults.catalogue.state import STATE
from harness.faults.catalogue.statistics import STATISTICS
from harness.faults.catalogue.switching import SWITCHING
from harness.faults.fault import Fault

FAULTS: tuple[Fault, ...] = (
    *STATISTICS,
    *STATE,
    *RANDOM_NUMBERS,
    *AUTOCAST,
    *INPUTS,
    *GRADIENTS,
    *RANKS,
    *SWITCHING,
)
"""The catalogue."""
