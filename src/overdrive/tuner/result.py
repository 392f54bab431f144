"""Turns findings into what people keep: the result and the plan."""

from __future__ import annotations

import datetime
from dataclasses import replace

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.core.interval import Interval
from overdrive.core.json_data import from_json, to_json
from overdrive.core.plan import Plan, PlannedTechnique, PlanRejected
from overdrive.core.records import Trace
from overdrive.core.tune_result import (
    AttributionRecord,
    DuelRecord,
    Figures,
    Kept,
    Loader,
    Losses,
    NotKept,
    OwnRun,
    PairRecord,
    RunGain,
    SideFigures,
    TuneResult,
)
from overdrive.evidence.equivalence import OPEN, proof_record, step_losses
from overdrive.evidence.speed import Pair, speedup
from overdrive.machine.inventory import summary, versions
from overdrive.techniques.catalogue import catalogue, conflict
from overdrive.trials.duel import Duel, new_names
from overdrive.tuner.devices import devices_of
from overdrive.tuner.figures import figures, sizes_of_calls
from overdrive.tuner.findings import Findings
from overdrive.tuner.formats import precision_table
from overdrive.tuner.next_step import next_step
from overdrive.tuner.notes import notes_of
from overdrive.tuner.outcomes import Adopted, Rejected, duels_of
from overdrive.tuner.scaling import scaling_of
from overdrive.tuner.whole_runs import LENGTHS, break_even, run_seconds, whole_run

_MOST_LOSSES = 2000  # points of a loss curve that a report needs


def result_of(found: Findings, plan_path: str) -> TuneResult:
    """Everything that `--json`, the report and the ledger hold."""
    before, after, rejected = _before(found), _after(found), _all_rejected(found)
    measured, control = found.measured() if found.chosen else None, found.control
    return TuneResult(
        program=found.program.command(),
        contract=str(_contract(found)),
        objective=str(found.objective),
        inference=found.inference,
        call_sizes=sizes_of_calls((control, found.confirmation)),
        verdict=found.verdict.value,
        speedup=_total(found),
        unconfirmed=found.standing.basis if found.standing and found.chosen else "",
        beside_others=found.beside_others(),
        noise_floor=found.noise(),
        baseline=before,
        tuned=after,
        devices=devices_of(found),
        scaling=scaling_of(found),
        loaders=_loaders(control.old_facts if control else None),
        tuned_loaders=_loaders(measured.new_facts if measured else None),
        techniques=tuple(_kept(found, each) for each in found.chosen),
        rejected=tuple(map(_not_kept, rejected)),
        precision=precision_table(found, rejected),
        check=found.proof.sentence if found.proof else "",
        proof=proof_record(found.proof) if found.proof and found.proof is not OPEN else None,
        attribution=_attribution(found),
        tuning_seconds=round(found.seconds, 1),
        break_even_steps=break_even(found, before, after),
        whole_run=tuple(RunGain(each, round(whole_run(before, after, each), 3)) for each in LENGTHS)
        if before and after and not found.objective.latency
        else (),
        own_run=_own_run(found, before, after),
        machine=summary(),
        versions=versions(),
        duels=_duels(found),
        losses=_losses(found),
        proxy=bool(found.proof and found.proof.proxy),
        plan=plan_path,
        date=datetime.date.today().isoformat(),
        isolation=found.isolation,
        notes=tuple(notes_of(found, before, after)),
        next_step=next_step(found),
    )


def plan_of(found: Findings, result: TuneResult) -> Plan:
    machine = to_json(result.machine)
    return Plan(
        program=found.program.name,
        contract=_contract(found),
        techniques=tuple(
            PlannedTechnique(each.name, dict(each.settings), _level(found, each), each.verdict.value, each.speedup)
            for each in found.chosen
        ),
        verdict=result.verdict,
        speedup=result.speedup,
        unconfirmed=result.unconfirmed,
        noise_floor=result.noise_floor,
        baseline=_rates(result.baseline),
        tuned=_rates(result.tuned),
        rejected=tuple(
            PlanRejected(each.name, dict(each.settings), each.reason)
            for each in result.rejected
            if each.kind == "measured"
        ),
        tuning_seconds=result.tuning_seconds,
        break_even_steps=result.break_even_steps,
        machine={key: value for key, value in machine.items() if isinstance(value, (str, int, float, bool))},
        versions=result.versions,
        created=result.date,
        inference=found.inference,
    )


