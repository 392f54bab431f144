"""What a plan is worth, in the units that people plan with."""

from __future__ import annotations

from dataclasses import replace

import click
import pytest

from overdrive.cli.values import PRICE
from overdrive.core.interval import Interval
from overdrive.core.tune_result import Energy, OwnRun, Price, SideFigures, TuneResult
from overdrive.core.units import duration
from overdrive.report import words
from overdrive.report.gain import gains, money, watt_hours
from overdrive.report.words import sentences

FASTER = TuneResult(
    verdict="FASTER",
    speedup=Interval(2.0, 2.5, 3.0),
    baseline=SideFigures(seconds_per_step=0.09),
    tuned=SideFigures(seconds_per_step=0.036),
    tuning_seconds=240.0,
    break_even_steps=4445,
)
OWN = OwnRun(351, 31.0, 9.0)


def test_a_run_of_this_script_and_after_how_many_the_tune_has_paid() -> None:
    assert gains(replace(FASTER, own_run=OWN)) == [
        "Your 351 steps: 31 s → 9 s, start-up included, evaluations not.",
        "Tuning took 4 min; it pays for itself after 11 runs of this script (4,445 steps).",
    ]


def test_where_its_length_is_not_known_in_steps_and_time_of_training() -> None:
    told = "Tuning took 4 min; it pays for itself after 4,445 steps, 6 min 40 s of training as it was."
    assert gains(FASTER) == [told]


def test_a_run_that_is_too_short_to_gain_anything_is_said_to_be() -> None:
    """A compiled step is 1.3 times as fast; of public makemore, 13 s, the run takes twice as long."""
    told = gains(replace(FASTER, own_run=OwnRun(1000, 15.0, 31.0)))[0]
    assert told.startswith("Your 1,000 steps: 15 s → 31 s, start-up included, evaluations not: so short a run")


def test_money() -> None:
    priced = replace(FASTER, price=Price(2.5, "$"))
    assert gains(priced)[-1] == "At $2.50 an hour, training that cost $2.50 costs $1.00; the tune cost $0.17."
    hours = OwnRun(10_000, 3600.0, 1440.0)
    told = "At $2.50 an hour a run costs $1.00 instead of $2.50; the tune cost $0.17."
    assert gains(replace(priced, own_run=hours))[-1] == told
    assert money(Price(1.0, "EUR"), 3600) == "1.00 EUR" and money(Price(1.0), 36) == "0.01"


def test_nothing_is_promised_of_a_plan_that_is_not_faster() -> None:
    none = replace(FASTER, verdict="INCONCLUSIVE", own_run=OWN, price=Price(2.5))
    assert sentences(none) == ["Tuning took 4 min."]
    assert sentences(replace(FASTER, own_run=OWN)).count("Tuning took 4 min.") == 0


@pytest.mark.parametrize(("floor", "told"), [(0.057, "5.7%"), (11.47, "over 100%")])
def test_a_noise_floor_beyond_all_measure_is_no_number(floor: float, told: str) -> None:
    assert f"Noise floor: {told}, from the" in sentences(replace(FASTER, noise_floor=floor))[0]


@pytest.mark.parametrize(
    ("text", "price"),
    [
        ("2.50/h", Price(2.5, "")),
        ("2.5", Price(2.5, "")),
        ("$0.90/h", Price(0.9, "$")),
        ("0.10 EUR/min", Price(6.0, "EUR")),
        ("€24/day", Price(1.0, "€")),
    ],
)
def test_prices_as_people_write_them(text: str, price: Price) -> None:
    found = PRICE.convert(text, None, None)
    assert found.currency == price.currency and found.per_hour == pytest.approx(price.per_hour)


@pytest.mark.parametrize("text", ["", "cheap", "0", "-1", "2,50/h", "1/week"])
def test_what_is_no_price_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a price"):
        PRICE.convert(text, None, None)


@pytest.mark.parametrize(
    ("seconds", "told"), [(600, "10 min"), (150, "2 min 30 s"), (10, "10 s"), (3600, "1 h"), (5400, "1 h 30 min")]
)
def test_durations_for_people(seconds: float, told: str) -> None:
    assert duration(seconds) == told


@pytest.mark.parametrize(
    ("program", "plan", "command"),
    [
        ("train.py --epochs 3", "train.overdrive.toml", "overdrive run train.py --epochs 3"),
        ("src/train.py", "src/train.overdrive.toml", "overdrive run src/train.py"),
        ("-m pkg.train --lr 1", "pkg_train.overdrive.toml", "overdrive run -m pkg.train --lr 1"),
        ("src/train.py", "train.overdrive.toml", "overdrive run --plan train.overdrive.toml src/train.py"),
        ("train.py", "my plan.toml", "overdrive run --plan 'my plan.toml' train.py"),
        ("'my train.py' --lr '[1, 2]'", "my train.overdrive.toml", "overdrive run 'my train.py' --lr '[1, 2]'"),
        ("train.py", "", ""),
    ],
)
def test_the_command_to_type_names_the_plan_only_where_it_lies_elsewhere(program: str, plan: str, command: str) -> None:
    assert " ".join(words.command(replace(FASTER, program=program, plan=plan))) == command


def test_energy_where_the_machine_counted_it() -> None:
    counted = replace(FASTER, energy=Energy(36.0, 14.4, "the processor's packages"))
    told = "1,000 steps take 4 Wh instead of 10 Wh, by the counters of the processor's packages."
    assert gains(counted)[-1] == told
    assert "Your 351 steps take 1.4 Wh instead of 3.51 Wh" in gains(replace(counted, own_run=OWN))[-1]
    assert watt_hours(12_345.0) == "12.3 kWh" and not any("Wh" in each for each in gains(FASTER))
