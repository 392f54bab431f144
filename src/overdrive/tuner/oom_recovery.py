"""For a program that runs out of memory by itself: the techniques with which it runs."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.core.objective import size
from overdrive.core.records import ExitReason, TrialOver
from overdrive.core.settings import Chosen
from overdrive.core.trial_spec import TrialSpec
from overdrive.core.units import listed
from overdrive.evidence.equivalence import Check
from overdrive.techniques.catalogue import catalogue, conflict
from overdrive.trials.duel import Duel, Side
from overdrive.trials.trial import Trial
from overdrive.tuner.duel_runner import DuelRunner
from overdrive.tuner.findings import Findings
from overdrive.tuner.outcomes import Adopted, Rejected

_STEPS = 20  # that it must run: optimizer states are there after the first, fragments after some
_MOST_TOGETHER = 3
_SHARE = 0.5  # of the time left; the rest is for finding what makes it faster
_PATIENCE = 0.25  # of that share, for the first step of any one attempt: one that hangs must leave time for others


class OomRecovery:
    """Tries memory techniques, alone and then together, until the program runs."""

    def __init__(self, found: Findings, duels: DuelRunner, deadline: float) -> None:
        self._found = found
        self._duels = duels
        now = time.monotonic()
        self._deadline = now + _SHARE * (deadline - now)
        self._patience = _PATIENCE * (self._deadline - now)
        self._facts = Facts()
        self._tried: list[str] = []

    def run(self) -> bool:
        """Whether it runs now; then what it needs is adopted, first of all."""
        found = self._found
        self._duels.progress.stage("the program runs out of memory: looking for what it needs to run")
        plain = found.spec()
        first = self._attempt(plain)  # for its facts: the control's trials ended without any
        if not isinstance(first, ExitReason):  # it runs for so many steps, and no longer
            return False
        for chosen in self._plans():
            spec = found.spec(chosen)
            outcome = self._attempt(spec)
            if isinstance(outcome, ExitReason):
                if len(chosen) == 1:
                    name, settings = chosen[0]
                    self._tried += [name] if name not in self._tried else []
                    found.reject(Rejected(name, settings, f"the program does not run with it ({outcome})"))
            else:
                self._adopt(plain, spec, first, outcome)
                return True
            if time.monotonic() > self._deadline:
                break
        return False

    def in_vain(self) -> str:
        """What was tried, for a sentence that says the program runs out of memory."""
        if not self._tried:
            return "no technique that saves memory can be tried on it"
        return f"with all that could be tried: {', '.join(self._tried)}"

    def _plans(self) -> Iterator[tuple[Chosen, ...]]:
        """One setting of one technique, the mildest settings first; then techniques together, each at its strongest."""
        offers = {
            technique.name: [(technique.name, settings) for settings in technique.candidates(self._facts)]
            for technique in catalogue().values()
            if "memory" in technique.aims
            and self._facts.framework in technique.frameworks
            and self._may(technique.name)
            and technique.applies(self._facts) is None
        }
        for rank in range(max(map(len, offers.values()), default=0)):
            yield from ((settings[rank],) for settings in offers.values() if rank < len(settings))
        for count in range(2, _MOST_TOGETHER + 1):
            for names in itertools.combinations([name for name, settings in offers.items() if settings], count):
                if not any(conflict(name, names[:place]) for place, name in enumerate(names)):
                    yield tuple(offers[name][-1] for name in names)

    def _may(self, name: str) -> bool:
        technique = catalogue()[name]
        if self._found.only and name not in self._found.only:
            return False
        return technique.contract is not Contract.OPEN and self._found.contract.allows(technique.contract)

    def _attempt(self, spec: TrialSpec) -> Side | ExitReason:
        trial = Trial(self._duels.pool, spec)
        try:
            side = (
                Side()
                .add(trial.first_step(min(self._deadline, time.monotonic() + self._patience)))
                .add(trial.run(_STEPS, until=self._deadline))
            )
            lost = {name: reason for name, reason in trial.left_out.items() if name in dict(spec.techniques)}
            if lost:
                return ExitReason("left out", next(iter(lost.values())))
            return side
        except TrialOver as over:
            self._facts = over.facts or self._facts
            if over.trace:
                return Side()  # a short program that came to its end
            return over.exit_reason
        finally:
            trial.stop()

    def _adopt(self, plain: TrialSpec, spec: TrialSpec, exit_reason: ExitReason, side: Side) -> None:
        for name, settings in spec.techniques:
            duel = Duel(plain, spec, new_side=side, old_exit_reason=exit_reason)
            level = catalogue()[name].contract
            check = Check(level, "as declared: the program does not run without it, so nothing could be compared")
            self._found.adopt(Adopted(name, settings, duel, check, for_memory=True, needed=True))
        named = listed([name for name, _ in spec.techniques])
        peak = f", with {size(side.peak_memory)} at the peak" if side.peak_memory else ""
        said = f"By itself the program runs out of memory ({exit_reason.detail}); with {named} it runs{peak}."
        self._found.note(
            f"{said} That it learns the same is what their contracts say; it could not be seen here, since there is "
            "nothing to compare with. All speed-ups are against the program with them."
        )
        self._duels.progress.outcome(said)
