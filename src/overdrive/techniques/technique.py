"""What every technique is: a name, a contract, knobs, conditions, and how it is installed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.core.settings import Settings as Settings  # a technique needs one import of ours
from overdrive.core.settings import Value as Value

if TYPE_CHECKING:
    from overdrive.seams.hub import Handle, Seams


@dataclass(frozen=True)
class Knob:
    """One setting of a technique: its kind, its default, and the values it may take."""

    name: str
    default: Value
    meaning: str
    choices: tuple[Value, ...] = ()
    low: float | None = None
    high: float | None = None

    def fault(self, value: object) -> str | None:
        """What is wrong with `value`, as the end of a sentence, or None."""
        kind = type(self.default)
        if isinstance(value, bool) != (kind is bool) or not isinstance(value, (int, float) if kind is float else kind):
            return f"must be {_article(kind.__name__)}, not {value!r}"
        if self.choices and value not in self.choices:
            return f"must be one of {', '.join(map(repr, self.choices))}, not {value!r}"
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            if self.low is not None and value < self.low:
                return f"must be at least {self.low:g}, not {value!r}"
            if self.high is not None and value > self.high:
                return f"must be at most {self.high:g}, not {value!r}"
        return None


def _article(name: str) -> str:
    words = {"bool": "true or false", "int": "a whole number", "float": "a number", "str": "a text"}
    return words[name]


class Technique:
    """One known way to go faster. A subclass is a file of its own; its docstring is its card.

    The card has the parts *What it does*, *When it helps*, *When it hurts*, *What it watches* (of what may change
    after the proof, and what would escape), *Contract* and *Source*.
    """

    name: ClassVar[str]
    family: ClassVar[str] = "other"  # the folder's name, for those of Overdrive's own
    package: ClassVar[str] = ""  # the installed package that brings it, for those that are not Overdrive's own
    frameworks: ClassVar[tuple[str, ...]] = ("torch",)  # whose programs it is for (see seams.frameworks)
    programs: ClassVar[tuple[str, ...]] = ("training",)  # and "inference": those that only call their model
    contract: ClassVar[Contract]  # the strictest level that it can keep
    fallback_contract: ClassVar[Contract | None] = None  # the level where a program denies it the strictest, if any
    targets: ClassVar[tuple[str, ...]]  # the parts of a step (see Facts.shares) that it can shorten
    # The share of those parts that it saves where it helps: a guess from other programs, which orders the duels.
    expected_saving: ClassVar[float] = 0.1
    # Parts of operators' names, one of which must be seen to run for it to help; () where that does not tell.
    acts_on: ClassVar[tuple[str, ...]] = ()
    # What it adds to the time before the first step, on two cores: one that takes long is not begun late in a tune.
    usual_start: ClassVar[float] = 0.0  # seconds
    settles_in: ClassVar[int] = 0  # steps, before it acts as it will: what it records of the first ones is made by then
    aims: ClassVar[tuple[str, ...]] = ("time",)  # what it can save: "time", "memory", or both
    # All its settings, which stand mildest first, are tried against one plan; the mildest of the fastest is taken.
    compare_all: ClassVar[bool] = False
    # Its handle's `off` and `on` work between any two steps of a running PyTorch program. While it is off, the program
    # computes what it would compute without it, bit for bit.
    switchable: ClassVar[bool] = False
    # It chooses no operation and no order of additions: where the program's own kernels do not repeat themselves, it is
    # proved with both sides restricted to those that do.
    computes: ClassVar[bool] = True
    # Of a run that is killed and made again under it nothing is missing (`overdrive run --survive`): what it holds
    # between two steps lies in the program's own tensors, files and random states, comes to be in the first steps,
    # which are made again, or is given to `seams.carry`.
    survives: ClassVar[bool] = False
    lost_when_killed: ClassVar[str] = "what it holds is in no snapshot of a run that survives"  # why it does not
    conflicts: ClassVar[tuple[str, ...]] = ()  # names of techniques it cannot be in one plan with; one side says so
    # Its variables take the place of what the user has set them to. Without this it is left out there.
    replaces_variables: ClassVar[bool] = False
    order: ClassVar[int] = 50  # techniques are installed from low to high
    knobs: ClassVar[tuple[Knob, ...]] = ()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        room = cls.__module__.split(".")
        if room[:2] == ["overdrive", "techniques"] and len(room) > 3:
            cls.family = room[2]

    def observe(self, seams: Seams) -> Callable[[], Mapping[str, Any]] | None:
        """Subscribe, in the trial that gathers facts, to what this technique alone has to know of a program.

        Returns: what tells it as plain JSON data, when it is asked; `own(facts)` gives it back.
        """
        return None

    @classmethod
    def is_for(cls, inference: bool) -> bool:
        """Whether it is for programs that train nothing, or for those that train."""
        return ("inference" if inference else "training") in cls.programs

    def own(self, facts: Facts) -> Mapping[str, Any]:
        """What `observe` found out; empty where nobody looked."""
        return facts.own.get(self.name, {})

    def applies(self, facts: Facts) -> str | None:
        """None where the technique may help, else the reason why it cannot. Unsure means None: a trial tells."""
        return None

    def expected_step_saving(self, facts: Facts) -> float:
        """The share of a step that it saves where it helps: a guess from other programs."""
        return facts.share(*self.targets) * self.expected_saving

    def processes(self, facts: Facts) -> int:
        """Pairs of fresh processes that its duel takes: more than one, where its effect is another in each process."""
        return 1

    def candidates(self, facts: Facts) -> Sequence[Settings]:
        """The settings worth a duel on this program, the most promising first."""
        return [self.defaults()]

    def settling(self, settings: Settings) -> int:
        """`settles_in`, with these settings."""
        return self.settles_in

    def contract_with(self, settings: Settings) -> Contract:
        """`contract`, with these settings: one that changes more says so here."""
        return self.contract

    def computes_in(self, settings: Settings) -> str:
        """The number format that the program computes in by it (see `core.facts.FORMATS`); "" where it changes none."""
        return ""

    def environment(self, settings: Settings) -> dict[str, str]:
        """Environment variables that must be there before the process starts. What the user has set may be put ahead
        of a value, behind which a colon or a space stands."""
        return {}

    def ranks(self, settings: Settings) -> int:
        """As how many processes it has the program run."""
        return 1

    @property
    def process_level(self) -> bool:
        """Whether it may have to be there before the process starts: then it cannot be switched within one."""
        return type(self).environment is not Technique.environment

    def install(self, seams: Seams, settings: Settings) -> Handle:
        """Subscribe to the seams. Called before the program starts, or when a block of code begins.

        Returns: `seams.handle()`, with what switching takes where the technique is `switchable`.

        Raises:
            CannotInstall: with the reason; the run goes on without this technique.
        """
        return seams.handle()

    def defaults(self) -> dict[str, Value]:
        return {knob.name: knob.default for knob in self.knobs}

    @classmethod
    def card(cls) -> str:
        return inspect.cleandoc(cls.__doc__ or "")

    @classmethod
    def summary(cls) -> str:
        """The card's first line, and who brings the technique."""
        return cls.card().split("\n", 1)[0] + (f" (from {cls.package})" if cls.package else "")


class CannotInstall(Exception):
    """A technique found that it cannot be installed here; the message is the reason, for people."""
