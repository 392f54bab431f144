"""What a trial reports, and how it can end. Plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from overdrive.core.exchanged import Exchanged
from overdrive.core.facts import Facts
from overdrive.core.products import Products
from overdrive.core.units import unit_of


@dataclass(frozen=True)
class ExitReason:
    """Why a trial is over.

    `kind`: ended, exception, oom, busy (the GPU takes one process only, and has one), crash, hang, late, unwatched
    (cannot be followed), answers (its model's calls are its steps, not an optimizer's), trains (the other way round).
    """

    kind: str
    detail: str = ""

    @property
    def by_itself(self) -> bool:
        """The program came to its end, or made no training step where there was nothing else to wait for."""
        return self.kind in ("ended", "answers", "no optimizer")

    @property
    def unwatched(self) -> str:
        """Why the program cannot be followed, in a sentence; empty of a trial that is over for another reason."""
        return f"{self.detail.rstrip('.')}." if self.kind == "unwatched" else ""

    def __str__(self) -> str:
        if self.kind == "exception" and self.detail:
            return self.detail.rstrip(".")  # it names its own kind, or is an exit code
        return f"{self.kind}: {self.detail}" if self.detail else self.kind


@dataclass(frozen=True)
class Block:
    """Some whole steps of one trial, measured in one go."""

    step: int  # the program's step count at the end of the block
    steps: int
    seconds: float
    samples: float
    peak_memory: int = 0  # bytes that the process has used at most so far: of the GPU where it uses one; 0: not known
    call_steps: int = 1  # the most steps that were made in one call so far, between which a trial cannot stand still
    left_out: Mapping[str, str] = field(default_factory=dict)  # techniques and observers, by now, with the reason
    # Seconds of each call of the model, in a program that trains nothing; without those that take the time of two, at
    # the beginning of a run alone.
    calls: tuple[float, ...] = ()
    settling: int = 0  # calls in which a technique did not act yet as it will (see `Answers.settling`)
    exchanged: Exchanged | None = None  # by one of several ranks; None of a process that is alone
    # As shares of its time, lead included; None where the machine does not tell. Noted by the parent.
    waited: float | None = None  # for a core, by all threads together
    others: float | None = None  # cores that other programs used meanwhile
    crowded: float | None = None  # times as long as usual cores took while all worked (see `machine.crowding`)
    # Of a first block, seconds of its process before the program's code began. Noted by the parent.
    launch: float = 0.0
    installing: float = 0.0  # ... and those after that in which we were put in place, amid the program's code
    training_calls: int = 0  # of a model, recording gradients; 0 where nobody counted them

    def beside(self, others: Sequence[Block]) -> Block:
        """This one, rank 0's, with the memory of the largest rank, and for how long a rank exchanged in the mean."""
        told = [each.exchanged.seconds for each in (self, *others) if each.exchanged]
        if self.exchanged is None or not others:
            return self
        exchanged = replace(self.exchanged, seconds=sum(told) / len(told))
        most = max(each.peak_memory for each in (self, *others))
        return replace(self, peak_memory=most, exchanged=exchanged)


@dataclass(frozen=True)
class StepRecord:
    """What went into one training step and what came out of it: hashes, but for `samples` and the slots.

    A slot is one tensor that the model was given: its checksum, then its sketch where it holds fractions.
    """

    batches: str = ""
    samples: float = 0
    calls: str = ""
    inputs: tuple[Sequence[float], ...] = ()
    evaluation: tuple[Sequence[float], ...] = ()
    settings: str = ""
    # Only in a digest log with bits:
    parameters: str = ""
    buffers: str = ""
    optimizer_state: str = ""
    random_states: str = ""
    evaluation_results: str = ""


@dataclass(frozen=True)
class Trace:
    """What a trial did up to a step: all that equivalence is judged by."""

    steps: int = 0
    losses: tuple[tuple[float, ...], ...] = ()  # by step, all that were sent backward
    rates: tuple[float, ...] = ()
    samples: float = 0
    batches: tuple[str, ...] = ()  # checksums of the first steps' batches
    state: str = ""  # hash of parameters, optimizer and random state at the last step
    digests: tuple[StepRecord, ...] = ()  # by step, where a digest log was ordered
    replay: Mapping[str, Any] = field(default_factory=dict)  # what a role in a state replay came to
    # Step counts at which it could stand still, where several steps are made in one call; empty: after every step.
    rests: tuple[int, ...] = ()
    trained: str = ""  # how many tensors and scalars are trained
    returned: float | None = None
    products: Products | None = None  # where they were ordered
    active: tuple[str, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    inference: bool = False  # its steps are calls of a model, in a program that trains nothing
    call_sizes: Mapping[str, int] = field(default_factory=dict)  # of these the calls, by what they were given

    @property
    def unit(self) -> str:
        """What a step of it is called, for people."""
        return unit_of(self.inference)


class TrialOver(Exception):
    """A trial that was to go on is over; caught inside `trials`, never crosses the search.

    Attributes:
        trace: of the whole run, where the program ended by itself and made a step, or a function returned what was
            asked for.
        facts: of a program that ran out of memory, where they could be had.
        observed: the observers' reports, where the program ended by itself.
    """

    def __init__(
        self,
        exit_reason: ExitReason,
        trace: Trace | None = None,
        facts: Facts | None = None,
        observed: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(str(exit_reason))
        self.exit_reason = exit_reason
        self.trace = trace
        self.facts = facts
        self.observed = observed or {}
