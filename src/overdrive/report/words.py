"""Words for the result of a tune: plain strings that every report uses."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from overdrive.core.contract import Contract
from overdrive.core.facts import ITEM_PARTS
from overdrive.core.interval import Interval
from overdrive.core.objective import size
from overdrive.core.program import Program
from overdrive.core.tune_result import Figures, Loader, NotKept, ShareRecord, TuneResult
from overdrive.core.units import count, duration
from overdrive.report.gain import gains
from overdrive.report.proof import Proof, contract, proof
from overdrive.report.ratio import ratio, rounded

_LONGEST = 1e6  # seconds that an item may take: more is a broken clock
VERDICTS = ("FASTER", "SAME", "SLOWER", "INCONCLUSIVE", "SMALLER", "FITS")


def verdict(result: TuneResult) -> str:
    """The verdict that the numbers carry: a claim whose interval is missing or holds 1 is INCONCLUSIVE."""
    said, measured = result.verdict.upper(), result.speedup
    if said == "FASTER" and (measured is None or measured.low <= 1):
        return "INCONCLUSIVE"
    if said == "SLOWER" and (measured is None or measured.high >= 1):
        return "INCONCLUSIVE"
    peaks = _peaks(result)
    if said == "SMALLER" and (peaks is None or peaks[1] >= peaks[0]):
        return "INCONCLUSIVE"
    return said if said in VERDICTS else "INCONCLUSIVE"


def adopted(result: TuneResult) -> bool:
    """Whether there is a plan that does what was asked for."""
    return verdict(result) in ("FASTER", "SMALLER", "FITS")


def _peaks(result: TuneResult) -> tuple[float, float] | None:
    """Bytes at the peak before and after, where both are known."""
    before, after = result.baseline, result.tuned
    if before is None or after is None or not before.peak_memory or not after.peak_memory:
        return None
    return before.peak_memory, after.peak_memory


def usable(result: TuneResult) -> bool:
    """Whether the plan is one to run under: faster and, where there is a proof, shown to be the same."""
    found = proof(result)
    return adopted(result) and (found is None or found.holds is True)


def settings(given: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in given.items())


def command(result: TuneResult) -> list[str]:
    """The command that runs the program under its plan, as quoted words; empty where no plan is named. The plan beside
    the script, which `overdrive run` finds by itself, is not named.
    """
    if not result.plan or not result.program:
        return []
    try:
        words = shlex.split(result.program)
    except ValueError:  # an unclosed quote
        words = result.program.split()
    named = () if _found_by_itself(result.plan, words) else ("--plan", result.plan)
    return [shlex.quote(part) for part in ("overdrive", "run", *named, *words)]


def _found_by_itself(plan: str, words: Sequence[str]) -> bool:
    module = words[:1] == ["-m"]
    target = words[1:2] if module else words[:1]
    return bool(target) and Program(target[0], module=module).plan_path() == Path(plan)


def headline(result: TuneResult) -> tuple[str, str]:
    """The verdict as one sentence, in two parts: the claim, and what limits it."""
    measured = result.speedup
    low, estimate, high = rounded(measured) if measured else ("", "", "")
    limits = "; ".join(filter(None, ("95 % interval", result.unconfirmed)))
    within = f"(between {low} and {high}, {limits})"
    found, shown = verdict(result), proof(result)
    if shown and not shown.holds and measured and measured.low > 1:  # faster, and that is not enough
        claim = "Faster, but not the same" if shown.holds is False else "Faster, but not shown to be the same"
        return claim, f": {shown.why()}. The plan is not one to use; it is {estimate} times as fast {within}."
    if found == "FASTER":
        return f"{_does(result)} {estimate} times as fast", f"{within}, {_kept(result)}."
    if found == "FITS":
        peak = result.tuned.peak_memory if result.tuned else None
        at_most = f", with {size(int(peak))} at its peak" if peak else ""
        return "Runs now, where it ran out of memory", f"{at_most}; what the plan keeps is as declared, not compared."
    if found == "SMALLER" and (peaks := _peaks(result)):
        speed = f"at {estimate} times its speed {within}, " if measured else ""
        return (
            f"Needs {size(int(peaks[1]))} of memory instead of {size(int(peaks[0]))}",
            f"at its peak, {speed}{_kept(result)}.",
        )
    if found == "SLOWER":
        return (
            f"Runs only {estimate} times as fast",
            f"{within}: the plan is not used and nothing is changed.",
        )
    if found == "SAME":
        between = f" {within}" if measured else ""
        return (
            f"{_does(result)} as fast as before",
            f"{between}: nothing faster was found and nothing is changed.".strip(),
        )
    possible = f": the speed-up may lie anywhere between {low} and {high} (95 % interval)" if measured else ""
    return "Nothing was established", f"{possible}, and nothing is changed.".strip()


def _does(result: TuneResult) -> str:
    return "Answers" if result.inference else "Trains"


def sentence(result: TuneResult) -> str:
    """The verdict as one sentence."""
    return join(*headline(result))


def join(claim: str, rest: str) -> str:
    return claim + rest if rest[:1] in ",:" else f"{claim} {rest}"


def _kept(result: TuneResult) -> str:
    """What stayed the same, as far as it was checked."""
    level, found = contract(result), proof(result)
    if level is Contract.OPEN:
        return "but by changing the training itself, as was asked for: what it learns may differ"
    if result.notice:
        return "by the plan’s own record"
    same = "with the same inputs and calls" if result.inference else "with the same samples, steps and learning rates"
    if found:
        return f"{same}; {_proved(found)}"
    if level is None:
        return "but what stayed the same is not recorded"
    if not result.techniques or not all(each.check for each in result.techniques):
        return f"{same}; no check of the result is recorded for all that was adopted"
    steps = checked_steps(result)
    over = f" over {steps:,} {result.unit}s" if steps else ""
    proxy = " (a proxy, not a proof)" if result.proxy else ""
    if level is Contract.EXACT:
        return f"{same}; {_identical(result)}"
    if level is Contract.ROUNDING:
        return f"{same}; the errors are those of rounding{over}{proxy}"
    return f"{same}; the result stays within the noise of the seed{over}{proxy}"


def _proved(found: Proof) -> str:
    """What a proof that holds established, for the end of a sentence."""
    proxy = " (a proxy, not a proof)" if found.proxy else ""
    if found.claimed is Contract.EXACT:
        return f"every bit compared is identical{proxy}"
    if found.claimed is Contract.ROUNDING:
        return f"its errors are those of rounding{proxy}"
    return f"the result is the same within a margin fixed beforehand{proxy}"


def _identical(result: TuneResult) -> str:
    """What the recorded losses say about a plan that must keep every bit."""
    before, after = result.losses.baseline, result.losses.tuned
    if not before or not after:
        return "each technique passed its check of being identical bit for bit"
    if before != after:
        return "but the recorded losses differ, which the contract does not allow"
    return f"the losses of all {len(before):,} steps compared are identical bit for bit"


def checked_steps(result: TuneResult) -> int:
    """Steps over which both were compared: `steps_checked`, or the losses that both have; 0 if not known."""
    return result.steps_checked or min(len(result.losses.baseline), len(result.losses.tuned))


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
    said = f"The parts multiply to {product:.3g}x; the confirmation on fresh runs measured {ratio(total)}"
    if total.low <= product <= total.high:
        return times, f"{said}, which agrees."
    return times, f"{said}: {times:.2f} times what the parts promise."


def interaction(result: TuneResult) -> str:
    """How far the techniques help or hinder each other, as a sentence; empty where it was not measured."""
    found = result.attribution.interaction if result.attribution else None
    if found is None or len(shares(result)) < 2:
        return ""
    if found.low > 1:
        return f"Together they give {ratio(found)} times what each gives alone: they help each other."
    if found.high < 1:
        return f"Together they give {ratio(found)} times what each gives alone: in part they save the same time."
    return f"Together they give what each gives alone, multiplied: {ratio(found)}, no interaction beyond the noise."


def dropped(result: TuneResult) -> list[NotKept]:
    """What is not in the plan, and why: rejected by its duel, without effect in the whole plan, or not tried at all.
    What was measured stands first.
    """
    reasons = {(each.name, each.reason) for each in result.rejected}
    gone = result.attribution.dropped if result.attribution else ()
    found = [*result.rejected, *(each for each in gone if (each.name, each.reason) not in reasons)]
    return sorted(found, key=lambda each: not each.verdict and each.speedup is None)


_NOT_TRIED = {"time": "no time was left for {}", "contract": "{} under another contract", "unfit": "{} of no use here"}


def tried(result: TuneResult) -> list[NotKept]:
    """Of what is not in the plan, all that something was measured of."""
    return [each for each in dropped(result) if each.kind not in _NOT_TRIED]


def others(result: TuneResult) -> list[NotKept]:
    """Of what is not in the plan, all that nothing was measured of."""
    return [each for each in dropped(result) if each.kind in _NOT_TRIED]


def untried(result: TuneResult) -> str:
    """How much was not tried, and why; names where there are few."""
    parts, rest = [], others(result)
    for kind, said in _NOT_TRIED.items():
        names = [each.name for each in rest if each.kind == kind]
        if names:
            few = f" ({', '.join(names)})" if kind == "time" and len(names) <= 6 else ""
            parts.append(said.format(f"{len(names)}{few}"))
    return f"Not tried: {'; '.join(parts)}." if parts else ""


def sentences(result: TuneResult) -> list[str]:
    """What a reader must know beside the verdict, one sentence each."""
    said = []
    if result.noise_floor is not None:
        floor = "over 100%" if abs(result.noise_floor) > 1 else f"{abs(result.noise_floor):.1%}"
        said.append(f"Noise floor: {floor}, from the untouched program compared with itself.")
    worth = gains(result) if verdict(result) == "FASTER" else []
    if result.tuning_seconds is not None and not any(each.startswith("Tuning took") for each in worth):
        worth.append(f"Tuning took {duration(result.tuning_seconds)}.")
    return [*said, *worth, *result.notes]


def item_times(loader: Loader) -> tuple[list[tuple[str, float]], float | None]:
    """(part, seconds) of making one item, empty where that is not known, and the seconds waited for it."""
    data = loader.seconds_per_item
    known = [(part, data[part]) for part in ITEM_PARTS if 0 < data.get(part, 0.0) < _LONGEST]
    return known, data["wait"] if 0 < data.get("wait", 0.0) < _LONGEST else None


def items(result: TuneResult) -> str:
    """A sentence on the time of an item in the loader that is waited for most; "" if not known."""
    times = [item_times(loader) for loader in result.loaders]
    parts, waited = max(times, key=lambda each: each[1] or 0.0, default=([], None))
    if not parts:
        return ""
    whole = sum(seconds for _, seconds in parts)
    shares = ", ".join(f"{part} {seconds / whole:.0%}" for part, seconds in parts)
    wait = f"; the loop waited {duration(waited)} for it" if waited is not None else ""
    return f"An item of the data takes one process {duration(whole)} to make: {shares}{wait}."


def reason(item: NotKept) -> str:
    """Why a technique was not adopted, with what was measured."""
    why = item.reason or item.verdict.lower() or "no reason recorded"
    return f"{why} ({ratio(item.speedup)})" if item.speedup and "[" not in why else why


def before_after(result: TuneResult) -> list[tuple[str, str, str]]:
    """Name, before and after of the absolute numbers; "" where one is missing."""
    rows = zip(figure_names(result.unit), figures(result.baseline), figures(result.tuned), strict=True)
    return [(name, before, after) for name, before, after in rows if before or after]


def devices(result: TuneResult) -> list[tuple[str, ...]]:
    """A row of cells for each device (see `DEVICES_HEAD`); [] where not both were measured."""
    rows = [(each.device, *(cell or "-" for cell in figures(each))) for each in result.devices if each.seconds_per_step]
    return rows if len(rows) > 1 else []


def figure_names(step: str) -> tuple[str, ...]:
    """Of the numbers of `figures`. `step`: what one is called."""
    return ("samples per second", f"time per {step}", f"setup, before the first {step}", "memory at the peak")


def figures(side: Figures | None) -> tuple[str, ...]:
    """As text, in the order of `figure_names`; "" where one is not known."""
    if side is None:
        return ("",) * 4
    return (
        count(side.samples_per_s) if side.samples_per_s else "",
        duration(side.seconds_per_step) if side.seconds_per_step else "",
        duration(side.setup_seconds) if side.setup_seconds else "",
        size(int(side.peak_memory)) if side.peak_memory else "",
    )


DEVICES_HEAD = ("the same script on", "samples per second", "time per step", "setup", "peak memory")
