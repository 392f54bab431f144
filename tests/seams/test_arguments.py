"""Options of a script, heard as its parser parses."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

import click
import pytest

from overdrive.core.hyperparameters import ValuePlace
from overdrive.seams import arguments

Heard = dict[str, ValuePlace]


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Iterator[Heard]:
    found: Heard = {}
    monkeypatch.setattr(sys, "argv", ["train.py", "--lr", "0.5"])
    leave = arguments.enter(lambda places: found.update({place.name: place for place in places}))
    yield found
    leave()


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser()
    made.add_argument("data", nargs="?")
    made.add_argument("-l", "--lr", type=float, default=0.1)
    made.add_argument("--batch-size", type=int, default=64)
    made.add_argument("--model", choices=("gru", "lstm"), default="gru")
    made.add_argument("--out", default="runs")
    made.add_argument("--amp", action="store_true")
    made.add_argument("--no-shuffle", dest="shuffle", action="store_false")
    made.add_argument("--bias", action=argparse.BooleanOptionalAction, default=True)
    made.add_argument("--widths", type=int, nargs="+", default=[1, 2])
    made.add_argument("--clip", type=float)
    return made


def test_what_argparse_was_told_with_the_values_that_it_came_to(heard: Heard) -> None:
    assert parser().parse_args().lr == 0.5
    assert {name: place.value for name, place in heard.items()} == {
        "--lr": 0.5,
        "--batch-size": 64,
        "--model": "gru",
        "--amp": False,
        "--no-shuffle": True,
        "--bias": True,
    }
    assert heard["--model"].choices == ("gru", "lstm")
    assert (heard["--amp"].on, heard["--amp"].off) == ("--amp", "")
    assert (heard["--no-shuffle"].on, heard["--no-shuffle"].off) == ("", "--no-shuffle")
    assert (heard["--bias"].on, heard["--bias"].off) == ("--bias", "--no-bias")


def test_a_subcommands_options_are_heard(heard: Heard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "fit", "--lr", "0.5"])
    made = argparse.ArgumentParser()
    made.add_subparsers().add_parser("fit").add_argument("--lr", type=float)
    made.parse_args()
    assert heard["--lr"].value == 0.5


def test_options_that_no_word_of_the_command_line_reaches_are_not_told(heard: Heard) -> None:
    parser().parse_args([])
    assert not heard


def test_a_call_without_words_of_its_own_is_told_from_one_of_the_command_line(
    heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are given nothing where the command line has nothing; of the first, no option reaches the program."""
    monkeypatch.setattr(sys, "argv", ["train.py"])
    parser().parse_args([])
    parser().parse_args(args=[])
    parser().parse_known_args([])
    parser().parse_args("")  # type: ignore[arg-type]
    parser().parse_args(())
    assert not heard
    parser().parse_args(sys.argv[1:])
    assert heard.pop("--lr").value == 0.1
    words = sys.argv[1:]
    parser().parse_args(args=words)
    assert heard["--lr"].value == 0.1


