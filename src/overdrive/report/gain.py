"""What a plan is worth, in the units that people plan with: this script's runs, hours of training, money."""

from __future__ import annotations

import math

from overdrive.core.tune_result import Price, TuneResult
from overdrive.core.units import duration, several


def gains(result: TuneResult) -> list[str]:
    """A sentence each, of a plan that is faster: a run of this script, when the tune has paid, money, energy."""
    return [each for each in (_run(result), _pays(result), _money(result), _energy(result)) if each]


def money(price: Price, seconds: float) -> str:
    """What so many seconds cost: `$0.12`, `0.12 EUR`, `0.12`."""
    amount = seconds / 3600 * (price.per_hour or 0.0)
    text = f"{amount:,.2f}" if amount >= 0.1 or amount == 0 else f"{amount:.2g}"
    return f"{price.currency}{text}" if len(price.currency) == 1 else f"{text} {price.currency}".strip()


def _run(result: TuneResult) -> str:
    own = result.own_run
    if own is None or not (own.steps and own.before and own.after):
        return ""
    told = f"Your {own.steps:,} {result.unit}s: {duration(own.before)} → {duration(own.after)}, start-up included"
    if not result.inference:
        between = result.baseline and result.baseline.epoch_steps
        told += ", and what comes between epochs" if between else ", evaluations not"
    return f"{told}: so short a run is done no sooner." if own.after >= own.before else f"{told}."


def _pays(result: TuneResult) -> str:
    tuning, even, own = result.tuning_seconds, result.break_even_steps, result.own_run
    if tuning is None or even is None:
        return ""
    steps = f"{math.ceil(even):,} {result.unit}s"
    took = f"Tuning took {duration(tuning)}; it pays for itself after"
    if own and own.before and own.after and own.before > own.after:
        runs = math.ceil(tuning / (own.before - own.after))
        return f"{took} {several(runs, 'run')} of this script ({steps})."
    pace = result.baseline.seconds_per_step if result.baseline else None
    told = f", {duration(even * pace)} of {'answering' if result.inference else 'training'} as it was" if pace else ""
    return f"{took} {steps}{told}."


def _money(result: TuneResult) -> str:
    price, own = result.price, result.own_run
    if price is None or not price.per_hour:
        return ""
    tuning = f"; the tune cost {money(price, result.tuning_seconds)}" if result.tuning_seconds else ""
    hourly = f"At {money(price, 3600)} an hour"
    if own and own.before and own.after:
        return f"{hourly} a run costs {money(price, own.after)} instead of {money(price, own.before)}{tuning}."
    if result.speedup is None:
        return ""
    after = money(price, 3600 / result.speedup.estimate)
    return f"{hourly}, training that cost {money(price, 3600)} costs {after}{tuning}."


def _energy(result: TuneResult) -> str:
    energy, own = result.energy, result.own_run
    if energy is None or not (energy.before and energy.after):
        return ""
    steps = own.steps if own and own.steps else 1000
    before, after = (watt_hours(steps * joules / 3600) for joules in (energy.before, energy.after))
    whose = "Your " if own and own.steps else ""
    return f"{whose}{steps:,} {result.unit}s take {after} instead of {before}, by the counters of {energy.of}."


def watt_hours(value: float) -> str:
    """`0.12 Wh`, `3.4 kWh`."""
    return f"{value / 1000:,.3g} kWh" if value >= 1000 else f"{value:.3g} Wh"
