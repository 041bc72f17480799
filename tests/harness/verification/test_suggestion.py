from __future__ import annotations

from pathlib import Path

from harness.verification.plot import write_plot
from harness.verification.suggestion import Choice, Suggestion, growing


def choice(label: str, kept: int, step: float, *, safe: bool = True) -> Choice:
    return Choice(
        label=label,
        boundaries=(label,),
        kept_bytes=kept,
        saved_bytes=100 - kept,
        step=step,
        recompute=step - 1,
        safe=safe,
        why="" if safe else "a counter",
    )


SETS = (choice("none", 100, 1.0), choice("half", 60, 1.2), choice("all", 20, 1.5))
UNSAFE = choice("odd", 10, 1.1, safe=False)


def test_sets_grow_by_two_and_are_spread_over_the_model() -> None:
    names = [f"layers.{index}" for index in range(6)]

    assert growing(names) == [
        ("layers.0",),
        ("layers.0", "layers.3"),
        ("layers.0", "layers.1", "layers.3", "layers.4"),
        tuple(names),
    ]


def test_a_budget_picks_the_fastest_safe_choice_that_fits() -> None:
    picks = {
        budget: Suggestion(candidates=(UNSAFE,), sets=SETS, budget=budget).picked
        for budget in (1000, 60, 59, 10)
    }

    assert {budget: pick and pick.label for budget, pick in picks.items()} == {
        1000: "none",
        60: "half",
        59: "all",
        10: None,
    }


def test_what_does_not_fit_and_what_is_not_safe_is_said() -> None:
    text = "\n".join(Suggestion(candidates=(UNSAFE,), sets=SETS, budget=10).lines)

    assert "NOT safe: a counter" in text
    assert "no choice keeps at most 10 B: the least that any keeps is 20 B" in text


def test_the_plot_is_written(tmp_path: Path) -> None:
    path = write_plot(tmp_path, Suggestion(candidates=(UNSAFE,), sets=SETS, budget=60))

    assert path.read_text(encoding="utf-8").count("<svg") == 1
