"""Words for the result of a tune: plain strings that every report uses."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from overdrive.core.contract import Contract
from overdrive.core.objective import size
from overdrive.report.proof import Proof, contract, proof
from overdrive.report.reading import Interval, interval, mapping, mappings, number, positive, sequence, word

VERDICTS = ("FASTER", "SAME", "SLOWER", "INCONCLUSIVE", "SMALLER", "FITS")


def verdict(result: Mapping[str, Any]) -> str:
    """The verdict that the numbers carry: a claim whose interval is missing or holds 1 is INCONCLUSIVE."""
    said = word(result.get("verdict")).upper()
    measured = interval(result.get("speedup"))
    if said == "FASTER" and (measured is None or measured.low <= 1):
        return "INCONCLUSIVE"
    if said == "SLOWER" and (measured is None or measured.high >= 1):
        return "INCONCLUSIVE"
    peaks = _peaks(result)
    if said == "SMALLER" and (peaks is None or peaks[1] >= peaks[0]):
        return "INCONCLUSIVE"
    return said if said in VERDICTS else "INCONCLUSIVE"


def adopted(result: Mapping[str, Any]) -> bool:
    """Whether there is a plan that does what was asked for."""
    return verdict(result) in ("FASTER", "SMALLER", "FITS")


def unconfirmed(result: Mapping[str, Any]) -> str:
    """What the speed-up rests on where there was no time to confirm it; "" where it was confirmed."""
    return word(result.get("unconfirmed"), 200)


def _peaks(result: Mapping[str, Any]) -> tuple[float, float] | None:
    """Bytes at the peak before and after, where both are known."""
    before, after = (positive(mapping(result.get(side)).get("peak_memory")) for side in ("baseline", "tuned"))
    return (before, after) if before and after else None


def usable(result: Mapping[str, Any]) -> bool:
    """Whether the plan is one to run under: faster and, where there is a proof, shown to be the same."""
    found = proof(result)
    return adopted(result) and (found is None or found.holds is True)


def count(value: float) -> str:
    """A number for people: 12,740 or 24.5 or 0.0262."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def duration(seconds: float) -> str:
    """Seconds in the units that people use."""
    if seconds < 0.9995e-3:
        return f"{seconds * 1e6:.3g} µs"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes} min" if hours else f"{minutes} min {rest} s"


def settings(value: object) -> str:
    return ", ".join(f"{word(key, 60)}={word(item, 120)}" for key, item in mapping(value).items())


def command(result: Mapping[str, Any]) -> list[str]:
    """The command that runs the program under its plan, as quoted words; empty where no plan is named."""
    plan, program = word(result.get("plan"), 10_000), word(result.get("program"), 100_000)
    if not plan or not program:
        return []
    try:
        words = shlex.split(program)
    except ValueError:  # an unclosed quote
        words = program.split()
    return [shlex.quote(part) for part in ("overdrive", "run", "--plan", plan, *words)]


def headline(result: Mapping[str, Any]) -> tuple[str, str]:
    """The verdict as one sentence, in two parts: the claim, and what limits it."""
    measured = interval(result.get("speedup"))
    low, estimate, high = measured.words() if measured else ("", "", "")
    limits = "; ".join(filter(None, ("95 % interval", unconfirmed(result))))
    within = f"(between {low} and {high}, {limits})"
    found, shown = verdict(result), proof(result)
    if shown and not shown.holds and measured and measured.low > 1:  # faster, and that is not enough
        claim = "Faster, but not the same" if shown.holds is False else "Faster, but not shown to be the same"
        return claim, f": {shown.why()}. The plan is not one to use; it is {estimate} times as fast {within}."
    if found == "FASTER":
        return f"Trains {estimate} times as fast", f"{within}, {_kept(result)}."
    if found == "FITS":
        peak = positive(mapping(result.get("tuned")).get("peak_memory"))
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
            "Trains as fast as before",
            f"{between}: nothing faster was found and nothing is changed.".strip(),
        )
    possible = f": the speed-up may lie anywhere between {low} and {high} (95 % interval)" if measured else ""
    return "Nothing was established", f"{possible}, and nothing is changed.".strip()


def sentence(result: Mapping[str, Any]) -> str:
    """The verdict as one sentence."""
    return join(*headline(result))


def join(claim: str, rest: str) -> str:
    return claim + rest if rest[:1] in ",:" else f"{claim} {rest}"


