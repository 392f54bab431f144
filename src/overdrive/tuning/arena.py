"""Where duels are fought: by which rules, remembered in the ledger, shown as they go."""

from __future__ import annotations

import time

from overdrive.trials.duel import Duel, Rules
from overdrive.trials.fight import fight
from overdrive.trials.host import House
from overdrive.trials.order import Order
from overdrive.tuning.resume import Memory

CONTROL = Rules(looks=(10, 20, 40), processes=1, most_processes=1, patient=True)
CANDIDATE = Rules(looks=(10, 20, 40, 80), processes=1, most_processes=2)
WEIGHED = Rules(looks=(10,), processes=1, most_processes=1)  # of a candidate that is to save memory
AGAIN = Rules(looks=(10, 20), processes=2, most_processes=2)  # of one that gained nothing in the whole plan
CONFIRMATION = Rules(looks=(10, 20), processes=3, most_processes=5, patient=True)


class Progress:
    """What the search tells while it works; the terminal shows it. This one is silent."""

    def stage(self, text: str) -> None: ...

    def pair(self, duel: Duel) -> None: ...

    def outcome(self, text: str) -> None: ...


class Arena:
    """What all duels of one tune share."""

    def __init__(self, house: House, memory: Memory, progress: Progress) -> None:
        self.house = house
        self.progress = progress
        self._memory = memory
        self.apart = False  # the program fits into the memory once, and not twice

    def fight(self, old: Order, new: Order, rules: Rules, deadline: float) -> Duel:
        """`new` against `old`, until `deadline` (time.monotonic()); one fought before is taken from the ledger."""
        key = f"{rules.processes}: {old.name()} | {new.name()}"
        known = self._memory.duel(key, old, new)
        if known is not None:
            self.progress.outcome("(known from a tune that was broken off)")
            self.apart |= known.apart and old == new
            return known
        duel = fight(self.house, old, new, rules, deadline, self.progress.pair, self.apart)
        if not duel.apart and _out_of_memory(duel):
            self.progress.outcome("two at once do not fit into the memory: whole processes in turn")
            duel = fight(self.house, old, new, rules, deadline, self.progress.pair, apart=True)
            self.apart |= old == new and not _out_of_memory(duel)
        if time.monotonic() < deadline:  # a duel that ran out of time is fought again
            self._memory.remember_duel(key, duel)
        return duel


def _out_of_memory(duel: Duel) -> bool:
    return any(ending is not None and ending.kind == "oom" for ending in (duel.old_ending, duel.ending))
