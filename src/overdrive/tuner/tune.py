"""The loop of a tune: control, what goes before a screening, that, what may gain one by one, ranks, the whole plan."""

from __future__ import annotations

from overdrive.core.facts import Facts
from overdrive.proof.prover import Prover
from overdrive.trials.checkpoint import TuneCheckpoint
from overdrive.trials.pool import TrialPool
from overdrive.tuner.between_epochs import SHORT_EPOCHS, between_epochs, steps_of_epoch
from overdrive.tuner.control import Control
from overdrive.tuner.duel_runner import DuelRunner, Progress
from overdrive.tuner.finalise import Finaliser
from overdrive.tuner.findings import Findings
from overdrive.tuner.formats import formats_tried
from overdrive.tuner.judge import Judge
from overdrive.tuner.neighbours import neighbours
from overdrive.tuner.request import TuneRequest
from overdrive.tuner.scaling import measure_weak_scaling
from overdrive.tuner.schedule import Schedule
from overdrive.tuner.screened import gains_elsewhere
from overdrive.tuner.screener import Screener
from overdrive.tuner.starts import starts_under
from overdrive.tuner.strategies import Strategy
from overdrive.tuner.strategies.greedy import Greedy
from overdrive.tuner.strategies.ranks import Ranks
from overdrive.tuner.unproved import measure_untried


def tune(request: TuneRequest, pool: TrialPool, checkpoint: TuneCheckpoint, progress: Progress) -> Findings:
    """Find the fastest plan that keeps the contract, within the budget.

    Where Ctrl-C stops it, the best plan that is proved by then is the answer (see `Findings.stopped`).

    Raises:
        KeyboardInterrupt: it was stopped, and nothing was established yet.
    """
    found = Findings(
        request.program,
        request.contract,
        request.objective,
        request.only,
        budget=request.most_seconds(),
        typed=request.typed,
        ranks=request.ranks,
        pool=request.pool,
        runs=request.runs if request.budget is None else None,
        earlier=checkpoint.earlier_duels(),
        spent_before=checkpoint.spent_before,
    )
    duels = DuelRunner(pool, checkpoint, progress)
    found.note(*(others := neighbours()))
    for sentence in others:
        progress.outcome(sentence)  # at once: whoever may wait for a quieter hour need not wait for the end of this one
    pool.until = found.deadline()
    prover = Control(found, duels, request.metric, request.margin).run()
    pool.until = found.deadline()  # which the control may have found to be sooner
    if prover is None:
        found.end([], {}, pool.isolation)
        return found
    schedule = Schedule(found, found.deadline(), prover)
    finaliser = Finaliser(found, duels, prover, schedule)
    errors: dict[str, float] = {}
    try:
        _find(found, duels, prover, schedule, finaliser, request.ranks)
        if found.chosen:
            found.take_starts(starts_under(found.best(), found.inference))
        _between_epochs(found, schedule, pool, progress)
        errors = _errors(found, prover, schedule, progress)
        measure_weak_scaling(found, duels, schedule)  # late: where there is no time for it, the report says so
        measure_untried(found, duels, schedule)
    except KeyboardInterrupt:
        if found.adopted:
            progress.stage("stopped: the plan as far as it is proved")
        schedule.stop()
        finaliser.settle()
        if not found.chosen:
            raise
        found.stop()
    found.end(prover.seed_curves(), errors, pool.isolation)
    return found


def _find(
    found: Findings, duels: DuelRunner, prover: Prover, schedule: Schedule, finaliser: Finaliser, ranks: int | None
) -> None:
    """The plan: what goes before a screening, that, what may gain one by one, ranks; its proof and confirmation."""
    judge = Judge(found, duels, prover, schedule)
    progress = duels.progress
    on_ranks = None if ranks is None else Ranks(found, schedule, progress, ranks)
    elsewhere = gains_elsewhere(found.facts, duels.checkpoint)
    with schedule.kept_back(on_ranks.seconds() if on_ranks else 0.0):
        first = Greedy(found, schedule, progress, elsewhere, ahead=True)
        _search(found, judge, prover, first)
        found.take_screening(Screener(found, duels, schedule, elsewhere).run())
        schedule.contributions_known = bool(found.screened.choice) or duels.sequential
        greedy = Greedy(found, schedule, progress, elsewhere, before=first)
        _search(found, judge, prover, greedy)
    if on_ranks:
        _search(found, judge, prover, on_ranks)
    finaliser.prove()
    with schedule.kept_back(schedule.kept_for_epochs(SHORT_EPOCHS) if _epochs_end_unseen(found) else 0.0):
        while schedule.proved_sooner(found.proof) and greedy.has_time_now():
            proved = found.best()
            _search(found, judge, prover, greedy)
            if found.best() != proved:
                finaliser.prove()
        finaliser.confirm()


def _search(found: Findings, judge: Judge, prover: Prover, asked: Strategy) -> None:
    """Try one candidate after the other, as a strategy has them."""
    while (candidate := asked.ask()) is not None:
        asked.tell(candidate, judge.judge(candidate))
        if found.adopted and found.quick_plain().techniques == found.best():
            prover.steps_take(found.adopted[-1].duel.new_side.seconds_per_step)


def _between_epochs(found: Findings, schedule: Schedule, pool: TrialPool, progress: Progress) -> None:
    """What a whole run has beside its steps, as far as what is left of the budget allows."""
    plain = _epochs_end_unseen(found)
    if plain is None or not found.chosen or found.needed() or not schedule.time_between_epochs(SHORT_EPOCHS):
        return
    progress.stage("what comes between two epochs")
    plan = found.spec(found.best())
    found.take_between_epochs(between_epochs(pool, found.reference(), plan, plain, schedule.deadline))


def _epochs_end_unseen(found: Findings) -> Facts | None:
    """Of the untouched program, where no block of a duel holds what comes between two of its epochs."""
    plain = found.control.old_facts if found.control else None
    return plain if plain and steps_of_epoch(plain) else None


def _errors(found: Findings, prover: Prover, schedule: Schedule, progress: Progress) -> dict[str, float]:
    """How far each number format that was tried lies from fp64, as far as what is left of the budget allows."""
    errors: dict[str, float] = {}
    specs = [found.spec((chosen,)) for chosen in formats_tried(found)]
    plain = found.reference()
    prover.end_by(schedule.deadline)
    for spec in [plain, *specs] if specs else []:
        if not schedule.time_for_errors():
            break
        progress.stage(f"errors against fp64: {spec.name()}")
        error = prover.error_against_fp64(plain, spec)
        if error is not None:
            errors[spec.name()] = error
    return errors