def _kept(result: Mapping[str, Any]) -> str:
    """What stayed the same, as far as it was checked."""
    level, found = contract(result), proof(result)
    if level is Contract.OPEN:
        return "but by changing the training itself, as was asked for: what it learns may differ"
    if notice(result):
        return "by the plan’s own record"
    same = "with the same samples, steps and learning rates"
    if found:
        return f"{same}; {_proved(found)}"
    if level is None:
        return "but what stayed the same is not recorded"
    techniques = mappings(result.get("techniques"))
    if not techniques or not all(word(item.get("check")) for item in techniques):
        return f"{same}; no check of the result is recorded for all that was adopted"
    steps = checked_steps(result)
    over = f" over {steps:,} steps" if steps else ""
    proxy = " (a proxy, not a proof)" if result.get("proxy") is not False else ""
    if level is Contract.EXACT:
        return f"{same}; {_identical(result)}"
    if level is Contract.ROUNDING:
        return f"{same}; the rounding errors stay within the program’s own{over}{proxy}"
    return f"{same}; the result stays within the noise of the seed{over}{proxy}"


def _proved(found: Proof) -> str:
    """What a proof that holds established, for the end of a sentence."""
    proxy = " (a proxy, not a proof)" if found.proxy else ""
    if found.claimed is Contract.EXACT:
        return f"every bit compared is identical{proxy}"
    if found.claimed is Contract.ROUNDING:
        return f"its rounding errors are no larger than the program’s own{proxy}"
    return f"the result is the same within a margin fixed beforehand{proxy}"


def _identical(result: Mapping[str, Any]) -> str:
    """What the recorded losses say about a plan that must keep every bit."""
    curves = mapping(result.get("losses"))
    before, after = list(sequence(curves.get("baseline"))), list(sequence(curves.get("tuned")))
    if not before or not after:
        return "each technique passed its check of being identical bit for bit"
    if before != after:
        return "but the recorded losses differ, which the contract does not allow"
    return f"the losses of all {len(before):,} steps compared are identical bit for bit"


def checked_steps(result: Mapping[str, Any]) -> int:
    """Steps over which both were compared: `steps_checked`, or the losses that both have; 0 if not known."""
    said = positive(result.get("steps_checked"))
    if said is not None:
        return int(said)
    curves = mapping(result.get("losses"))
    return min(len(sequence(curves.get("baseline"))), len(sequence(curves.get("tuned"))))


def contributions(result: Mapping[str, Any]) -> list[tuple[str, Interval]]:
    """What each adopted technique gave: its share of the whole plan where that was measured, else its duel's."""
    measured = _measured(shares(result), "shapley") or _measured(mappings(result.get("techniques")), "speedup")
    return [(name or "(no name)", found) for name, found in measured]


def sums(result: Mapping[str, Any]) -> list[str]:
    """How the parts and the whole go together, one sentence each."""
    rest = left_over(result)
    said = [rest[1] if rest and verdict(result) == "FASTER" else "", interaction(result)]
    return [each for each in said if each]