def _contract(found: Findings) -> Contract:
    """What was asked for; open where a technique was asked for by name that changes the training itself."""
    return max((found.contract, *(each.check.level or found.contract for each in found.chosen)), key=lambda c: c.rank)


def _level(found: Findings, adopted: Adopted) -> Contract:
    """The level a plan may promise: what was seen here, but no stricter than the technique promises anywhere."""
    declared = catalogue()[adopted.name].contract_with(adopted.settings)
    proof = found.proof if adopted.joined else None  # it was never proved but with the whole plan
    seen = (proof.level if proof else adopted.check.level) or declared
    return seen if declared.allows(seen) is False else declared


def _kept(found: Findings, each: Adopted) -> Kept:
    level = str(_level(found, each))
    return Kept(each.name, dict(each.settings), level, each.verdict.value, each.speedup, each.check.sentence)


def _own_run(found: Findings, before: Figures | None, after: Figures | None) -> OwnRun | None:
    """Where a trial of the untouched program came to its end; not where only its calls were timed."""
    duels = [found.control, found.confirmation, *duels_of(found.adopted), *(duel for _, duel in found.other_duels)]
    steps = max((duel.total_steps for duel in duels if duel and duel.total_steps), default=None)
    if steps is None or before is None or after is None or not found.chosen or found.objective.latency:
        return None
    old, new = run_seconds(before, after, steps)
    return OwnRun(steps, round(old, 3), round(new, 3))


def _loaders(facts: Facts | None) -> tuple[Loader, ...]:
    """The parts of an item's time, for each loader that the program iterated over."""
    return tuple(
        Loader(
            batch_size=each.batch_size,
            workers=each.workers,
            samples=each.length,
            batch_bytes=each.batch_bytes,
            seconds_per_item=dict(each.seconds_per_item),
            not_split=each.not_split,
            draws=each.draws,
        )
        for each in (facts.loaders if facts else ())
    )


def _all_rejected(found: Findings) -> list[Rejected]:
    facts = _last_facts(found)
    lost = (
        []
        if found.chosen
        else [
            Rejected(each.name, each.settings, "won its duel, but the whole plan was not confirmed", each.duel)
            for each in found.adopted
        ]
    )
    return [*found.rejected, *found.dropped, *lost, *(leftovers(found, facts) if not found.refusal else [])]


def _last_facts(found: Findings) -> Facts | None:
    """Of the plan; what an item costs, of the untouched program where the plan's own process does not make items."""
    plain = found.control.old_facts if found.control else None
    for duel in [each.duel for each in reversed(found.adopted)]:
        if duel.new_facts:
            return duel.new_facts.with_costs_of(plain) if plain else duel.new_facts
    return plain


def _not_kept(each: Rejected) -> NotKept:
    verdict = each.duel.verdict.value if each.duel else ""
    return NotKept(each.name, dict(each.settings), each.reason, each.kind, verdict, each.speedup)


def _attribution(found: Findings) -> AttributionRecord | None:
    if found.attribution is None:
        return None
    record = from_json(AttributionRecord, to_json(found.attribution))
    return replace(record, dropped=tuple(NotKept(each.name, reason=each.reason) for each in found.dropped))


def _total(found: Findings) -> Interval | None:
    """The speedup of the whole plan against the untouched program; None where that does not run."""
    if found.needed() or found.confirmation is None:
        return None
    return found.standing.interval if found.standing else found.confirmation.interval


def _after(found: Findings) -> SideFigures | None:
    needed = found.needed()
    if found.confirmation and len(found.chosen) > len(needed):
        duel = found.measured()
        return _as_stated(found, duel, _whole(found, duel, True, duel.new_facts)) if duel else None
    if not needed:
        return None
    if found.control and found.control.pairs:
        return _side(found.control, False, found.control.old_facts)
    return _side(needed[-1].duel, True, None)


def _as_stated(found: Findings, duel: Duel, after: SideFigures | None) -> SideFigures | None:
    """Where the speed-up that is stated is not its duel's alone, since the screening says another one: a step that is
    so much faster than the untouched program's in that duel."""
    stated = found.standing.interval if found.standing else None
    if after is None or stated is None or found.objective.latency or after.seconds_per_step is None:
        return after
    times = speedup(duel.kept()).estimate / stated.estimate
    rate = after.samples_per_s and after.samples_per_s / times
    return replace(after, seconds_per_step=after.seconds_per_step * times, samples_per_s=rate)