def test_what_a_first_parser_leaves_to_a_second_one_is_of_the_command_line(
    heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As timm's `train.py -c settings.yaml` reads its words."""
    monkeypatch.setattr(sys, "argv", ["train.py", "-c", "settings.yaml", "--lr", "0.5"])
    first = argparse.ArgumentParser()
    first.add_argument("-c")
    _, rest = first.parse_known_args()
    assert parser().parse_args(rest).lr == 0.5
    assert heard["--lr"].value == 0.5


def test_an_option_without_a_type_whose_default_is_a_number_is_not_told(heard: Heard) -> None:
    """A word for it would come as a text."""
    made = argparse.ArgumentParser()
    made.add_argument("--lr", type=float, default=0.1)
    made.add_argument("--batch-size", default=64)
    made.add_argument("--shuffle", default=True)
    made.add_argument("--model", choices=("gru", "lstm"), default="gru")
    made.parse_args()
    assert set(heard) == {"--lr", "--model"}


def test_what_click_was_told(heard: Heard) -> None:
    @click.command()
    @click.option("--lr", default=0.1)
    @click.option("--batch-size", "-b", default=64)
    @click.option("--model", type=click.Choice(["gru", "lstm"]), default="gru")
    @click.option("--amp/--no-amp", default=False)
    @click.option("--out", default="runs")
    @click.argument("data", default="x")
    def command(**values: object) -> None: ...

    command(["--lr", "0.5"], standalone_mode=False)
    assert {name: place.value for name, place in heard.items()} == {
        "--lr": 0.5,
        "--batch-size": 64,
        "--model": "gru",
        "--amp": False,
    }
    assert heard["--amp"].off == "--no-amp"


class Model(str, Enum):
    GRU = "gru"
    LSTM = "lstm"


def test_what_typer_was_told(heard: Heard) -> None:
    """Of releases that are built on click, and of those that have a click of their own."""
    typer = pytest.importorskip("typer")
    app = typer.Typer()

    @app.command()
    def train(
        data: str = typer.Argument("x"),
        lr: float = 0.1,
        batch_size: int = 64,
        model: Model = Model.GRU,
        amp: bool = False,
        out: str = "runs",
    ) -> None: ...

    app(["--lr", "0.5"], standalone_mode=False)
    assert {name: place.value for name, place in heard.items()} == {
        "--lr": 0.5,
        "--batch-size": 64,
        "--model": "gru",
        "--amp": False,
    }
    assert heard["--model"].choices == ("gru", "lstm") and type(heard["--model"].value) is str
    assert heard["--amp"].off == "--no-amp"


@dataclass
class Training:
    lr: float = 0.1
    batch_size: int = 64
    model: Literal["gru", "lstm"] = "gru"
    amp: bool = False
    out: str = "runs"


def assert_the_options_are(heard: Heard) -> None:
    """Those that are typed as `--lr 0.5`."""
    assert {name: place.value for name, place in heard.items()} == {
        "--lr": 0.5,
        "--batch_size": 64,
        "--model": "gru",
        "--amp": False,
    }
    assert heard["--model"].choices == ("gru", "lstm")


def test_what_the_parser_of_transformers_was_told(heard: Heard) -> None:
    transformers = pytest.importorskip("transformers")
    (made,) = transformers.HfArgumentParser(Training).parse_args_into_dataclasses()
    assert made.lr == 0.5
    assert_the_options_are(heard)


def test_flags_of_absl_that_the_program_defines(heard: Heard) -> None:
    flags = pytest.importorskip("absl.flags")
    own = flags.FlagValues()  # absl's own are defined in the global one, by modules of absl's
    flags.DEFINE_float("lr", 0.1, "", flag_values=own, module_name="train.py")
    flags.DEFINE_integer("batch_size", 64, "", flag_values=own, module_name="train.py")
    flags.DEFINE_enum("model", "gru", ["gru", "lstm"], "", flag_values=own, module_name="train.py")
    flags.DEFINE_boolean("amp", False, "", flag_values=own, module_name="train.py")
    flags.DEFINE_string("out", "runs", "", flag_values=own, module_name="train.py")
    flags.DEFINE_list("widths", ["1"], "", flag_values=own, module_name="train.py")
    flags.DEFINE_integer("verbosity", 1, "", flag_values=own, module_name="absl.flags")
    own(["train.py", "--lr", "0.5"])
    assert_the_options_are(heard)
    assert (heard["--amp"].on, heard["--amp"].off) == ("--amp", "--noamp")
    heard.clear()
    own(["train.py", "--lr", "0.7"])  # not the process's own words
    assert not heard


def test_parameters_of_the_function_that_fire_calls(heard: Heard, monkeypatch: pytest.MonkeyPatch) -> None:
    fire = pytest.importorskip("fire")
    called = []

    def train(data="x", lr=0.1, batch_size=64, amp=False, widths=(1, 2)):  # type: ignore[no-untyped-def]
        """Trains."""
        called.append((lr, batch_size, amp))

    fire.Fire(train)
    assert called == [(0.5, 64, False)]
    assert {name: place.value for name, place in heard.items()} == {"--lr": 0.5, "--batch_size": 64, "--amp": False}
    monkeypatch.setattr(sys, "argv", ["train.py", "fit", "--batch_size=8", heard["--amp"].off, heard["--amp"].on])
    fire.Fire({"fit": train, "eval": lambda: None})
    assert called[1:] == [(0.1, 8, True)] and heard["--batch_size"].value == 8
    heard.clear()
    fire.Fire(train, ["--lr=1"])
    assert called[2:] == [(1, 64, False)] and not heard
    monkeypatch.setattr(sys, "argv", ["train.py", "--no_such=1"])
    with pytest.raises(SystemExit):
        fire.Fire(train)


def test_functions_that_fire_finds_where_it_is_called(heard: Heard, monkeypatch: pytest.MonkeyPatch) -> None:
    """`fire.Fire()` takes the names of its caller, and its flags are no options of the program's."""
    fire = pytest.importorskip("fire")
    called = []
    itself: dict[str, object] = {}
    itself["itself"] = itself

    def fit(lr=0.1, batch_size=64):  # type: ignore[no-untyped-def]
        called.append((lr, batch_size))

    monkeypatch.setattr(sys, "argv", ["train.py", "fit", "--lr=0.5"])
    fire.Fire()
    assert called == [(0.5, 64)]
    assert {name: place.value for name, place in heard.items()} == {"--lr": 0.5, "--batch_size": 64}
    heard.clear()
    fire.Fire(None, ["fit", "--lr=1"])
    assert called[1:] == [(1, 64)] and not heard
    monkeypatch.setattr(sys, "argv", ["train.py"])
    fire.Fire(fit)
    assert called[2:] == [(0.1, 64)] and set(heard) == {"--lr", "--batch_size"}


@dataclass
class Settings:
    optim: Training = field(default_factory=Training)
    epochs: int = 3


def test_what_simple_parsing_was_told(heard: Heard) -> None:
    simple_parsing = pytest.importorskip("simple_parsing")
    assert simple_parsing.parse(Settings).optim.lr == 0.5
    assert heard["--lr"].value == 0.5 and heard["--batch_size"].value == 64 and heard["--epochs"].value == 3


@pytest.mark.parametrize("parse", [argparse.ArgumentParser.parse_known_args, click.Command.parse_args])
def test_no_trace_is_left(parse: Callable[..., object], monkeypatch: pytest.MonkeyPatch) -> None:
    holder = argparse.ArgumentParser if "argparse" in parse.__module__ else click.Command
    leave = arguments.enter(lambda places: None)
    assert getattr(holder, parse.__name__) is not parse
    leave()
    assert getattr(holder, parse.__name__) is parse