def shares(result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The shares of the plan's techniques; none where another plan was measured, with more techniques or fewer."""
    found = mappings(mapping(result.get("attribution")).get("shares"))
    named, planned = (
        [word(item.get("name"), 80) for item in items] for items in (found, mappings(result.get("techniques")))
    )
    return found if sorted(named) == sorted(planned) and len(_measured(found, "shapley")) == len(found) else []


def _measured(items: Sequence[Mapping[str, Any]], key: str) -> list[tuple[str, Interval]]:
    found = [(word(item.get("name"), 80), interval(item.get(key))) for item in items]
    return [(name, each) for name, each in found if each]


def left_over(result: Mapping[str, Any]) -> tuple[float, str] | None:
    """What the confirmed total has beyond the product of the parts, as a ratio and a sentence."""
    total, parts = interval(result.get("speedup")), contributions(result)
    if total is None or not parts or unconfirmed(result):
        return None
    product = math.exp(sum(math.log(part.estimate) for _, part in parts))
    ratio = total.estimate / product
    said = f"The parts multiply to {product:.3g}x; the confirmation on fresh runs measured {total}"
    if total.low <= product <= total.high:
        return ratio, f"{said}, which agrees."
    return ratio, f"{said}: {ratio:.2f} times what the parts promise."


def interaction(result: Mapping[str, Any]) -> str:
    """How far the techniques help or hinder each other, as a sentence; empty where it was not measured."""
    found = interval(mapping(result.get("attribution")).get("interaction"))
    if found is None or len(shares(result)) < 2:
        return ""
    if found.low > 1:
        return f"Together they give {found} times what each gives alone: they help each other."
    if found.high < 1:
        return f"Together they give {found} times what each gives alone: in part they save the same time."
    return f"Together they give what each gives alone, multiplied: {found}, no interaction beyond the noise."


def dropped(result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What was tried and is not in the plan: rejected by its duel, or without effect in the whole plan."""
    rejected = mappings(result.get("rejected"))
    reasons = {(word(item.get("name")), word(item.get("reason"))) for item in rejected}
    gone = mappings(mapping(result.get("attribution")).get("dropped"))
    return [*rejected, *(item for item in gone if (word(item.get("name")), word(item.get("reason"))) not in reasons)]


def notice(result: Mapping[str, Any]) -> str:
    """What a reader must know of where the numbers come from, before any of them."""
    return word(result.get("notice"), 1000)


def sentences(result: Mapping[str, Any]) -> list[str]:
    """What a reader must know beside the verdict, one sentence each."""
    said = []
    noise = number(result.get("noise_floor"))
    if noise is not None:
        said.append(f"Noise floor: {abs(noise):.1%}, from the untouched program compared with itself.")
    tuning, even = positive(result.get("tuning_seconds")), positive(result.get("break_even_steps"))
    if tuning is not None and even is not None and verdict(result) == "FASTER":
        said.append(f"Tuning took {duration(tuning)}; it pays for itself after {math.ceil(even):,} steps.")
    elif tuning is not None:
        said.append(f"Tuning took {duration(tuning)}.")
    return said + [note for note in (word(note, 1000) for note in sequence(result.get("notes"))) if note]


ITEM_PARTS = ("read", "decode", "transform", "collate", "copy")


def item_times(loader: Mapping[str, Any]) -> tuple[list[tuple[str, float]], float | None]:
    """(part, seconds) of making one item, empty where that is not known, and the seconds waited for it."""
    data = mapping(loader.get("seconds_per_item"))
    found = [(part, positive(data.get(part)) or 0.0) for part in ITEM_PARTS]
    known = [(part, seconds) for part, seconds in found if 0 < seconds < 1e6]
    waited = positive(data.get("wait"))
    return known, waited if waited is not None and waited < 1e6 else None


def items(result: Mapping[str, Any]) -> str:
    """A sentence on the time of an item in the loader that is waited for most; "" if not known."""
    times = [item_times(loader) for loader in mappings(result.get("loaders"))]
    parts, waited = max(times, key=lambda each: each[1] or 0.0, default=([], None))
    if not parts:
        return ""
    whole = sum(seconds for _, seconds in parts)
    shares = ", ".join(f"{part} {seconds / whole:.0%}" for part, seconds in parts)
    wait = f"; the loop waited {duration(waited)} for it" if waited is not None else ""
    return f"An item of the data takes one process {duration(whole)} to make: {shares}{wait}."


def reason(item: Mapping[str, Any]) -> str:
    """Why a technique was not adopted, with what was measured."""
    why, measured = word(item.get("reason")), interval(item.get("speedup"))
    if not why:
        why = word(item.get("verdict")).lower() or "no reason recorded"
    return f"{why} ({measured})" if measured and "[" not in why else why


def before_after(result: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Name, before and after of the absolute numbers; "" where one is missing."""
    before, after = mapping(result.get("baseline")), mapping(result.get("tuned"))
    found = []
    for name, key, write in (
        ("samples per second", "samples_per_s", count),
        ("time per step", "seconds_per_step", duration),
        ("setup, before the first step", "setup_seconds", duration),
        ("memory at the peak", "peak_memory", lambda value: size(int(value))),
    ):
        pair = [positive(side.get(key)) for side in (before, after)]
        if any(value is not None for value in pair):
            a, b = ("" if value is None else write(value) for value in pair)
            found.append((name, a, b))
    return found


def devices(result: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """A row of cells for each device (see `DEVICES_HEAD`); [] where not both were measured."""
    rows: list[tuple[str, ...]] = []
    for item in mappings(result.get("devices")):
        keys = ("samples_per_s", "seconds_per_step", "setup_seconds", "peak_memory")
        rate, step, setup, peak = (positive(item.get(key)) for key in keys)
        if step is not None:
            cells = (
                count(rate) if rate else "-",
                duration(step),
                duration(setup) if setup else "-",
                size(int(peak)) if peak else "-",
            )
            rows.append((word(item.get("device"), 40), *cells))
    return rows if len(rows) > 1 else []


DEVICES_HEAD = ("the same script on", "samples per second", "time per step", "setup", "peak memory")
