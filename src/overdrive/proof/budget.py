"""The budget of a tune's proofs: how long they are, and how many of their runs share the machine."""

from __future__ import annotations

import math
from dataclasses import dataclass

from overdrive.core.facts import Facts
from overdrive.machine.cpu import granted_cores
from overdrive.machine.memory import available_memory

FEWEST_STEPS = 100  # that a proof covers, where the program makes so many and the budget allows it ...
_SLOW_STEPS = 20  # ... and where it does not: each state from which a replayed step is made, and some more
MOST_STEPS = 400
_PAST_THE_EPOCH = 20  # steps into the second epoch, where a cache that froze random draws shows
_SECONDS = 15.0  # that the steps of one run may take, beyond FEWEST_STEPS
_HASHING = 9e-9  # seconds for a parameter and two numbers of its optimizer: 12 bytes, 1.3 GB a second (on a GPU none)
# Runs under seeds share the cores of a CPU, each with its share of threads, both arms alike: starting is most of
# a short run, and is done by one core. Programs of more parameters than this run alone, for the memory's sake.
_AT_ONCE = 4
_SMALL = 20_000_000
_MEMORY_SHARE = 0.6  # of what is left


@dataclass(frozen=True)
class ProofBudget:
    """What a tune can spare for its proofs, and what it knows of the program's processes."""

    seconds: float = math.inf  # that a statistical proof should take: its runs are made as short as they may be
    digests: float = math.inf  # that the steps of one other trial should take, likewise
    start: float = 0.0  # seconds from a process's start to its first step
    length: int | None = None  # of the whole program in steps, where that is known
    alone: bool = False  # two processes at once do not fit into the memory
    peak: int = 0  # bytes of one process; 0: not known


def runs_at_once(facts: Facts, proof_budget: ProofBudget) -> int:
    """How many runs may share the cores and the memory."""
    if facts.device != "cpu" or facts.parameters >= _SMALL or proof_budget.alone:
        return 1
    room = available_memory()
    fitting = int(_MEMORY_SHARE * room / proof_budget.peak) if room and proof_budget.peak else _AT_ONCE
    return max(1, min(granted_cores(), _AT_ONCE, fitting))


def horizon(facts: Facts, seconds: float = math.inf) -> int:
    """Steps that a proof covers: some of the second epoch, where that is within reach.

    Args:
        seconds: that they should take; fewer steps than FEWEST_STEPS are made for its sake.
    """
    epochs = [-(-loader.length // loader.batch_size) for loader in facts.loaders if loader.length and loader.batch_size]
    wanted = max(epochs, default=0) + _PAST_THE_EPOCH
    each = facts.step_seconds and facts.step_seconds + _HASHING * facts.parameters * (facts.device == "cpu")
    affordable = int(_SECONDS / each) if each else MOST_STEPS
    steps = max(FEWEST_STEPS, min(wanted, affordable, MOST_STEPS))
    if each and steps * each > seconds:
        return max(_SLOW_STEPS, int(seconds / each))
    return steps
