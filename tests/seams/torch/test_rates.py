"""Rates of optimizers under a trial's values: on a line that has another value now, and under a ramp."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from overdrive.core.hyperparameters import ANNEALED, OPTIMIZER, SCHEDULE, ValuePlace
from overdrive.seams.torch.values import ScaledRates, of_optimizer

LR = ValuePlace(OPTIMIZER, "lr", 0.1, "train.py:1")
VALUES = {LR.key: 1.0, LR.key_of_any: 1.0}


def optimizer_with(rate: float, **more: float) -> Any:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=rate, **more)


def rates_in_steps(*own: float) -> list[float]:
    """Of optimizers that are made one after another on one line, with the program's own rates."""
    rates, seen = ScaledRates(), []
    for each in own:
        optimizer = optimizer_with(each)
        of_optimizer(optimizer, "train.py:1", VALUES, rates)
        rates.begin(optimizer)
        seen.append(optimizer.param_groups[0]["lr"])
        rates.end(optimizer)
    return seen


def test_a_rate_is_what_is_told_whatever_the_program_has_there_and_later_phases_keep_their_proportion() -> None:
    assert rates_in_steps(0.1, 0.1) == pytest.approx([1.0, 1.0])
    assert rates_in_steps(0.1, 0.01) == pytest.approx([1.0, 0.1])
    assert rates_in_steps(0.4, 0.04) == pytest.approx([1.0, 0.1])  # another batch size, say


def test_other_values_are_set_on_their_line_as_they_were_first() -> None:
    place = ValuePlace(OPTIMIZER, "momentum", 0.9, "train.py:1")
    rates, values = ScaledRates(), {place.key: 0.5, place.key_of_any: 0.5}
    for own, expected in ((0.8, 0.5), (0.8, 0.5), (0.7, 0.7)):
        optimizer = optimizer_with(0.1, momentum=own)
        of_optimizer(optimizer, "train.py:1", values, rates)
        assert optimizer.param_groups[0]["momentum"] == optimizer.defaults["momentum"] == expected


def test_a_warmup_of_the_programs_own_does_not_hide_the_rates() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    rates = ScaledRates((0.1, 10.0, 3))
    of_optimizer(optimizer, "train.py:1", {}, rates)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step / 1000)
    seen = []
    for _ in range(3):
        rates.begin(optimizer)
        seen.append(optimizer.param_groups[0]["lr"])
        rates.end(optimizer)
        optimizer.step()
        schedule.step()
    assert seen == pytest.approx([0.05, 0.5, 5.0])
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.5 * 3 / 1000)


def test_rates_fall_as_under_a_linear_schedule_beside_the_programs_own() -> None:
    def seen(ours: bool) -> list[float]:
        parameter = torch.nn.Parameter(torch.zeros(1))
        optimizer = torch.optim.SGD([{"params": [parameter]}], lr=0.1)
        rates = ScaledRates(anneal=4)
        of_optimizer(optimizer, "train.py:1", VALUES, rates)  # ten times the program's own
        own = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
        theirs = torch.optim.lr_scheduler.LinearLR(optimizer, 1, ANNEALED, 4)
        found = []
        for _ in range(6):
            if ours:
                rates.begin(optimizer)
            found += [(1 if ours else 10) * optimizer.param_groups[0]["lr"]]
            if ours:
                rates.end(optimizer)
            optimizer.step()
            own.step()
            if not ours:
                theirs.step()
        return found

    assert seen(True) == pytest.approx(seen(False))
    assert seen(True)[-1] == pytest.approx(1.0 * 0.5 * ANNEALED)


def test_the_rates_of_two_optimizers_fall_together() -> None:
    one, other = optimizer_with(0.1), optimizer_with(0.2)
    rates = ScaledRates(anneal=10)
    seen = []
    for _ in range(6):
        for optimizer in (one, one, one, other):  # three steps of a critic for each of a generator
            rates.begin(optimizer)
            seen.append(optimizer.param_groups[0]["lr"])
            rates.end(optimizer)
    assert seen[-2:] == pytest.approx([0.1 * ANNEALED, 0.2 * ANNEALED])
    assert [one.param_groups[0]["lr"], other.param_groups[0]["lr"]] == [0.1, 0.2]


def test_the_fall_is_a_place_of_a_program_whatever_optimizers_it_has() -> None:
    found = [of_optimizer(optimizer_with(rate), "", {}, ScaledRates()) for rate in (0.1, 0.2)]
    places = {place.key: place for each in found for place in each}
    assert [place.value for place in places.values() if place.kind == SCHEDULE] == [0.0]


def test_groups_that_are_added_or_loaded_later_have_the_rate_that_is_asked_for() -> None:
    optimizer = optimizer_with(0.1)  # as of norms, and all else is added
    rates = ScaledRates()
    of_optimizer(optimizer, "train.py:1", VALUES, rates)
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))]})
    optimizer.load_state_dict(optimizer.state_dict())
    rates.begin(optimizer)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([1.0, 1.0])
    rates.end(optimizer)
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.1]
