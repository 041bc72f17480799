from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import Tensor, nn

from harness.noise import RUNS, Noise, measure_noise, perturbation
from harness.program import Watch
from harness.trace import Trace


def trace(**values: Tensor) -> Trace:
    points = {"forward[0]": {"outputs": dict(values)}}
    return Trace(nn.Linear(1, 1), points=points, forward_calls=[Counter()])


def near(offset: float, right: float = 1.0) -> Trace:
    return trace(noisy=torch.tensor([1.0 + offset, 2.0]), still=torch.tensor([right]))


def test_where_the_runs_are_equal_nothing_is_allowed() -> None:
    asked = []

    def run(watch: Watch | None) -> Trace:
        asked.append(watch)
        return near(0.0)

    noise = measure_noise(near(0.0), run, lambda flag: flag, seed=0)

    assert (noise.tolerances, noise.largest, len(asked)) == ({}, 0.0, 1)
    (difference,) = noise.beyond(near(1e-7))
    assert difference.path == "outputs/noisy[0]"


def test_the_tolerance_is_the_largest_difference_of_two_runs_tensor_by_tensor() -> None:
    offsets = iter([0.1, -0.2, 0.05, 0.0])
    watches = []

    def run(watch: Watch | None) -> Trace:
        watches.append(watch)
        return near(next(offsets), right=1.0 if watch is None else 3.0)

    noise = measure_noise(near(0.0), run, lambda flag: flag, seed=0)

    assert len(watches) == RUNS and [watch is None for watch in watches] == [True] * 3 + [False]
    assert noise.by_path == {"outputs/noisy": pytest.approx(0.3)}
    assert f"{RUNS} runs of the ordinary arm" in noise.source


def test_a_perturbed_run_widens_what_is_noisy_and_only_that() -> None:
    noise = Noise([near(0.0), near(0.1)], near(0.4, right=9.0))

    assert noise.by_path == {"outputs/noisy": pytest.approx(0.4)}


def test_a_difference_within_the_noise_of_any_run_passes_and_a_larger_one_does_not() -> None:
    noise = Noise([near(0.0), near(1.0)])

    assert noise.beyond(near(0.5)) == []
    assert noise.beyond(near(1.9)) == [], "0.9 from the second run"
    assert [d.path for d in noise.beyond(near(2.1))] == ["outputs/noisy[0]"]
    assert [d.path for d in noise.beyond(near(0.5, right=1.5))] == ["outputs/still[0]"]
    assert len(noise.beyond(trace(noisy=torch.zeros(3), still=torch.ones(1)))) == 1


def attributed(**values: object) -> Trace:
    points = {"forward[0]": {"attributes": dict(values)}}
    return Trace(nn.Linear(1, 1), points=points, forward_calls=[Counter()])


def test_attributes_that_the_ordinary_arm_writes_otherwise_each_time_are_left_out() -> None:
    noise = Noise([attributed(at=1.0, calls=1), attributed(at=2.0, calls=1)])

    assert noise.beyond(attributed(at=3.0, calls=1)) == []
    (difference,) = noise.beyond(attributed(at=3.0, calls=2))
    assert difference.name == "calls"


def test_a_container_of_such_values_is_still_found_to_be_longer() -> None:
    noise = Noise([attributed(at="list of 1: [1.5]"), attributed(at="list of 1: [2.5]")])

    assert noise.beyond(attributed(at="list of 1: [3.5]")) == []
    (difference,) = noise.beyond(attributed(at="list of 2: [3.5, 3.75]"))
    assert difference.got == "list of 2: [3.5, 3.75]"


def test_a_container_that_the_ordinary_arm_fills_differently_each_time_is_left_out() -> None:
    noise = Noise([attributed(at="set of 1: ['3']"), attributed(at="set of 2: ['3', '4']")])

    assert noise.beyond(attributed(at="set of 3: ['3', '4', '5']")) == []


def test_entries_under_other_keys_each_time_are_left_out_and_no_other_container() -> None:
    noise = Noise([attributed(**{"seen[1]": "a"}), attributed(**{"seen[2]": "a"})])

    assert noise.beyond(attributed(**{"seen[3]": "a"})) == []
    (difference,) = noise.beyond(attributed(**{"seen[3]": "a", "other[0]": "b"}))
    assert (difference.name, difference.expected) == ("other[0]", "unchanged")


def test_ranks_that_are_connected_run_the_same_number_of_runs() -> None:
    runs = []

    def run(watch: Watch | None) -> Trace:
        runs.append(watch)
        return near(0.0)

    measure_noise(near(0.0), run, lambda flag: True, seed=0)

    assert len(runs) == RUNS


def test_a_perturbation_moves_each_weight_by_a_rounding_and_the_same_on_every_rank() -> None:
    first, second = nn.Linear(50, 50), nn.Linear(50, 50)
    second.load_state_dict(first.state_dict())
    before = first.weight.detach().clone()

    for module in (first, second):
        with perturbation(3)(Trace(module)):
            pass

    moved = (first.weight - before) / before
    eps = torch.finfo(torch.float32).eps
    assert torch.equal(first.weight, second.weight)
    assert 0.4 * eps < moved.abs().min() and moved.abs().max() < 2 * eps
    assert (moved > 0).any() and (moved < 0).any()


@pytest.mark.parametrize(
    ("offset", "dtypes", "told"),
    [
        (1e-3, (), False),
        (0.1, (), True),
        (0.1, (torch.bfloat16,), False),
        (1.0, (torch.bfloat16,), True),
    ],
)
def test_an_arm_that_does_not_repeat_itself_is_told_from_one_that_rounds(
    offset: float, dtypes: tuple[torch.dtype, ...], told: bool
) -> None:
    found = Noise([near(0.0), near(0.0), near(offset)]).unrepeatable(dtypes)

    assert (found is not None) is told
