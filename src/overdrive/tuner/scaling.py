"""How the plan scales over the numbers of ranks that were tried: strong, by their duels; weak, by one rank alone."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

from overdrive.core.exchanged import Exchanged, of_kind
from overdrive.core.facts import Facts
from overdrive.core.trial_spec import TrialSpec
from overdrive.core.tune_result import Scaling
from overdrive.evidence.speed import seconds_per_step
from overdrive.machine.pool.curve import Measured
from overdrive.ranks.membership import threads_of
from overdrive.techniques.catalogue import ranks_for
from overdrive.trials.duel import Duel, Side
from overdrive.tuner.duel_runner import ALONE, DuelRunner
from overdrive.tuner.figures import figures
from overdrive.tuner.findings import Findings
from overdrive.tuner.schedule import Schedule
from overdrive.tuner.strategies.ranks import TECHNIQUE

_NO_TIME = "no time was left in the budget"
_THREADS = "OMP_NUM_THREADS"


def measure_weak_scaling(found: Findings, duels: DuelRunner, schedule: Schedule) -> None:
    """One rank with its share of the batch, the others imagined, against all of them; as far as there is time left."""
    for ranks, strong in _measured(found).items():
        told = _weak(found, strong.new, duels, schedule)
        found.take_weak_scaling(ranks, told)
        said = told.describe() if isinstance(told, Duel) else told
        duels.progress.outcome(f"weak scaling of {ranks} ranks: {said}")


def _weak(found: Findings, spec: TrialSpec, duels: DuelRunner, schedule: Schedule) -> Duel | str:
    """Or why it is not measured."""
    if found.facts.device != "cpu":
        return "a rank by itself is measured on CPUs alone"
    if not schedule.time_for_duel(ALONE):
        return _NO_TIME
    duels.progress.stage("one rank alone, against all of them")
    duel = duels.run_duel(_alone(spec), spec, ALONE, schedule.deadline)
    if duel.interval is not None:
        return duel
    reason = duel.old_exit_reason or duel.exit_reason
    return f"its trial came to an end: {reason}" if reason else _NO_TIME


def scaling_of(found: Findings) -> tuple[Scaling, ...]:
    """A row for one process, and one for each number of ranks that something was measured of."""
    measured = _measured(found)
    rows = [_row(found, ranks, duel) for ranks, duel in sorted(measured.items())]
    return (_one_process(next(iter(measured.values()))), *rows) if rows else ()


def _measured(found: Findings) -> Mapping[int, Duel]:
    """By number of ranks, the duel of the plan on them against itself in one process."""
    tried: list[tuple[str, Duel | None]] = [(each.name, each.duel) for each in (*found.rejected, *found.dropped)]
    tried += [*((each.name, each.duel) for each in found.adopted), *found.other_duels]
    told: dict[int, Duel] = {}
    for name, duel in tried:
        on_ranks = name.startswith(TECHNIQUE) and duel is not None and ranks_for(duel.old.techniques) == 1
        if duel is not None and on_ranks and duel.kept() and (ranks := ranks_for(duel.new.techniques)) > 1:
            told[ranks] = duel
    return told


def _alone(spec: TrialSpec) -> TrialSpec:
    """With the threads that it has beside the others."""
    threads = 0 if _THREADS in os.environ else threads_of(ranks_for(spec.techniques))
    return replace(spec, alone=True, threads=threads)


def _one_process(duel: Duel) -> Scaling:
    told = figures(duel, new=False)
    if told is None:
        return Scaling(ranks=1)
    return Scaling(
        ranks=1,
        samples_per_s=told.samples_per_s,
        seconds_per_step=told.seconds_per_step,
        peak_memory=told.peak_memory,
    )


def _row(found: Findings, ranks: int, duel: Duel) -> Scaling:
    told, weak, side = figures(duel, new=True), found.weak.get(ranks, _NO_TIME), duel.new_side
    assert told is not None  # as its pairs were kept
    alone, together = seconds_per_step(weak.kept()) if isinstance(weak, Duel) else (None, None)
    return Scaling(
        ranks=ranks,
        samples_per_s=told.samples_per_s,
        seconds_per_step=told.seconds_per_step,
        speedup=duel.interval,
        efficiency=_efficiency(ranks, duel),
        communication=side.exchanged.seconds / side.seconds if side.exchanged and side.seconds else None,
        by_doctor=_by_doctor(found.pool, ranks, side),
        pool=found.pool.name if found.pool else "",
        peak_memory=told.peak_memory,
        alone=alone,
        together=together,
        weak=weak.interval if isinstance(weak, Duel) else None,
        why_not_weak=weak if isinstance(weak, str) else "",
    )


def _efficiency(ranks: int, duel: Duel) -> float | None:
    """On a CPU ranks share the cores that one process has: the speed-up alone tells nothing of how well they do."""
    if duel.interval is None or duel.old_facts is None or duel.new_facts is None:
        return None
    more = ranks * _units(duel.new_facts) / _units(duel.old_facts)
    return duel.interval.estimate / more


def _units(facts: Facts) -> int:
    """Of a process, what it computes with: threads, or the one GPU."""
    return 1 if facts.device == "cuda" else max(1, facts.threads)


def _by_doctor(pool: Measured | None, ranks: int, side: Side) -> float | None:
    """What went beside the backward pass counts in full here: the pool was measured with nothing beside it."""
    exchanged = side.exchanged
    if pool is None or exchanged is None or ranks > pool.ranks or not side.seconds:
        return None
    return _seconds(exchanged, pool, ranks) / side.seconds


def _seconds(exchanged: Exchanged, pool: Measured, ranks: int) -> float:
    network = pool.by_memory() if exchanged.by_memory else pool
    return sum(count * network.seconds(*of_kind(kind), ranks) for kind, count in exchanged.counts.items())
