"""Words for single techniques: what each gave to the plan, and what is not in it, and why."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from overdrive.core.interval import Interval
from overdrive.core.tune_result import NotKept, ShareRecord, TuneResult
from overdrive.report.words import verdict

_NOT_TRIED = {"time": "no time was left for {}", "contract": "{} under another contract", "unfit": "{} of no use here"}


def contributions(result: TuneResult) -> list[tuple[str, Interval]]:
    """What each adopted technique gave: its share of the whole plan where that was measured, else its duel's."""
    of_plan = [(each.name, each.shapley) for each in shares(result)]
    of_duels = [(each.name, each.speedup) for each in result.techniques]
    return [(name or "(no name)", found) for name, found in of_plan or of_duels if found]


def sums(result: TuneResult) -> list[str]:
    """How the parts and the whole go together, one sentence each."""
    rest = left_over(result)
    said = [rest[1] if rest and verdict(result) == "FASTER" else "", interaction(result)]
    return [each for each in said if each]


def shares(result: TuneResult) -> tuple[ShareRecord, ...]:
    """The shares of the plan's techniques; none where another plan was measured, with more techniques or fewer."""
    found = result.attribution.shares if result.attribution else ()
    same = sorted(each.name for each in found) == sorted(each.name for each in result.techniques)
    return found if same and all(each.shapley for each in found) else ()


def left_over(result: TuneResult) -> tuple[float, str] | None:
    """What the confirmed total has beyond the product of the parts, as a ratio and a sentence."""
    total, parts = result.speedup, contributions(result)
    if total is None or not parts or result.unconfirmed:
        return None
    product = math.exp(sum(math.log(part.estimate) for _, part in parts))
    times = total.estimate / product
    said = f"The parts multiply to {product:.3g}x; the confirmation on fresh runs measured {total.as_speedup()}"
    if total.low <= product <= total.high:
        return times, f"{said}, which agrees."
    return times, f"{said}: {times:.2f} times what the parts promise."


def interaction(result: TuneResult) -> str:
    """How far the techniques help or hinder each other, as a sentence; empty where it was not measured."""
    found = result.attribution.interaction if result.attribution else None
    if found is None or len(shares(result)) < 2:
        return ""
    if found.low > 1:
        return f"Together they give {found.as_speedup()} times what each gives alone: they help each other."
    if found.high < 1:
        return f"Together they give {found.as_speedup()} times what each gives alone: in part they save the same time."
    return f"Together they give what each gives alone, multiplied, within the noise: {found.as_speedup()}."


def dropped(result: TuneResult) -> list[NotKept]:
    """What is not in the plan, and why: rejected by its duel, without effect in the whole plan, or not tried at all.
    What was measured stands first.
    """
    reasons = {(each.name, each.reason) for each in result.rejected}
    gone = result.attribution.dropped if result.attribution else ()
    found = [*result.rejected, *(each for each in gone if (each.name, each.reason) not in reasons)]
    return sorted(found, key=lambda each: not each.verdict and each.speedup is None)


def tried(result: TuneResult) -> list[NotKept]:
    """Of what is not in the plan, all that something was measured of."""
    return [each for each in dropped(result) if _measured(each)]


def others(result: TuneResult) -> list[NotKept]:
    """Of what is not in the plan, all that nothing was measured of."""
    return [each for each in dropped(result) if not _measured(each)]


def _measured(each: NotKept) -> bool:
    """A screening may measure what then has no time for a duel, or no proof. What another contract allows is told
    elsewhere."""
    return each.kind not in _NOT_TRIED or (each.kind != "contract" and each.speedup is not None)


def untried(result: TuneResult) -> str:
    """How much was not tried, and why; names where there are few, with their settings where others were measured."""
    parts, rest = [], others(result)
    known = {each.name for each in result.techniques} | {each.name for each in tried(result)}
    for kind, said in _NOT_TRIED.items():
        names = [
            f"{each.name} with {settings(each.settings)}" if each.name in known and each.settings else each.name
            for each in rest
            if each.kind == kind
        ]
        if names:
            few = f" ({', '.join(names)})" if kind == "time" and len(names) <= 6 else ""
            parts.append(said.format(f"{len(names)}{few}"))
    return f"Not tried: {'; '.join(parts)}." if parts else ""


def reason(item: NotKept) -> str:
    """Why a technique was not adopted, with what was measured."""
    why = item.reason or item.verdict.lower() or "no reason recorded"
    return f"{why} ({item.speedup.as_speedup()})" if item.speedup and "[" not in why else why


def settings(given: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in given.items())
