"""What is told of candidates that had no duel."""

from __future__ import annotations

from collections.abc import Mapping

from overdrive.tuner.duel_runner import Progress
from overdrive.tuner.findings import Findings
from overdrive.tuner.outcomes import Rejected
from overdrive.tuner.strategies import Candidate
from overdrive.tuner.strategies.worth import Worth


def tell_untried(untried: Mapping[str, Candidate], found: Findings, worth: Worth, progress: Progress) -> None:
    """Note why each was not tried, and name those for which the time was too short. `untried`: by technique."""
    for each in untried.values():
        measured = found.screened.speedup(each.chosen[0])
        said = "measured by the screening alone" if measured else "not tried"
        if absent := found.screened.absent().get(each.chosen[0][0]):
            said = f"left itself out beside the others ({absent}), and not tried alone"
        why, lacks = worth.lacks(each)
        kind = "unfit" if worth.is_in_vain(each) else "time"  # no longer tune would try it
        found.reject(Rejected(*each.chosen[0], f"{said}: {why}", kind=kind, measured=measured, lacks=lacks))
    paying = [name for name, each in untried.items() if worth.pays(each)]
    if late := [name for name in paying if not worth.is_in_vain(untried[name])]:
        progress.outcome(f"no time is left for a duel of {', '.join(late)}")
    if len(paying) < len(untried):
        progress.outcome(f"another minute is expected to bring less than it costs over {found.runs} runs (--runs)")
