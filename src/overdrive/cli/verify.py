"""`overdrive verify`: prove again, here and now, that a plan keeps its contract; whole runs where asked."""

from __future__ import annotations

import hashlib
import sys
import time
from functools import partial
from pathlib import Path

import click
from click.core import ParameterSource
from rich.console import Console

from overdrive.cli.json_output import console_beside, json_option, write_json
from overdrive.cli.line import (
    fail,
    faults_as_sentences,
    kept_in,
    parse_plan_and_program,
    parse_program,
    plan_and_program_command,
    program_argument,
    repeat,
    split_plan,
)
from overdrive.cli.run import force_option, read_plan
from overdrive.cli.values import Duration, Whole, margin_option, metric_option, stdin_option
from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.core.json_data import to_json
from overdrive.core.ledger import Ledger, default_path
from overdrive.core.metric import Metric
from overdrive.core.plan import Plan, PlanError
from overdrive.core.program import Program
from overdrive.core.records import Trace, TrialOver
from overdrive.core.trial_spec import TrialSpec
from overdrive.evidence.equivalence import Check, first_non_finite, proof_record
from overdrive.proof.prover import Prover
from overdrive.trials.checkpoint import TuneCheckpoint
from overdrive.trials.pool import TrialPool
from overdrive.trials.trial import Trial
from overdrive.trials.untimed import UntimedRunner

_PROFILED_STEPS = 8


class CannotVerify(Exception):
    """The program could not be examined; the message is one sentence for people."""


def verify(
    plan_path: Path,
    program: Program,
    full: bool,
    metric: Metric | None,
    margin: float | None,
    budget: float,
    json_path: Path | None,
    force: bool = False,
) -> int:
    """Returns the exit code: 0 where the level was seen to hold for what acted of the plan, 1 where not, or none did.

    Raises:
        PlanError: the plan cannot be used.
        CannotVerify: the program fails by itself, or makes no step.
    """
    plan = read_plan(plan_path, program, force)
    console = console_beside(json_path, soft_wrap=True)
    techniques = tuple((each.name, each.settings) for each in plan.techniques)
    if not techniques:
        console.print(f"{plan_path} changes nothing: there is nothing to prove.", markup=False)
        write_json(json_path, to_json(proof_record(Check(Contract.EXACT, "the plan changes nothing"))))
        return 0
    level = _level(plan, full, metric)
    deadline = time.monotonic() + budget
    first = "calls" if plan.inference else "steps"
    what = "the whole program" if full or (metric and not metric.is_loss) else f"its first {first}"
    console.print(f"Verifying {plan_path} at the level {level}, over {what} of {program.command()}.", markup=False)
    with Ledger.open(default_path()) as ledger, kept_in(ledger), TrialPool() as pool:
        checkpoint = TuneCheckpoint(ledger, program, f"verify {_identity(techniques)}")
        if ledger.notice:
            console.print(ledger.notice, markup=False)
        if checkpoint.resumes:
            console.print("Runs of an earlier verification are taken as they are.")
        clock = "inference" if plan.inference else "training"
        plain, tuned = TrialSpec(program, clock=clock), TrialSpec(program, techniques, clock=clock)
        facts = _facts(pool, plain)
        prover = Prover(
            UntimedRunner(pool, partial(pool.untimed_launcher, facts)),
            checkpoint,
            facts,
            lambda text: console.print(f"  {text}", markup=False),
            metric,
            full,
            margin=margin,
        )
        prover.end_by(deadline)
        check = _prove(prover, level, plain, tuned, deadline).of_a_plan([name for name, _ in techniques])
        check = prover.with_the_metric(check, plain, tuned)
    _show(console, check, level)
    write_json(json_path, to_json(proof_record(check)))
    return 0 if check.level is not None else 1


def _level(plan: Plan, full: bool, metric: Metric | None) -> Contract:
    """What is to be shown: the loosest of its techniques' levels; of whole runs, only exact and statistical."""
    level = max((each.contract for each in plan.techniques), key=lambda each: each.rank)
    if metric is not None or level is Contract.OPEN or (full and level is Contract.ROUNDING):
        return Contract.STATISTICAL
    return level


def _prove(prover: Prover, level: Contract, plain: TrialSpec, tuned: TrialSpec, deadline: float) -> Check:
    if level is Contract.STATISTICAL:
        return prover.statistical(plain, tuned, deadline)
    if level is Contract.ROUNDING:
        return prover.rounding(plain, tuned)
    check = prover.exact(plain, tuned)
    if check.level is None:
        repeats = prover.repeats(plain)
        if repeats.level is None:  # the program is to blame, not the plan
            return Check(None, f"the level exact is not available here: {repeats.sentence}", exact=check.exact)
    return check


