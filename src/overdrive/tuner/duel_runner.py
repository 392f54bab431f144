"""Runs a tune's duels: sets their rules, keeps them in the ledger, shows them as they go."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping

from overdrive.core.interval import Interval
from overdrive.core.trial_spec import TrialSpec
from overdrive.trials.checkpoint import TuneCheckpoint
from overdrive.trials.duel import Duel, Rules
from overdrive.trials.pool import TrialPool
from overdrive.trials.run_duel import run_duel

CONTROL = Rules(looks=(10, 20, 40), processes=1, most_processes=1, patient=True)
CANDIDATE = Rules(looks=(10, 20, 40, 80), processes=1, most_processes=2)
# Of what was seen in many blocks already, and whose gain is told by both: one look more, at all of it together. The
# fused optimizer of a public script, screened at 1.04 [1.02, 1.06], took 58 s to show the same by its duel alone.
SCREENED = Rules(looks=(10, 20), processes=1, most_processes=1)
MEMORY = Rules(looks=(10,), processes=1, most_processes=1)  # of a candidate that is to save memory
ALONE = Rules(looks=(10, 20), processes=1, most_processes=1)  # of one rank against all
AGAIN = Rules(looks=(10, 20), processes=2, most_processes=2)  # of one that gained nothing in the whole plan


def confirmation(pairs: int, most: int = 0) -> Rules:
    """So many fresh pairs of processes, whatever they show, and up to `most` where the clock leaves time.

    Of 12 pairs of blocks each: simulated with `evidence.confirmation`, four processes of 10 tell more than three of 20
    do in the same time, wherever processes differ by 1 to 6 % and blocks by 5 or 12 %.
    """
    return Rules(looks=(10, 12), processes=pairs, most_processes=max(pairs, most), patient=True)


class Progress:
    """Receives what the search reports while it works; the terminal shows it. This one is silent."""

    def stage(self, text: str) -> None: ...

    def pair(self, duel: Duel) -> None: ...

    def candidates(self, text: str, speedups: Mapping[str, Interval]) -> None:
        """How a screening goes on: what was measured so far, and each candidate's speedup by it."""

    def outcome(self, text: str) -> None: ...


class DuelRunner:
    """What all duels of one tune share."""

    def __init__(self, pool: TrialPool, checkpoint: TuneCheckpoint, progress: Progress) -> None:
        self.pool = pool
        self.progress = progress
        self.checkpoint = checkpoint
        self.sequential = False  # the program fits into the memory once, and not twice
        self.latest: Duel | None = None  # that measured something, of those that were run: it may be under way
        self._asked: Counter[str] = Counter()  # duels so far, by what the ledger knows them by

    def run_duel(self, old: TrialSpec, new: TrialSpec, rules: Rules, deadline: float) -> Duel:
        """`new` against `old`, until `deadline` (time.monotonic()); an earlier one is taken from the ledger."""
        calls = " of calls" if old.clock == "inference" else ""
        key = f"{_stage(rules, old != new)}{calls}: {old.name()} | {new.name()}"
        self._asked[key] += 1
        if self._asked[key] > 1:  # one that lost narrowly has another chance, which is no look at the first
            key = f"{key}, attempt {self._asked[key]}"
        known = self.checkpoint.duel(key, old, new)
        if known is not None:
            self.progress.outcome("(known from a tune that was broken off)")
            self.sequential |= known.sequential and old == new
            return known
        duel = run_duel(self.pool, old, new, rules, deadline, self._told, self.sequential)
        if not duel.sequential and (kind := _does_not_fit(duel)):
            self.progress.outcome(f"{_TWICE[kind]}: whole processes in turn")
            duel = run_duel(self.pool, old, new, rules, deadline, self._told, sequential=True)
            self.sequential |= old == new and not _does_not_fit(duel)
        if time.monotonic() < deadline:  # a duel that ran out of time is run again
            self.checkpoint.remember_duel(key, duel)
        return duel

    def _told(self, duel: Duel) -> None:
        """A pair of blocks more."""
        self.latest = duel
        self.progress.pair(duel)


def _stage(rules: Rules, differ: bool) -> str:
    """What a duel is for, by which it is known again: what decides anew is no look at what was measured before."""
    if rules.selects:
        return f"selection at {rules.alpha:g}"  # another attempt is at a smaller one
    if rules.patient and differ:
        return "confirmation"
    return "again" if rules is AGAIN else str(rules.processes)


# What two processes at once may end with, where each runs alone.
_TWICE = {"oom": "two at once do not fit into the memory", "busy": "the GPU takes one process at a time"}


def _does_not_fit(duel: Duel) -> str:
    """The kind of an end that one process alone may not come to; empty where there was none."""
    reasons = (duel.old_exit_reason, duel.exit_reason)
    return next((each.kind for each in reasons if each is not None and each.kind in _TWICE), "")