def _before(found: Findings) -> SideFigures | None:
    if found.needed():
        return None  # it did not run
    measured = found.measured()
    duel = measured if measured and measured.pairs else found.of_plain()
    facts = found.control.old_facts if found.control else None
    return _whole(found, duel, False, facts) if duel else None


def _whole(found: Findings, duel: Duel, new: bool, facts: Facts | None) -> SideFigures | None:
    """With the start of the user's own command, and the seconds between two epochs, if they are known."""
    starts, between = found.starts, found.between
    start = (starts.after if new else starts.before) if starts else None
    side = _side(duel, new, facts, start)
    if side is None or between is None:
        return side
    return replace(side, epoch_steps=between.steps, between_epochs=(between.after if new else between.before) or None)


def _side(duel: Duel, new: bool, facts: Facts | None, start: float | None = None) -> SideFigures | None:
    measured = figures(duel, new, start)
    return SideFigures(**vars(measured), shares=dict(facts.shares) if facts else {}) if measured else None


def _rates(side: Figures | None) -> dict[str, float]:
    named = {} if side is None else {"samples_per_s": side.samples_per_s, "seconds_per_step": side.seconds_per_step}
    return {name: value for name, value in named.items() if value is not None}


def _duels(found: Findings) -> tuple[DuelRecord, ...]:
    named: list[tuple[str, Duel]] = []
    if found.control:
        named.append(("control (A/A)", found.control))
    named += [(" + ".join(new_names(duel)), duel) for duel in duels_of(found.adopted)]
    named += found.other_duels
    named += [(each.name, each.duel) for each in (*found.rejected, *found.dropped) if each.duel]
    named += [(f"weak scaling of {ranks} ranks", duel) for ranks, duel in found.weak.items() if isinstance(duel, Duel)]
    if found.confirmation:
        named.append(("confirmation", found.confirmation))
    named = [each for place, each in enumerate(named) if each[1] not in [duel for _, duel in named[:place]]]
    return tuple(
        DuelRecord(
            name=name,
            settings=dict(dict(duel.new.techniques).get(name.split(",")[0], {})),
            against=duel.old.name(),
            verdict=duel.verdict.value,
            speedup=duel.interval,
            peak_memory=(duel.old_side.peak_memory or None, duel.new_side.peak_memory or None),
            pairs=tuple(map(_pair, duel.pairs)),
        )
        for name, duel in named
    )


def _pair(pair: Pair) -> PairRecord:
    """Without the times of calls one by one, of which the percentiles are told."""
    return PairRecord(**{name: value for name, value in vars(pair).items() if name != "calls"})


def _losses(found: Findings) -> Losses:
    measured, control = found.measured(), found.control
    plain = measured.old_trace if measured else control.old_trace if control else None
    return Losses(
        baseline=_curve(plain),
        tuned=_curve(measured.new_trace) if measured and found.chosen else (),
        seeds=tuple(tuple(losses[:_MOST_LOSSES]) for losses in found.seeds),
    )


def _curve(trace: Trace | None) -> tuple[float, ...]:
    return tuple(step_losses(trace)[:_MOST_LOSSES]) if trace else ()


def leftovers(found: Findings, facts: Facts | None) -> list[Rejected]:
    """The techniques that never came to a duel, with the reason that holds for the final plan."""
    named = {each.name for each in found.adopted} | {each.name for each in [*found.rejected, *found.dropped]}
    rest = []
    for name, technique in catalogue().items():
        if name in named or technique.contract is Contract.OPEN or (found.only and name not in found.only):
            continue
        if not technique.is_for(found.inference) or (facts and facts.framework not in technique.frameworks):
            continue  # no part of this program's catalogue
        reason = technique.applies(facts) if facts else None
        if reason is None and found.objective.aim not in technique.aims:
            reason = f"it saves {technique.aims[0]}, and {found.objective.aim} was asked for"
        measured = None
        if reason is None and (other := conflict(name, (each.name for each in found.chosen))):
            reason, measured = f"it cannot be in one plan with {other}", found.screened.speedups.get(name)
        kind = "measured" if measured else "unfit" if reason else "time"
        rest.append(Rejected(name, {}, reason or "not tried", kind=kind, measured=measured))
    return rest
