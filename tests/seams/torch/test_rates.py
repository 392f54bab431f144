"""Rates of optimizers under a trial's values: on a line that has another value now, and under a ramp."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from overdrive.core.hyperparameters import OPTIMIZER, ValuePlace
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
