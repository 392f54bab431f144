"""The budget of a tune's proofs: how long they are, and how many of their runs share the machine."""

from __future__ import annotations

import math
from dataclasses import dataclass

from overdrive.core.facts import Facts, LoaderFacts
from overdrive.machine.cpu import granted_cores
from overdrive.machine.gpu import gpus, memory_in_use
from overdrive.machine.memory import available_memory

FEWEST_STEPS = 100  # that a proof covers, where the program makes so many and the budget allows it ...
_SLOW_STEPS = 20  # ... and where it does not
# Of these each is a state from which a step is replayed, and fewer than ten tell less (evidence/rounding.py). Of public
# ImageNet's ResNet-18, 1.6 s a step, 20 took 128 s of five minutes, in vain.
_SLOW_STATES = 12
MOST_STEPS = 400
_PAST_THE_EPOCH = 20  # steps into the second epoch, where a cache that froze random draws shows
PAST_THE_END = 4  # steps after the last shortened epoch, when its evaluation is over
_SECONDS = 15.0  # that the steps of one run may take, beyond FEWEST_STEPS ...
_SECONDS_SHORT = 8.0  # ... and where epochs are shortened: two evaluations come to them
_HASHING = 9e-9  # seconds for a parameter and two numbers of its optimizer: 12 bytes, 1.3 GB a second (on a GPU none)
# Runs under seeds share the cores of a CPU, each with its share of threads, both arms alike: starting is most of
# a short run, and is done by one core. Programs of more parameters than this run alone, for the memory's sake.
_AT_ONCE = 4
_SMALL = 20_000_000
_MEMORY_SHARE = 0.6  # of what is left
# Beside a GPU, too: a start took 8 to 10 s there, and the GPU of a small model waits for its process most of the time.
_CONTEXT = 1 << 30  # bytes that a process takes of a GPU for the driver and libraries, beside its tensors
_ON_THE_HOST = 4 << 30  # bytes of the main memory that such a process may take


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
    if proof_budget.alone:
        return 1
    if facts.device == "cuda":
        return _beside_a_gpu(proof_budget.peak)
    if facts.device != "cpu" or facts.parameters >= _SMALL:
        return 1
    room = available_memory()
    fitting = int(_MEMORY_SHARE * room / proof_budget.peak) if room and proof_budget.peak else _AT_ONCE
    return max(1, min(granted_cores(), _AT_ONCE, fitting))


def _beside_a_gpu(peak: int) -> int:
    """`peak`: bytes of one process on the GPU."""
    rooms = [gpu.get("memory_bytes", 0) for gpu in gpus()]
    room = _MEMORY_SHARE * (min(rooms, default=0) - memory_in_use())
    on_the_host = _MEMORY_SHARE * (available_memory() or 0)
    fitting = min(room // (peak + _CONTEXT), on_the_host // _ON_THE_HOST) if peak else 1
    return max(1, min(granted_cores() // 2, _AT_ONCE, int(fitting)))


def horizon(facts: Facts, seconds: float = math.inf) -> int:
    """Steps that a proof covers: some of the second epoch, where that is within reach; else two shortened ones.

    Args:
        seconds: that they should take; fewer steps than FEWEST_STEPS are made for its sake.
    """
    wanted = _longest_epoch(facts) + _PAST_THE_EPOCH
    each = facts.step_seconds and facts.step_seconds + _HASHING * facts.parameters * (facts.device == "cpu")
    affordable = int(_SECONDS / each) if each else MOST_STEPS
    if wanted > max(FEWEST_STEPS, min(affordable, MOST_STEPS)):
        affordable = int(_SECONDS_SHORT / each) if each else MOST_STEPS
    steps = max(FEWEST_STEPS, min(wanted, affordable, MOST_STEPS))
    if each and steps * each > seconds:
        return max(_SLOW_STEPS, int(seconds / each))
    return steps


def replayed_within(steps: int) -> int:
    """How many of the steps that a proof covers it takes for its states to be replayed."""
    return _SLOW_STATES if steps <= _SLOW_STEPS else min(steps, MOST_STEPS)


def short_epoch(facts: Facts, steps: int) -> int:
    """Samples that an epoch is cut to, for two of them within these steps; 0 where nothing is cut.

    MNIST has 938 steps in an epoch, of which a proof makes 100 to 400: without, it never saw one end. Where a tune has
    no time for FEWEST_STEPS, it has none for evaluations either.
    """
    length = _longest_epoch(facts)
    if facts.framework != "torch" or facts.inference or steps < FEWEST_STEPS or length + _PAST_THE_EPOCH <= steps:
        return 0
    each = (steps - PAST_THE_END) // 2
    return math.ceil(each * _samples_of_step(facts, length))


def ends_of_epochs(facts: Facts, epoch: int, steps: int) -> tuple[int, ...]:
    """Of so many steps those at which an epoch should end, and those after, which have the evaluation in them; empty
    where no loader tells.

    Args:
        epoch: samples that epochs are cut to; 0: they are whole.
    """
    length = _longest_epoch(facts)
    if not length:
        return ()
    each = _samples_of_step(facts, length)
    samples = epoch or max(loader.length or 0 for loader in facts.loaders if _epoch(loader) == length)
    period = math.ceil(samples / each)
    return tuple(step for end in range(period, steps + 1, period) for step in (end, end + 1) if step <= steps)


def _samples_of_step(facts: Facts, length: int) -> float:
    """A step may be made of some batches. `length`: of the longest epoch, in batches."""
    batch = max(each.batch_size or 0 for each in facts.loaders if _epoch(each) == length)
    return max(batch or 1, facts.samples_per_step)


def _longest_epoch(facts: Facts) -> int:
    """Of its loaders, in batches; 0 where none says."""
    return max(map(_epoch, facts.loaders), default=0)


def _epoch(loader: LoaderFacts) -> int:
    return -(-loader.length // loader.batch_size) if loader.length and loader.batch_size else 0