def _facts(pool: TrialPool, plain: TrialSpec) -> Facts:
    """What the program is like, from its first steps; and whether it is worth examining at all."""
    trial = Trial(pool, plain)
    try:
        trial.first_step()
        trial.run(_PROFILED_STEPS, profile=True)
        facts = trial.facts()
        trace = trial.trace()
    except TrialOver as over:
        if said := over.exit_reason.unwatched:
            raise CannotVerify(said) from None
        if not over.exit_reason.by_itself:
            repeat(pool.last_output)
            raise CannotVerify(f"The program fails by itself ({over.exit_reason}).") from None
        if not over.trace:
            what = "call of a model" if plain.clock == "inference" else "training step"
            raise CannotVerify(f"The program made no {what} that Overdrive could see.") from None
        facts, trace = Facts(), Trace()
    finally:
        trial.stop()
    if bad := first_non_finite(trace):
        raise CannotVerify(f"The program's own loss is not finite in step {bad}; there is nothing to keep equal to.")
    return facts


def _show(console: Console, check: Check, level: Contract) -> None:
    for each in check.invariants:
        console.print(f"  {'same ' if each.same else 'OTHER'}  {each.what}: {each.told}", markup=False)
    for name, reason in check.left_out.items():
        console.print(f"  idle   {name}: {reason}", markup=False)
    proxy = " (a proxy: the runs were shorter than the program)" if check.proxy and check.level else ""
    who = "What acted of the plan" if check.left_out else "The plan"
    verdict = f"{who} keeps the level {check.level}" if check.level else f"The level {level} was not seen to hold"
    console.print(f"{verdict}{proxy}: {check.sentence}.", markup=False)


def _identity(techniques: tuple[tuple[str, object], ...]) -> str:
    return hashlib.sha256(repr(techniques).encode()).hexdigest()[:16]


def _refuse_beside_resume() -> None:
    """Options that would be passed over; defaults in a file are for the other form of this command."""
    source = click.get_current_context().get_parameter_source
    for name in ("full", "metric", "margin", "budget", "stdin", "force"):
        if source(name) is ParameterSource.COMMANDLINE:
            fail(f"--{name} does nothing with --resume: leave it out.")


@plan_and_program_command
@click.option("--full", is_flag=True, help="Compare runs of the whole program, not only its first steps.")
@metric_option
@margin_option
@click.option("--budget", type=Duration(), default="1h", show_default=True, help="Time to spend at most.")
@click.option("--resume", is_flag=True, help="Kill the program, go on as `run --survive` does, and compare the end.")
@click.option("--kills", type=Whole(1), default=5, show_default=True, help="With --resume: how often to kill it.")
@click.option(
    "--seed",
    type=int,
    help="With --resume: the seed for the random moments of the kills.  [default: another each time]",
)
@click.option(
    "--copy",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="With --resume: the folder to copy, one above the working folder.  [default: the working folder]",
)
@json_option
@stdin_option
@force_option
@program_argument("[PLAN] SCRIPT [ARGS]...")
def command(
    full: bool,
    metric: Metric | None,
    margin: float | None,
    budget: float,
    resume: bool,
    kills: int,
    seed: int | None,
    copy: Path | None,
    json_path: Path | None,
    stdin: str | None,
    force: bool,
    words: tuple[str, ...],
) -> None:
    """Prove again that PLAN keeps its contract on this program.

    By default, PLAN is the one beside SCRIPT (a name in .py, or -m MODULE).

    Finished runs are kept: the same command goes on where it was stopped. The exit code is 0 if the level was seen
    to hold, 1 if it was not, or if none of the plan's techniques acted.
    """
    if resume:
        _refuse_beside_resume()
        from overdrive.cli.verify_resume import verify_resume

        with faults_as_sentences(goes_on=False):
            plan, words_of_program = split_plan(words)
            sys.exit(verify_resume(parse_program(words_of_program), plan, kills, seed, json_path, copy))
    plan_path, program = parse_plan_and_program(words, stdin)

    with faults_as_sentences(wrong=PlanError, failed=CannotVerify):
        sys.exit(verify(plan_path, program, full, metric, margin, budget, json_path, force))
