"""How much the ordinary arm differs from itself, tensor by tensor: that is what is allowed.

Where the ordinary arm gives the same bits when it is run again, nothing is allowed. Where it does
not, it is run some more times, and once with its weights moved by a rounding: a sum that is taken
in another order, as atomic additions take it, differs by about as much. Per tensor, the largest
difference between two of these runs is the tolerance. (On telling faults from rounding when a run
is compared with a trusted one, see Jiang et al., "TTrace: Lightweight Error Checking and Diagnosis
for Distributed Training", 2025, https://arxiv.org/abs/2506.09280.)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations

import torch
from torch import Tensor

from harness.equivalence import Difference, differences
from harness.program import Watch
from harness.trace import Trace

RUNS = 4
"""How often the ordinary arm is run once it has been seen to differ from itself."""

_Key = tuple[str, str]
_LENGTH = re.compile(r"\w+ of \d+")
"""How the description of a container begins."""


class Noise:
    """The measured noise of the ordinary arm on one rank.

    Args:
        runs: Traces of the ordinary arm, the one that others are compared with first.
        perturbed: Its trace with weights moved by a rounding; None where the runs are equal.
    """

    def __init__(self, runs: Sequence[Trace], perturbed: Trace | None = None) -> None:
        """Compare the runs with each other."""
        self._runs = runs
        self.tolerances: dict[_Key, float] = {}
        """Group and name of an observation -> largest difference that is allowed, at any point."""
        self._own = [
            (first, difference)
            for first, second in combinations(runs, 2)
            for difference in differences(first.points, second.points)
        ]
        self._widen([difference for _, difference in self._own], known_only=False)
        unsized = [d for _, d in self._own if d.group == "attributes" and d.max_abs is None]
        self._not_repeated = set(map(_attribute, unsized))
        self._of_any_length = {_attribute(d) for d in unsized if _differs_in_length(d)}
        if perturbed is not None:
            self._widen(differences(runs[0].points, perturbed.points), known_only=True)

    @property
    def largest(self) -> float:
        """The largest tolerance; 0 where the ordinary arm equals itself."""
        return max(self.tolerances.values(), default=0.0)

    @property
    def by_path(self) -> dict[str, float]:
        """``group/name`` -> tolerance, where there is any."""
        return {f"{group}/{name}": value for (group, name), value in self.tolerances.items()}

    @property
    def source(self) -> str:
        """Where the tolerances come from."""
        return f"measured: {len(self._runs)} runs of the ordinary arm and a perturbed one differ"

    def unrepeatable(self, dtypes: Sequence[torch.dtype]) -> Difference | None:
        """Return where the ordinary arm's outputs differ from themselves by more than any rounding.

        A sum in another order moves an output by a few roundings, and what follows from it by more,
        though not by most of its digits: the cube root of a rounding is far above that, and below
        what other random numbers do. Gradients do not tell: one that is zero but for rounding
        differs by all that it is.

        Args:
            dtypes: What is computed in besides the dtype of an output.

        Returns:
            The first such difference of two runs; None where there is none.
        """
        for run, found in self._own:
            if found.group == "outputs" and found.max_abs is not None:
                output: Tensor = run.points[found.point][found.group][found.name]
                rounding = max(map(_rounding, (output.dtype, *dtypes)))
                if found.max_abs > rounding ** (1 / 3) * float(output.abs().max()):
                    return found
        return None

    def tolerance(self, difference: Difference) -> float:
        """Return what is allowed where two traces differ."""
        return self.tolerances.get((difference.group, difference.name), 0.0)

    def beyond(self, judged: Trace) -> list[Difference]:
        """Return where a trace differs by more than is allowed from every run.

        Args:
            judged: What the judged arm saw.

        Returns:
            The differences from the first run, in program order, without attributes that the
            ordinary arm itself writes otherwise in each run, such as the time or an address.
        """
        found = [
            difference
            for difference in differences(self._runs[0].points, judged.points)
            if not self._is_left_out(difference)
        ]
        if not self.tolerances:
            return found
        nearest = {_place(difference): difference.max_abs for difference in found}
        for run in self._runs[1:]:
            gaps = {_place(d): d.max_abs for d in differences(run.points, judged.points)}
            for place, gap in nearest.items():
                other = gaps.get(place, 0.0)
                if gap is not None and other is not None:
                    nearest[place] = min(gap, other)
        return [d for d in found if not _within(nearest[_place(d)], self.tolerance(d))]

    def _is_left_out(self, difference: Difference) -> bool:
        """Tell whether the ordinary arm does not repeat an attribute in what differs there."""
        if difference.group != "attributes":
            return False
        known = self._of_any_length if _differs_in_length(difference) else self._not_repeated
        return _attribute(difference) in known

    def _widen(self, found: list[Difference], *, known_only: bool) -> None:
        for difference in found:
            key = (difference.group, difference.name)
            if difference.max_abs is not None and (key in self.tolerances or not known_only):
                self.tolerances[key] = max(self.tolerances.get(key, 0.0), difference.max_abs)


def measure_noise(
    ordinary: Trace,
    run: Callable[[Watch | None], Trace],
    anywhere: Callable[[bool], bool],
    seed: int,
) -> Noise:
    """Measure the noise of the ordinary arm.

    Args:
        ordinary: A trace of it.
        run: Runs it again, within a context.
        anywhere: Whether something is true on any rank; ranks that are connected must run the same.
        seed: Seed of the perturbation; the same on ranks that have the same weights.
    """
    runs = [ordinary, run(None)]
    noise = Noise(runs)
    if not anywhere(bool(noise.tolerances)):
        return noise
    runs += [run(None) for _ in range(RUNS - len(runs))]
    return Noise(runs, run(perturbation(seed)))


def perturbation(seed: int) -> Watch:
    """Return a context that moves each weight up or down by a rounding before a run.

    Args:
        seed: Which ones go up.
    """

    @contextmanager
    def perturbed(trace: Trace) -> Iterator[None]:
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in trace.module.parameters():
                if parameter.is_floating_point():
                    _perturb(parameter.data, generator)
        yield

    return perturbed


def _perturb(values: Tensor, generator: torch.Generator) -> None:
    local: Tensor = values.to_local() if hasattr(values, "to_local") else values
    up = torch.randint(2, local.shape, generator=generator).to(local.device)
    local.mul_(1 + (2 * up - 1) * torch.finfo(local.dtype).eps)


def _rounding(dtype: torch.dtype) -> float:
    is_rounded = dtype.is_floating_point or dtype.is_complex
    return torch.finfo(dtype).eps if is_rounded else 0.0


def _place(difference: Difference) -> tuple[str, str, str]:
    return difference.point, difference.group, difference.name


def _attribute(difference: Difference) -> str:
    """Return the attribute that differs; the container itself where an entry stands in one arm."""
    is_entry = "unchanged" in (difference.expected, difference.got)
    return difference.name.partition("[")[0] if is_entry else difference.name


def _differs_in_length(difference: Difference) -> bool:
    """Tell whether containers of two lengths differ, whatever is in them."""
    lengths = [_LENGTH.match(str(side)) for side in (difference.expected, difference.got)]
    return any(lengths) and len({length and length[0] for length in lengths}) == 2


def _within(gap: float | None, tolerance: float) -> bool:
    return gap is not None and gap <= tolerance
