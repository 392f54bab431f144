"""Where a program's hyperparameters stand, and what a trial is to set there: plain data for parent and worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from overdrive.core.settings import Value

# Kinds of places. Those of WRITTEN the program's author wrote; the others are seen where the values are used.
OPTION, CONSTANT, OPTIMIZER, LOADER, DROPOUT, INPUT = "option", "constant", "optimizer", "loader", "dropout", "input"
LITERAL = "literal"  # a number in a call that makes batches: what else it may be, a trial tells
ENVIRONMENT = "environment"  # a variable of it that is a number
IMPORTED = "imported"  # a constant of a module of the program's
WORD = "word"  # a constant that something has set by the second step: a word of the command line, perhaps
FIRST_DIMENSION = "dimension 0"  # of an input
WRITTEN = (OPTION, CONSTANT, IMPORTED, ENVIRONMENT, LITERAL)
DEPTH, WIDTH = "depth", "width"  # of a model: equal blocks in a row, channels between two layers
HEADS, KERNEL = "heads", "kernel"  # of its attention, of its convolutions
MODEL = (DEPTH, WIDTH, HEADS, KERNEL)
SCHEDULE = "schedule"  # of all learning rates, beside the program's own
ANNEALED = 0.01  # the share of a learning rate that is left when it has fallen


@dataclass(frozen=True)
class ValuePlace:
    """A value of the program's, and where it stands.

    `input` is only seen, never set: a dimension of what a model is given, where no loader makes the batches.
    """

    kind: str
    # `--batch-size`, `config.lr`, `get_batch()`; at a seam `lr`, `weight_decay`, `batch_size`, `p`, `GPT.h`, `width`
    name: str
    value: Value  # as the program has it
    where: str = ""  # `train.py:12`
    of: str = ""  # the class it belongs to: `Adam`, `DataLoader`
    choices: tuple[str, ...] = ()  # of an option that allows no others; of heads and kernels those that may do
    on: str = ""  # the word that turns a flag on, ...
    off: str = ""  # ... and off; nothing where it can only be left away
    others: tuple[str, ...] = ()  # other spellings of the option: `-a`
    before: str = ""  # the command that an option stands before; at the line's end, where there is none

    @property
    def key(self) -> str:
        """What a trial sets it by. Places of one line with one value are one: loaders made anew for each epoch."""
        return "|".join((self.kind, self.where, self.name, repr(self.value)))

    @property
    def key_of_any(self) -> str:
        """The same whatever value the program has there: another parameter may change it."""
        return "|".join((self.kind, self.where, self.name, ""))


@dataclass(frozen=True)
class Hyperparameters:
    """What a trial does with them. Options are no part of it: they stand among the program's arguments."""

    # By the place's key; by `key_of_any`, too, where it is the only place of its kind and name on its line.
    values: Mapping[str, Value] = field(default_factory=dict, hash=False)
    look: bool = False  # report all places, which takes looking at every call of a model
    losses: bool = False  # report the training losses as they come
    ramp: tuple[float, float, int] | None = None  # all learning rates grow from a factor to another in so many steps
    anneal: int = 0  # steps over which all learning rates fall evenly to `ANNEALED` of what they are; 0: they do not


@dataclass(frozen=True)
class Seen:
    """What a trial reports of them."""

    places: tuple[ValuePlace, ...] = ()
    loss: float | None = None  # mean of those sent backward since the last report
    tree: str = ""  # the modules of its models
    read: tuple[str, ...] = ()  # files of settings, and modules of the program's own
