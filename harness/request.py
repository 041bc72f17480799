"""What was typed: the options of a command, checked and resolved. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.arms import Arm, arm_named
from harness.history import asked_of, failed_cases, latest_folder
from harness.importing import check_source
from harness.ranks import BACKENDS
from harness.ranks.launch import check_group_size, current_leader, local_size, resolve_size
from harness.registered import any_subject_named, parse_any_case
from harness.shards import Shard
from matrix.axes import axis_named
from matrix.case import Case
from matrix.choices import no_such
from matrix.constraints import constraints_on, exclusion
from matrix.subjects import SUBJECTS
from matrix.suites import Selection, select, suite_named
from matrix.values import Value, meets


@dataclass(frozen=True, kw_only=True)
class SuiteRequest:
    """Which cases, as typed."""

    suite: str = "smoke"
    subjects: tuple[str, ...] = ()
    """Names; empty for all."""
    axes: tuple[str, ...] = ()
    """``name=v1,v2``; an axis that is not named keeps all its values."""
    seed: int = 0
    seeds: int = 1
    """How many seeds, from ``seed`` on; each has an array of its own."""
    device: str = "cpu"

    def __post_init__(self) -> None:
        """Refuse a device that no case has."""
        axis_named("device").parse(self.device)

    def select(self) -> dict[int, Selection]:
        """Choose the cases, by seed.

        Raises:
            ValueError: If an option names something that does not exist.
        """
        suite = suite_named(self.suite)
        subjects = [any_subject_named(name) for name in dict.fromkeys(self.subjects)] or SUBJECTS
        only = parse_axes(self.axes)
        if "device" in only:
            raise ValueError("choose the device with --device, not with --axis")
        only["device"] = (axis_named("device").parse(self.device),)
        return {
            seed: select(suite, subjects=subjects, only=only, seed=seed)
            for seed in range(self.seed, self.seed + self.seeds)
        }


@dataclass(frozen=True, kw_only=True)
class RunRequest(SuiteRequest):
    """The options of a run, as typed."""

    arm: str = "checkpointed"
    ranks: int = 2
    group_size: int | None = None
    """Ranks of a case, where several groups of ranks run cases side by side; None for all ranks."""
    shard: Shard | None = None
    """The part of the cases that is run; None for all."""
    times: Path | None = None
    """Results folder with the times by which shards are cut."""
    out: Path | None = None
    """Results folder; None for a fresh one."""
    case_timeout: float = 60.0
    stop_early: bool = False
    resume: bool = False
    backend: str = "auto"
    baseline: Path | None = None
    """File of known findings."""
    last_failed: bool = False
    """Run what was not as expected in the latest run, instead of a suite."""
    checklist: bool | None = None
    """Measure the six points of each family; None to do so where nothing narrows the suite."""

    @property
    def measures_families(self) -> bool:
        """Whether the six points of each family are measured when the cases are done."""
        if self.checklist is not None:
            return self.checklist
        return not (self.subjects or self.axes or self.shard or self.last_failed)

    @property
    def repeats_all(self) -> bool:
        """Whether everything that failed in the latest run is run again."""
        return self.last_failed and not (self.subjects or self.axes)

    def __post_init__(self) -> None:
        """Refuse an arm, a device or a backend that is not there."""
        super().__post_init__()
        resolve_arm(self.arm)
        check_device(self.device, self.backend, local_size(self.case_ranks))
        check_group_size(self.ranks, self.case_ranks)
        if self.last_failed and self.shard is not None:
            raise ValueError("--last-failed runs few cases; leave --shard out")
        if self.times is not None and self.shard is None:
            raise ValueError("--times is what shards are cut by; give --shard i/n too")

    def select(self) -> dict[int, Selection]:
        """Choose the cases, by seed; those that failed, as far as subjects and axes let them."""
        if not self.last_failed:
            return super().select()
        wanted = self._wanted()
        every = failed_cases(_run_to_repeat())
        chosen = {seed: list(filter(wanted, cases)) for seed, cases in every.items()}
        failed = {seed: cases for seed, cases in chosen.items() if cases}
        for device in {str(c.assignment["device"]) for cases in failed.values() for c in cases}:
            check_device(device, self.backend, local_size(self.case_ranks))
        return {seed: Selection(tuple(cases), ()) for seed, cases in failed.items()}

    def _wanted(self) -> Callable[[Case], bool]:
        """Return what tells whether a case is among the subjects and on the values asked for."""
        names = {any_subject_named(name).name for name in self.subjects}
        only = parse_axes(self.axes)

        def wanted(case: Case) -> bool:
            return meets(case.cell, only) and (not names or case.subject.name in names)

        return wanted

    @property
    def case_ranks(self) -> int:
        """Number of ranks that run a case together."""
        return self.ranks if self.group_size is None else self.group_size

    @property
    def identity(self) -> dict[str, Any]:
        """What a resumed run must have in common with the run it continues."""
        names = ("suite", "subjects", "axes", "arm", "seed", "seeds", "device", "backend")
        texts = {name: getattr(self, name) for name in names}
        texts["last_failed"] = self.last_failed and str(latest_folder())
        texts |= {"ranks": self.case_ranks, "shard": self.shard.text if self.shard else None}
        return {n: list(v) if isinstance(v, tuple) else v for n, v in texts.items()}


def judging_options(last_failed: bool, **typed: Any) -> dict[str, Any]:
    """Return those options of a run that decide how its cases are judged.

    Args:
        last_failed: Whether failures are repeated: what was not typed is then as it was in their
            run.
        **typed: ``arm``, ``ranks``, ``group_size``, ``device`` and ``backend``; None where it was
            not typed.

    Returns:
        The number of ranks, and the others where they are not at their defaults.

    Raises:
        ValueError: If there is no run to repeat, another device than its own is asked for, or
            torchrun started another number of ranks than is asked for.
    """
    given = {name: value for name, value in typed.items() if value is not None}
    if last_failed:
        earlier = asked_of(_run_to_repeat())
        size = earlier.pop("ranks", None)
        if not given.keys() & {"ranks", "group_size"}:
            given["ranks" if current_leader() is None else "group_size"] = size
        if "device" in given and given["device"] != earlier.get("device"):
            raise ValueError(
                f"--device {given['device']}, but the cases that --last-failed repeats are on "
                f"{earlier.get('device')}; leave --device out"
            )
        given = {**earlier, **given}
    return {**given, "ranks": resolve_size(given.get("ranks"))}


def _run_to_repeat() -> Path:
    folder = latest_folder()
    if folder is None:
        raise ValueError("--last-failed: there is no earlier run in this folder")
    return folder


def resolve_arm(name: str) -> Arm:
    """Return the arm with a short or importable name.

    Raises:
        ValueError: If there is none.
    """
    arm = arm_named(name)
    check_source(arm.install)
    return arm


def resolve_case(case_id: str) -> Case:
    """Return the case with an id.

    Raises:
        ValueError: If there is none, or a constraint excludes it; the message gives the reason.
    """
    case = parse_any_case(case_id)
    rule = exclusion(case.cell, constraints_on([case.subject]))
    if rule is not None:
        raise ValueError(f"case {case_id!r} is excluded ({rule.text}): {rule.reason}")
    return case


def check_device(device: str, backend: str, ranks: int) -> None:
    """Refuse a device or a backend that is not there; torch is asked only where it must be.

    Raises:
        ValueError: If it is not there; the message says what is.
    """
    if backend not in BACKENDS:
        raise ValueError(no_such("backend", backend, BACKENDS))
    if device != "cpu" or backend == "nccl":
        from harness import devices

        devices.check_device(device, backend, ranks)


def pool_backend(device: str, backend: str) -> str:
    """Return the backend that ranks are started with: models on the CPU need gloo alone.

    Args:
        device: Where the models are.
        backend: As typed.
    """
    return "gloo" if device == "cpu" else backend


def parse_axes(texts: tuple[str, ...]) -> dict[str, tuple[Value, ...]]:
    """Return axis name -> values from texts ``name=v1,v2``; values of one axis add up.

    Raises:
        ValueError: If a text is not of that form, or names an axis or a value that does not exist.
    """
    only: dict[str, tuple[Value, ...]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals:
            raise ValueError(f"{text!r} is not of the form name=v1,v2")
        axis = axis_named(name)
        parsed = tuple(axis.parse(value) for value in dict.fromkeys(values.split(",")))
        only[name] = only.get(name, ()) + tuple(v for v in parsed if v not in only.get(name, ()))
    return only
