"""Why a candidate is not adopted, in sentences for people."""

from __future__ import annotations

from overdrive.core.objective import saves, size
from overdrive.evidence.equivalence import same_bits
from overdrive.evidence.neighbours import busy, share_disturbed
from overdrive.evidence.speed import Verdict, other_work, verdict
from overdrive.trials.duel import Duel, are_enough, new_names

# A candidate whose interval reaches this is tried once more, when the plan has become much faster.
_NARROW_LOSS = 0.95


def other_steps(control: Duel | None, duel: Duel) -> str | None:
    """Why a duel says nothing of speed where steps are of any length, as episodes are; None where it may.

    Args:
        control: of the program against itself.
    """
    one, other = duel.old_trace, duel.new_trace
    if control is None or (one and other and same_bits(one, other)) or not other_work(control.kept(), duel.kept()):
        return None
    return "steps are of any length, and are others than before: their times do not tell its speed"


def no_faster(duel: Duel) -> str | None:
    """Why a candidate is not adopted for its speed or its behaviour, or None where it won."""
    # What its processes showed before one came to the program's end, or too late, stands.
    if duel.exit_reason and not (duel.exit_reason.kind in ("ended", "late") and duel.verdict is Verdict.FASTER):
        return str(duel.exit_reason)
    if duel.old_exit_reason and duel.verdict is not Verdict.FASTER:
        return f"the duel broke off ({duel.old_exit_reason})"
    if reason := _left_out(duel):
        return reason
    if duel.verdict is Verdict.FASTER:
        return None
    reason = {
        Verdict.SAME: "no measurable effect",
        Verdict.SLOWER: "slower",
        Verdict.INCONCLUSIVE: "inconclusive",
    }[duel.verdict]
    if busy(share := share_disturbed(duel.pairs)):
        return f"{reason}: others held the cores in {share:.0%} of its pairs of blocks"
    if duel.published and duel.interval and verdict(duel.interval) is Verdict.FASTER and are_enough(duel.kept()):
        reason = "not clear enough for another attempt"
    return f"{reason}: {duel.describe()}" if duel.interval else f"{reason}: too few blocks"


def no_smaller(duel: Duel, spread: int) -> str | None:
    """Why a candidate is not adopted for the memory it saves, or None where it is."""
    for exit_reason, prefix in ((duel.exit_reason, ""), (duel.old_exit_reason, "the duel broke off: ")):
        if exit_reason and exit_reason.kind != "ended":
            return f"{prefix}{exit_reason}"
    if reason := _left_out(duel):
        return reason
    if not saves(duel.old_side.peak_memory, duel.new_side.peak_memory, spread):
        return f"needs no less memory: {peaks(duel)}"
    return None


def left_out_names(duel: Duel) -> list[str]:
    """What was to be tried in it and did not act."""
    return [name for name in new_names(duel) if duel.new_trace and name in duel.new_trace.left_out]


def _left_out(duel: Duel) -> str | None:
    """Why something that was to be tried did not act."""
    added = left_out_names(duel)
    if not added or duel.new_trace is None:
        return None
    reason = duel.new_trace.left_out[added[0]]
    return reason if len(new_names(duel)) == 1 else f"{added[0]} left itself out: {reason}"


def peaks(duel: Duel) -> str:
    speed = f", {duel.describe()}" if duel.interval else ""
    return f"{size(duel.new_side.peak_memory)} instead of {size(duel.old_side.peak_memory)} at the peak{speed}"


def lost_narrowly(duel: Duel) -> bool:
    """Of one that was not adopted for its speed: it may have won its duel, by no more than processes differ."""
    return not duel.exit_reason and duel.interval is not None and duel.interval.high > _NARROW_LOSS


def ran_out_of_time(duel: Duel) -> bool:
    """Whether a duel for speed says nothing, for want of time alone."""
    ends = [each for each in (duel.exit_reason, duel.old_exit_reason) if each is not None]
    return duel.interval is None and not left_out_names(duel) and all(each.kind == "late" for each in ends)
