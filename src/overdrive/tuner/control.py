"""The control: the program against itself, which gives the noise floor, the facts, and whether it repeats itself."""

from __future__ import annotations

import math
from functools import partial

from overdrive.core.contract import Contract
from overdrive.core.metric import Metric
from overdrive.core.objective import size
from overdrive.core.records import ExitReason
from overdrive.core.units import duration, noise_told, several
from overdrive.evidence.equivalence import first_non_finite, same_bits
from overdrive.proof.budget import ProofBudget
from overdrive.proof.prover import Prover
from overdrive.trials.duel import Duel
from overdrive.trials.trial import MANY_FILES
from overdrive.trials.untimed import UntimedRunner
from overdrive.tuner.duel_runner import CONTROL, DuelRunner
from overdrive.tuner.figures import step_time
from overdrive.tuner.findings import Findings
from overdrive.tuner.neighbours import held, untold
from overdrive.tuner.next_step import longer_tune, too_short
from overdrive.tuner.oom_recovery import OomRecovery

_MANY_FILES = (
    "The program writes a thousand files or more before its first step, and every trial does so again, since what a "
    "trial writes is thrown away. Run it once by itself, then tune: that will be quicker."
)
_PROOF_SHARE = 0.25  # of the budget, until a statistical proof's first look: its runs are made that short
_SHORTEST = 90.0  # seconds of a tune, however short the program
_OF_THE_START = 0.25  # what all steps of a program take, below which there is nothing to be gained by faster ones
_MOST_TURNS = 2  # times that a program turns out to be of the other kind
_DIGESTS_SHARE = 0.06  # likewise the steps of one trial of another proof, of which most candidates need one


class Control:
    """Runs the control; where nothing can be looked for, `found` says why and there is no prover."""

    def __init__(self, found: Findings, duels: DuelRunner, metric: Metric | None, margin: float | None = None) -> None:
        self._found = found
        self._duels = duels
        self._metric = metric
        self._margin = margin
        self._turned = 0

    def run(self) -> Prover | None:
        found = self._found
        plain = found.reference()
        self._duels.progress.stage("control: the program against itself")
        duel = self._duels.run_duel(plain, plain, CONTROL, found.deadline())
        found.begin(duel)
        failure = duel.old_exit_reason or duel.exit_reason
        if failure and failure.kind in ("answers", "trains") and self._turned < _MOST_TURNS:
            return self._as_what_it_is(failure)
        if failure and failure.kind == "oom":
            return self._after_running_out(failure)
        if failure and len(duel.pairs) < 2:
            seen = self._turned or duel.old_side.setup_seconds or duel.new_side.setup_seconds
            sentence, failed = _refusal(failure, seen=bool(seen))
            run = duel.old_trace or duel.new_trace
            if failure.kind == "ended" and run and run.steps:
                sentence = _all_start(duel, run.steps) or (
                    f"The program is too short to be measured. {too_short(found, run.steps)}"
                )
            if failure.kind == "late":
                sentence += f" With more time: {longer_tune(found)}."
            found.refuse(sentence, failed)
            return None
        if duel.sequential:
            found.note(
                "Two of the program at once do not fit into the memory, or the GPU takes one process only: whole "
                "processes were run in turn instead, "
                "which takes longer and leaves wider intervals."
            )
        found.controlled(duel.old_facts)
        if found.objective.latency and not found.inference:
            found.refuse(f"The objective {found.objective} is for programs that only call their model; this one trains")
            return None
        self._shorten()
        prover = self._prover(duel)
        if not self._repeats(duel, prover):
            return None
        self._tell(duel)
        return prover if self._has_its_metric(prover) else None

    def _has_its_metric(self, prover: Prover) -> bool:
        """Whether the program's own number, which a plan is held to, is there; where none was asked for, too."""
        lacking = prover.lacks_the_metric(self._found.reference())
        if lacking is None:
            return True
        sentence = lacking.sentence[0].upper() + lacking.sentence[1:]
        if lacking.late:
            sentence = (
                "A whole run, after which the metric is known, takes more than a third of the budget: write a longer "
                "--budget, or have the program answer less"
            )
        self._found.refuse(f"{sentence}.", failed=not lacking.late)
        return False

    def _as_what_it_is(self, failure: ExitReason) -> Prover | None:
        """It does not train, and is to be measured by its model's calls; or the other way round."""
        found = self._found
        self._turned += 1
        found.controlled(inference=failure.kind == "answers")
        what = "an inference program: its steps are the calls of its model" if found.inference else "a training program"
        self._duels.progress.outcome(f"{what} ({failure.detail})")
        return self.run()

    def _prover(self, duel: Duel) -> Prover:
        seconds, pool, facts = self._found.budget, self._duels.pool, self._found.facts
        prover = Prover(
            UntimedRunner(pool, partial(pool.untimed_launcher, facts)),
            self._duels.checkpoint,
            facts,
            self._duels.progress.stage,
            self._metric,
            proof_budget=ProofBudget(
                _PROOF_SHARE * seconds,
                _DIGESTS_SHARE * seconds,
                duel.old_side.setup_seconds,
                duel.total_steps,
                duel.sequential,
                duel.old_side.peak_memory,
            ),
            margin=self._margin,
        )
        prover.end_by(self._found.deadline())
        return prover

    def _shorten(self) -> None:
        """Where nobody said how long: never longer than the runs that are to be made faster."""
        found, length = self._found, self._found.run_seconds()
        if found.runs is None or length is None or found.runs * length >= found.budget:
            return
        found.shorten(max(_SHORTEST, found.runs * length))
        self._duels.progress.outcome(
            f"the program runs for {length:.0f} s: at most {duration(found.budget)} are worth it for "
            f"{found.runs} runs (--runs, --budget)"
        )

    def _repeats(self, duel: Duel, prover: Prover) -> bool:
        """Whether a plan can be looked for, given what the program's two traces have in common."""
        found = self._found
        if duel.old_trace is None or duel.new_trace is None:
            return True
        bad = first_non_finite(duel.old_trace)
        if bad:
            found.refuse(
                f"The program's own loss is not finite in step {bad}; there is nothing to keep equal to.", True
            )
            return False
        found.controlled(deterministic=same_bits(duel.old_trace, duel.new_trace))
        if found.deterministic:
            return True
        repeats = prover.repeats(found.reference(), restricted=found.contract is Contract.EXACT, in_doubt=True)
        sentence = f"The level exact cannot be seen to hold for this program: {repeats.sentence}."
        if found.contract is Contract.EXACT and prover.restricted:
            found.note(f"{sentence} What leaves its operations as they are is proved with those alone.")
            return True
        if found.contract is Contract.EXACT and repeats.level is None:
            found.refuse(f"{sentence} Try --contract rounding.", failed=True)
            return False
        found.controlled(deterministic=repeats.level is Contract.EXACT)
        if not found.deterministic:
            found.note(sentence)
        return True

    def _tell(self, duel: Duel) -> None:
        found, progress = self._found, self._duels.progress
        found.note(*untold(duel))
        if (failure := duel.old_exit_reason or duel.exit_reason) and failure.kind not in ("ended", "late"):
            found.note(f"The program failed by itself in the control ({failure}): what comes after is not known.")
        if self._duels.pool.prepared_files >= MANY_FILES:
            found.note(_MANY_FILES)
            progress.outcome(_MANY_FILES)
        if who := held(duel):
            progress.outcome(f"this machine is busy: {who}")
        noise, step = found.noise(), step_time(duel)
        progress.outcome(
            f"{f'{step:.3g} s' if step >= 1 else f'{step * 1e3:.3g} ms'} a {duel.old.unit}"
            + (f", noise floor {noise_told(noise)}" if noise is not None else "")
            + (f", {size(found.peak())} at the peak" if found.peak() else "")
        )

    def _after_running_out(self, failure: ExitReason) -> Prover | None:
        """The control ran out of memory, one process at a time too."""
        found = self._found
        if found.needed():
            found.note("With that it runs, and out of memory later on: nothing faster was looked for.")
            return None
        recovery = OomRecovery(found, self._duels, found.deadline())
        if recovery.run():
            return self.run()
        found.refuse(
            f"The program runs out of memory by itself ({failure.detail}), and {recovery.in_vain()}.", failed=True
        )
        return None


