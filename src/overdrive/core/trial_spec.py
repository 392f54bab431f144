"""What a trial is to run, as plain data: the same for the parent that orders it and the worker that runs it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from overdrive.core.hyperparameters import Hyperparameters
from overdrive.core.program import Program
from overdrive.core.settings import Chosen
from overdrive.core.units import unit_of

BY_SAMPLE = ("answers", "agreement")  # roles of a replay in which answers are compared sample by sample
# Of a trial whose techniques are switched on and off: all that it tells is how long steps take. Those that exclude each
# other are never on at once in it.
SWITCHED = {"OVERDRIVE_SWITCHED": "1"}


def is_switched() -> bool:
    return SWITCHED.items() <= os.environ.items()


@dataclass(frozen=True)
class ReplayRole:
    """A trial's role in a state replay (see `worker.replay`)."""

    # "reference", "careful reference" (in the program's own precision), "candidate" or "disturbed" (a candidate whose
    # parameters are a little off); where the reference run's targets are made in fp64 by another run (Keras),
    # "targets" or "careful targets"; where samples of answers are compared, "answers" (the program as it is) and
    # "agreement" (a candidate)
    role: str
    folder: str  # of the saved states and targets
    steps: tuple[int, ...]  # the chosen ones, from 1
    rare: tuple[int, ...] = ()  # in which something happens that does not in most: of few states, half are of these


@dataclass(frozen=True)
class TrialSpec:
    """One program under one choice of techniques and one seed (0: the program's own)."""

    program: Program
    techniques: tuple[Chosen, ...] = ()
    seed: int = 0
    digests: str = ""  # kind of digest log to keep (see `worker.torch.digests`), if any
    replay: ReplayRole | None = None
    products: bool = False  # whether what it produces is wanted besides its losses (see `core.products`)
    returned: str = ""  # a function of the program whose last returned number is wanted
    deterministic: bool = False  # PyTorch refuses operations that may differ from run to run
    epoch: int = 0  # samples of a loader's epoch, at most (see `seams.torch.short_epochs`); 0: as many as there are
    profiling: str = ""  # what blocks are recorded for (see `worker.profiling.recorder`), or "plain": for nothing
    losses: bool = True  # whether each step's losses and rates are kept, and the optimizers for a hash of their states
    threads: int = 0  # that parallel operations may use; 0: as the program has it
    clock: str = "training"  # what counts as a step (see `worker.clock`)
    folder: str = ""  # where its observers leave files for the parent: what is written there stays
    timed: str = "step"  # what a block's seconds are of: "step" (all between two steps), or "call" (of the model alone)
    observers: tuple[str, ...] = ()  # modules of ours whose report is wanted (see `worker.observers.Observer`)
    environment: Mapping[str, str] = field(default_factory=dict, hash=False)  # further variables of the process
    alone: bool = False  # of several ranks the first alone, which imagines the others (see `ranks.imagined`)
    hyperparameters: Hyperparameters | None = None  # to be set and looked at (see `worker.hyperparameter_watch`)

    @property
    def unit(self) -> str:
        """What a step of it is called, for people."""
        return unit_of(self.clock == "inference")

    def name(self) -> str:
        """`plain`, or its techniques with the settings: the same text for the same trial."""
        parts = []
        for name, settings in self.techniques:
            values = ", ".join(f"{key}={value}" for key, value in sorted(settings.items()))
            parts.append(f"{name}({values})" if values else name)
        return (" + ".join(parts) or "plain") + ", one rank alone" * self.alone
