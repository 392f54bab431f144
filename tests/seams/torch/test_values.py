"""Values at PyTorch's seams: read as the program has them, set, and rates scaled under whatever schedule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from overdrive.core.hyperparameters import DROPOUT, LOADER, OPTIMIZER, ValuePlace
from overdrive.seams.hub import Seams
from overdrive.seams.patch import Patches
from overdrive.seams.torch import loaders, values

WHERE = "train.py:3"


def test_groups_with_one_value_are_one_place_and_others_their_own() -> None:
    a, b = nn.Linear(2, 2), nn.Linear(2, 2)
    made = torch.optim.AdamW([{"params": a.parameters()}, {"params": b.parameters(), "lr": 0.1}], lr=0.01)
    found = values.of_optimizer(made, WHERE, {}, values.ScaledRates())
    assert [(each.name, each.value) for each in found] == [
        ("lr", 0.01),
        ("weight_decay", 0.01),
        ("beta1", 0.9),
        ("beta2", 0.999),
        ("lr", 0.1),
        ("anneal", 0.0),
    ]
    assert {each.of for each in found[:-1]} == {"AdamW"}


def test_each_value_is_set_in_the_groups_that_have_it_and_in_those_that_come_later() -> None:
    model = nn.Linear(2, 2)
    made = torch.optim.AdamW(model.parameters(), lr=0.01)
    decay = ValuePlace(OPTIMIZER, "weight_decay", 0.01, WHERE).key
    beta = ValuePlace(OPTIMIZER, "beta2", 0.999, WHERE).key
    values.of_optimizer(made, WHERE, {decay: 0.5, beta: 0.9}, values.ScaledRates())
    assert made.param_groups[0]["weight_decay"] == 0.5 and made.param_groups[0]["betas"] == (0.9, 0.9)
    made.add_param_group({"params": nn.Linear(2, 2).parameters()})
    assert made.param_groups[1]["weight_decay"] == 0.5


def plain(optimizer: Any) -> Callable[[], None]:
    return lambda: None


def one_cycle(optimizer: Any) -> Callable[[], None]:
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.5, total_steps=12).step  # type: ignore[no-any-return]


def exponential(optimizer: Any) -> Callable[[], None]:
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5).step  # type: ignore[no-any-return]


@pytest.mark.parametrize("schedule", [plain, one_cycle, exponential])
def test_a_scaled_rate_is_the_schedules_own_times_the_factor_in_every_step(schedule: Any) -> None:
    def rates(scaled: values.ScaledRates | None) -> tuple[list[float], list[float]]:
        parameter = nn.Parameter(torch.zeros(()))
        optimizer = torch.optim.SGD([parameter], lr=0.1)
        advance = schedule(optimizer)
        if scaled:
            key = ValuePlace(OPTIMIZER, "lr", optimizer.param_groups[0]["lr"], WHERE).key
            values.of_optimizer(optimizer, WHERE, {key: 3 * optimizer.param_groups[0]["lr"]}, scaled)
        moved, between = [], []
        for _ in range(10):
            parameter.grad = torch.ones(())
            before = float(parameter.detach())
            if scaled:
                scaled.begin(optimizer)
            optimizer.step()
            if scaled:
                scaled.end(optimizer)
            moved.append(before - float(parameter.detach()))
            between.append(optimizer.param_groups[0]["lr"])
            advance()
        return moved, between

    (moved, between), (scaled_moved, scaled_between) = rates(None), rates(values.ScaledRates())
    assert scaled_moved == pytest.approx([3 * each for each in moved], rel=1e-4)
    assert scaled_between == between  # the program sees its own


def test_what_a_schedule_or_the_program_sets_anew_is_told() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(()))], lr=0.1, momentum=0.9, weight_decay=0.01)
    momentum = ValuePlace(OPTIMIZER, "momentum", 0.9, WHERE).key
    rates = values.ScaledRates()
    values.of_optimizer(optimizer, WHERE, {momentum: 0.5}, rates)
    assert optimizer.param_groups[0]["momentum"] == 0.5 and not rates.taken_back()
    torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.5, total_steps=12)
    assert [(place.name, asked) for place, asked in rates.taken_back()] == [("momentum", True)]
    optimizer.param_groups[0]["weight_decay"] = 0.02
    assert {(place.name, asked) for place, asked in rates.taken_back()} == {("momentum", True), ("weight_decay", False)}


def test_a_rate_of_nothing_that_the_program_sets_before_each_step_is_told() -> None:
    """It cannot be scaled."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(()))], lr=0.0)
    rates = values.ScaledRates()
    values.of_optimizer(optimizer, WHERE, {}, rates)
    assert not rates.taken_back()
    optimizer.param_groups[0]["lr"] = 0.1
    assert [place.name for place, _ in rates.taken_back()] == ["lr"]


def test_a_step_that_broke_off_leaves_no_scaled_rate_behind() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(()))], lr=0.1)
    rates = values.ScaledRates()
    rates.scale(optimizer, 0, 2.0)
    rates.begin(optimizer)
    rates.begin(optimizer)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.2)
    rates.end(optimizer)
    assert optimizer.param_groups[0]["lr"] == 0.1


def test_a_ramp_grows_evenly_on_a_logarithmic_scale() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(()))], lr=0.1)
    rates, seen = values.ScaledRates((0.01, 100.0, 5)), []
    for _ in range(5):
        rates.begin(optimizer)
        seen.append(optimizer.param_groups[0]["lr"])
        rates.end(optimizer)
    assert seen == pytest.approx([0.001, 0.01, 0.1, 1.0, 10.0])


def test_dropout_rates_by_rate_of_modules_and_recurrent_layers() -> None:
    model = nn.Sequential(nn.Dropout(0.5), nn.Dropout2d(0.5), nn.LSTM(2, 2, num_layers=2, dropout=0.2))
    found = values.of_dropouts([model, model], {ValuePlace(DROPOUT, "p", 0.5).key: 0.1})
    assert {(each.value, each.of) for each in found} == {(0.5, "2 modules"), (0.2, "1 module")}
    assert [model[0].p, model[1].p, model[2].dropout] == [0.1, 0.1, 0.2]


@pytest.mark.parametrize("how", ["by name", "by place"])
def test_a_loader_is_made_with_another_batch_size_however_it_was_given(how: str) -> None:
    data = torch.utils.data.TensorDataset(torch.zeros(64, 1))
    hub, patches = Seams(), Patches()
    key = ValuePlace(LOADER, "batch_size", 8, WHERE, "DataLoader").key
    hub.loader_made.subscribe(lambda making: (making[0], values.of_loader(making[1], WHERE, {key: 16})[0]))
    loaders.enter(hub, patches)
    try:
        make = torch.utils.data.DataLoader
        loader = make(data, batch_size=8, shuffle=True) if how == "by name" else make(data, 8, True)
        other = make(data, batch_sampler=torch.utils.data.BatchSampler(range(64), 8, False))
        with pytest.raises(TypeError):
            make()
    finally:
        patches.restore()
    assert len(loader) == 4 and len(other) == 8
    assert len(torch.utils.data.DataLoader(data, batch_size=8)) == 8
