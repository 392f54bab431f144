"""Options of whatever tyro makes of a command line: the forms of its documentation."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal, NamedTuple, TypedDict

import pytest

from overdrive.core.hyperparameters import ValuePlace
from overdrive.seams import arguments

tyro = pytest.importorskip("tyro")
attrs = pytest.importorskip("attrs")

from typing_extensions import Annotated  # noqa: E402, UP035

Heard = dict[str, ValuePlace]
Told = Callable[..., Heard]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[Told]:
    """What is told of a type, or function, with these words."""
    heard: Heard = {}
    leave = arguments.enter(lambda places: heard.update({place.name: place for place in places}))

    def tell(f: Any, *words: str, cli: Any = None, **options: Any) -> Heard:
        heard.clear()
        monkeypatch.setattr(sys, "argv", ["train.py", *words])
        (cli or tyro.cli)(f, **options)
        return dict(heard)

    yield tell
    leave()
    assert tyro._cli._cli_impl.__module__ == "tyro._cli"


def values(heard: Heard) -> dict[str, Any]:
    return {name: place.value for name, place in heard.items()}


@dataclass
class Schedule:
    decay: float = 0
    cosine: bool = True


class Precision(Enum):
    HIGH = 1
    LOW = 2


@dataclass
class Args:
    lr: float = 0.1
    batch_size: int = 64
    use_amp: bool = False
    model: Literal["gru", "lstm"] = "gru"
    precision: Precision = Precision.HIGH
    out: str = "runs"
    sizes: tuple[int, ...] = (1, 2)
    clip: float | None = None
    momentum: float | None = 0.9
    renamed: Annotated[int, tyro.conf.arg(name="other")] = 1
    at: tyro.conf.Positional[int] = 3
    schedule: Schedule = field(default_factory=Schedule)
    worked_out: int = field(default=0, init=False)


OF_ARGS = {
    "--lr": 0.5, "--batch-size": 64, "--use-amp": False, "--model": "gru", "--precision": "HIGH", "--momentum": 0.9,
    "--other": 1, "--schedule.decay": 0.0, "--schedule.cosine": True,
}  # fmt: skip


def test_fields_of_a_data_class_and_of_those_within(told: Told) -> None:
    heard = told(Args, "--lr=0.5")
    assert values(heard) == OF_ARGS
    assert heard["--model"].choices == ("gru", "lstm") and heard["--precision"].choices == ("HIGH", "LOW")
    assert (heard["--use-amp"].on, heard["--use-amp"].off) == ("--use-amp", "--no-use-amp")
    assert heard["--schedule.cosine"].off == "--schedule.no-cosine"


def test_what_is_parsed_of_other_words_is_not_told(told: Told) -> None:
    assert not told(Args, args=["--lr", "1"])


def test_names_and_words_are_as_the_program_would_have_them(told: Told) -> None:
    heard = told(Args, config=(tyro.conf.FlagConversionOff, tyro.conf.OmitArgPrefixes))
    assert heard["--cosine"].off == "--cosine=False" and heard["--decay"].value == 0.0
    assert "--batch_size" in told(Args, use_underscores=True)
    assert told(Args, default=Args(lr=3.0))["--lr"].value == 3.0


def test_parameters_of_a_function_before_it_is_called(told: Told) -> None:
    heard: list[Heard] = []

    def train(lr: float, schedule: Schedule, use_amp: bool = False) -> None:
        """In which it trains."""
        heard.append({})

    assert values(told(train, "--lr", "0.5")) == {
        "--lr": 0.5, "--use-amp": False, "--schedule.decay": 0.0, "--schedule.cosine": True
    }  # fmt: skip
    assert heard


@attrs.define
class WithAttrs:
    lr: float = 0.1
    schedule: Schedule = attrs.field(factory=Schedule)


class Tuple(NamedTuple):
    lr: float = 0.1
    schedule: Schedule = Schedule()


class Table(TypedDict):
    lr: float
    schedule: Schedule


class Plain:
    """With a rate that it keeps in its own way."""

    def __init__(self, lr: float = 0.1, schedule: Schedule = Schedule()) -> None:  # noqa: B008
        self.twice = 2 * lr


@pytest.mark.parametrize("form", [WithAttrs, Tuple, Table, Plain])
def test_other_forms_are_found_like_a_data_class(told: Told, form: Any) -> None:
    given = {"default": Table(lr=0.1, schedule=Schedule())} if form is Table else {}
    found = values(told(form, "--lr=0.5", **given))
    assert found == {"--lr": 0.5, "--schedule.decay": 0.0, "--schedule.cosine": True}


def test_of_pydantic(told: Told) -> None:
    pydantic = pytest.importorskip("pydantic")
    made = pydantic.create_model("Made", lr=(float, 0.1), epochs=(int, 3))
    assert values(told(made, "--lr=0.5")) == {"--lr": 0.5, "--epochs": 3}


@dataclass
class Adam:
    lr: float = 1e-3


@dataclass
class Sgd:
    lr: float = 0.1
    momentum: float = 0.9


@dataclass
class Digits:
    part: float = 1.0


@dataclass
class Words:
    length: int = 32


@dataclass
class Chosen:
    optimizer: Adam | Sgd
    data: Digits | Words = field(default_factory=Digits)
    epochs: int = 3


def test_subcommands_stand_where_they_are_read(told: Told) -> None:
    """What is of none of them before the first."""
    heard = told(Chosen, "optimizer:sgd", "--optimizer.lr=0.5", "data:words")
    assert values(heard) == {
        "--epochs": 3, "--optimizer.lr": 0.5, "--optimizer.momentum": 0.9, "--data.length": 32
    }  # fmt: skip
    assert {name: place.before for name, place in heard.items()} == {
        "--epochs": "optimizer:sgd", "--optimizer.lr": "data:words", "--optimizer.momentum": "data:words",
        "--data.length": "",
    }  # fmt: skip
    heard = told(Chosen, "optimizer:adam")  # of the other one's default no option can be written
    assert values(heard) == {"--epochs": 3, "--optimizer.lr": 1e-3}


def test_subcommands_of_a_whole_line(told: Told) -> None:
    assert values(told(Adam | Sgd, "sgd")) == {"--lr": 0.1, "--momentum": 0.9}  # type: ignore[arg-type]
    table = {"train": Sgd, "test": Digits}
    assert values(told(table, "train", cli=tyro.extras.subcommand_cli_from_dict)) == {"--lr": 0.1, "--momentum": 0.9}
    bases = {"small": ("few of all", Args()), "large": ("much", Args(batch_size=512))}
    heard = told(bases, "large", "--lr=0.5", cli=tyro.extras.overridable_config_cli)
    assert {name: heard[name].value for name in OF_ARGS} == {**OF_ARGS, "--batch-size": 512}


def test_it_can_be_set_where_it_is_told(told: Told) -> None:
    """Each option, put where its place says, is read by tyro."""
    from overdrive.search.parameters import option_words

    words = ["optimizer:sgd", "data:words"]
    for place in told(Chosen, *words).values():
        at = words.index(place.before) if place.before else len(words)
        other = [*words[:at], *option_words(place, place.value), *words[at:]]
        assert values(told(Chosen, *other))[place.name] == place.value


def test_a_module_of_that_name_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from types import ModuleType

    own = ModuleType("tyro")
    own.cli = lambda: 3  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tyro", own)
    leave = arguments.enter(lambda places: None)
    assert own.cli() == 3
    leave()