def _all_start(duel: Duel, steps: int) -> str:
    """That the program hardly does more than start; "" where it does.

    Public linear regression, a beginner's first program: 60 steps of less than 1 ms after 2.5 s of imports.
    """
    start = duel.old_side.setup_seconds
    ran = duel.beside[-1] + duel.looked if duel.beside and not duel.pairs else math.inf
    both = ran - start - duel.new_side.setup_seconds
    if not 0 < both / 2 < _OF_THE_START * start:
        return ""
    unit = duel.old.unit
    made = f"only {unit}" if steps == 1 else several(steps, unit)
    return (
        f"The program's {made} {'takes' if steps == 1 else 'take'} {both / 2:.1g} s at the most, and its start takes "
        f"{start:.1f} s: there is nothing to be gained by {'a faster one' if steps == 1 else f'faster {unit}s'}."
    )


def _refusal(failure: ExitReason, seen: bool) -> tuple[str, bool]:
    """In a sentence, and whether it is the program's own failure. `seen`: it made a step, or a call."""
    if failure.kind == "ended" and failure.detail in ("", "after 0 steps", "after 0 calls"):
        return "The program made no training step, and called no model, that Overdrive could see.", False
    if failure.kind == "no optimizer":
        return (
            "The program computes gradients, but no optimizer makes a step. Overdrive tunes steps of optimizers "
            "(PyTorch's or Keras's, or classes that derive from torch.optim.Optimizer or keras.optimizers.Optimizer), "
            "or calls of a model without gradients.",
            False,
        )
    if failure.kind == "late" and seen:
        return f"The program is too slow to be measured: {failure.detail}.", False
    if failure.kind == "late":
        said = "No training step, and no calls of a model without one, were seen within the budget"
        return f"{said}. Those of processes that the script starts are not seen.", False
    if failure.kind in ("answers", "trains"):
        return f"It is not clear whether the program trains ({failure.detail}).", False
    if failure.kind == "ended":
        return f"The program is too short to be measured: {failure.detail}.", False
    if said := failure.unwatched:
        return said, False
    if failure.kind == "busy":
        return f"Another process has the GPU, which takes one only ({failure.detail}).", True
    return f"The program fails by itself ({failure}).", True
