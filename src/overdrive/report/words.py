"""Words for the result of a tune: plain strings that every report uses."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from overdrive.core.contract import Contract
from overdrive.core.objective import size
from overdrive.core.program import Program
from overdrive.core.tune_result import TuneResult
from overdrive.core.units import duration, noise_told
from overdrive.report.gain import gains
from overdrive.report.proof import Proof, contract, proof

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
    low, estimate, high = measured.rounded() if measured else ("", "", "")
    beside = "while other programs held the cores" if result.beside_others else ""
    limits = "; ".join(filter(None, ("95 % interval", result.unconfirmed, beside)))
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


def sentences(result: TuneResult) -> list[str]:
    """What a reader must know beside the verdict, one sentence each."""
    said = []
    if result.noise_floor is not None:
        said.append(f"Noise floor: {noise_told(result.noise_floor)}, from the untouched program compared with itself.")
    worth = gains(result) if verdict(result) == "FASTER" else []
    if result.tuning_seconds is not None and not any(each.startswith("Tuning took") for each in worth):
        worth.append(f"Tuning took {duration(result.tuning_seconds)}.")
    return [*said, *worth, *result.notes]
