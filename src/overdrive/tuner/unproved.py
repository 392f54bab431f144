"""Measures, in the time that is left over, what had none to be tried and proved: whether a longer tune is worth it."""

from __future__ import annotations

from dataclasses import replace

from overdrive.techniques.catalogue import catalogue, conflict
from overdrive.trials.duel import Rules
from overdrive.tuner.duel_runner import SCREENED, DuelRunner
from overdrive.tuner.findings import Findings
from overdrive.tuner.outcomes import Rejected
from overdrive.tuner.reasons import no_faster, ran_out_of_time
from overdrive.tuner.schedule import Schedule
from overdrive.tuner.strategies import label


def measure_untried(found: Findings, duels: DuelRunner, schedule: Schedule) -> None:
    """Against the plan, or the untouched program where they cannot be in one; what promises most first.

    Of public TCN, minGPT and char-rnn `compile` had no time for its proof at `rounding`. 55 to 104 s of four minutes
    were left over, and ten minutes were advised for what may be no faster.
    """
    if found.runs is not None or found.wanted() != "time":  # its time is to pay for itself, and this brings no plan
        return
    known = catalogue()
    for each in sorted(_untried(found), key=lambda each: -known[each.name].expected_step_saving(found.facts)):
        pairs = known[each.name].processes(found.facts)
        rules = replace(SCREENED, processes=pairs, most_processes=pairs)
        if schedule.time_for_duel(rules, known[each.name].usual_start):
            _measure(each, rules, found, duels, schedule)


def _untried(found: Findings) -> list[Rejected]:
    known = catalogue()  # of several techniques the name is that of all
    late = [each for each in found.rejected if each.kind == "time" and each.speedup is None and each.name in known]
    return [each for each in late if known[each.name].family != "parallel"]  # a group of ranks is no such trial


def _measure(each: Rejected, rules: Rules, found: Findings, duels: DuelRunner, schedule: Schedule) -> None:
    plan = tuple((one.name, one.settings) for one in found.chosen)
    beside = not conflict(each.name, [name for name, _ in plan])
    old = found.spec(plan) if beside else found.reference()
    against = " + ".join(["plain", *(name for name, _ in old.techniques)])
    duels.progress.stage(f"{label(each.name, each.settings)} against {against}, only to know what it would gain")
    duel = duels.run_duel(old, found.spec((*old.techniques, (each.name, each.settings))), rules, schedule.deadline)
    if ran_out_of_time(duel):
        return duels.progress.outcome("its time was too short after all")
    reason = no_faster(duel)
    told = reason or f"{duel.describe()} by its duel, and no time was left to prove it"
    found.take_back(each.name, each.settings)
    found.reject(replace(each, reason=told, duel=duel, kind="measured" if reason else "time"))
    duels.progress.outcome(f"left out: {told}")
