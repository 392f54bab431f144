"""Numbers of a configuration that the command line overrides, heard as the program is given it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from overdrive.core.hyperparameters import ValuePlace
from overdrive.seams import arguments
from overdrive.seams.configurations import CONFIGURATIONS
from overdrive.seams.patch import Patches
from overdrive.search.parameters import option_words

SETTINGS = """
epochs: 3
same: ${optim.lr}
name: gru
optim: {lr: 1e-3, nesterov: true, betas: [0.9, 0.99]}
data: {batch_size: 16, path: null}
"""
PLAIN = {
    "epochs": 3,
    "same": "${optim.lr}",
    "name": "gru",
    "optim": {"lr": 1e-3, "nesterov": True, "betas": [0.9, 0.99]},
    "data": {"batch_size": 16, "path": None},
}
FOUND = {"epochs": 3, "optim.lr": 1e-3, "optim.nesterov": True, "data.batch_size": 16}
Words = Callable[..., None]
Heard = dict[str, ValuePlace]


class _OmegaConf:
    """Stands in for omegaconf's: tables are plain ones."""

    @staticmethod
    def to_container(table: Mapping[str, Any], resolve: bool) -> Mapping[str, Any]:
        return table

    @staticmethod
    def from_cli(args_list: Sequence[str] | None = None) -> dict[str, Any]:
        return dict(word.split("=", 1) for word in (sys.argv[1:] if args_list is None else args_list))

    @staticmethod
    def merge(*tables: Mapping[str, Any]) -> dict[str, Any]:
        return {key: value for table in tables for key, value in table.items()}

    unsafe_merge = merge


def _main_of_hydra(**named: Any) -> Any:
    return lambda task: lambda given=None: task(PLAIN if given is None else given)


@pytest.fixture
def heard() -> Iterator[Heard]:
    found: Heard = {}
    leave = arguments.enter(lambda places: found.update({place.name: place for place in places}))
    yield found
    leave()


@pytest.fixture
def words(monkeypatch: pytest.MonkeyPatch) -> Words:
    """Sets what is typed behind the script's name."""
    return lambda *typed: monkeypatch.setattr(sys, "argv", ["train.py", *typed])


@pytest.fixture(params=["stand-in", "installed"])
def hydra(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: Words) -> Any:
    (tmp_path / "settings.yaml").write_text(SETTINGS)
    monkeypatch.chdir(tmp_path)
    words()
    if request.param == "installed":
        return pytest.importorskip("hydra")
    module, omegaconf = ModuleType("hydra"), ModuleType("omegaconf")
    module.main = _main_of_hydra  # type: ignore[attr-defined]
    omegaconf.OmegaConf = _OmegaConf  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "hydra", module)
    monkeypatch.setitem(sys.modules, "omegaconf", omegaconf)
    return module


def train_of(hydra: Any, task: Callable[[Any], None], folder: Path) -> Any:
    return hydra.main(config_path=str(folder), config_name="settings", version_base=None)(task)


def test_what_hydra_gives_the_program(hydra: Any, heard: Heard, tmp_path: Path) -> None:
    told: list[Any] = []
    train_of(hydra, lambda given: told.append((given["optim"]["lr"], dict(heard))), tmp_path)()
    (lr, places) = told[0]
    assert lr == 1e-3 and {name: place.value for name, place in places.items()} == FOUND
    assert option_words(places["optim.lr"], 0.25) == ["optim.lr=0.25"]
    assert option_words(places["optim.nesterov"], False) == ["optim.nesterov=false"]
    heard.clear()
    train_of(hydra, lambda given: told.append(given), tmp_path)(PLAIN)  # no word of the command line is read
    assert told[1] == PLAIN and not heard


def test_where_words_for_hydra_stand(hydra: Any, heard: Heard, tmp_path: Path, words: Words) -> None:
    """Behind those that are typed: argparse takes no second row of them."""
    train = train_of(hydra, lambda given: None, tmp_path)
    words("--config-name", "settings", "epochs=3")
    train()
    assert heard["optim.lr"].before == ""
    words("epochs=3", "--config-name", "settings")
    train()
    assert heard["optim.lr"].before == "--config-name"


def test_of_several_runs_of_hydra_no_value_is_told(
    hydra: Any, heard: Heard, words: Words, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    words("--multirun", "optim.lr=0.1,0.2")
    train_of(hydra, lambda given: None, tmp_path)()
    assert not heard


@pytest.mark.parametrize("installed", [False, True])
def test_what_is_merged_with_the_command_line(
    installed: bool, monkeypatch: pytest.MonkeyPatch, words: Words, heard: Heard
) -> None:
    if installed:
        omegaconf: Any = pytest.importorskip("omegaconf")
    else:
        omegaconf = ModuleType("omegaconf")
        omegaconf.OmegaConf = _OmegaConf
        monkeypatch.setitem(sys.modules, "omegaconf", omegaconf)
    plain = vars(omegaconf.OmegaConf)["merge"]
    leave = arguments.enter(lambda places: heard.update({place.name: place for place in places}))
    words("name=lstm")
    conf = omegaconf.OmegaConf
    conf.merge(PLAIN, conf.from_cli(["name=lstm", "epochs=1"]))
    conf.merge(conf.from_cli(), PLAIN)  # what is typed does not count
    assert not heard
    made = conf.merge(PLAIN, conf.from_cli())
    assert made["name"] == "lstm" and {name: place.value for name, place in heard.items()} == FOUND
    leave()
    assert installed or vars(conf)["merge"] is plain


def test_what_jsonargparse_was_told(heard: Heard, words: Words) -> None:
    """`LightningCLI` is built on it."""
    jsonargparse = pytest.importorskip("jsonargparse")
    called = []

    class Trainer:
        def __init__(self, lr: float = 0.1, amp: bool = False) -> None:
            self.lr = lr

        def fit(self, batch_size: int = 64, out: str = "runs") -> None:
            called.append((self.lr, batch_size))

    words("--lr=0.5", "fit", "--batch_size=8")
    jsonargparse.CLI(Trainer)
    assert called == [(0.5, 8)]
    assert {name: place.value for name, place in heard.items()} == {"--lr": 0.5, "--amp": False, "--batch_size": 8}
    assert heard["--lr"].before == "fit" and heard["--batch_size"].before == ""
    heard.clear()
    words(*option_words(ValuePlace("option", "--lr", 0.5), 0.25), "fit")
    jsonargparse.CLI(Trainer, args=["fit"])
    assert called[1:] == [(0.1, 64)] and not heard


class OfData:
    def __init__(self, batch_size: int = 64) -> None: ...


class OfModel:
    def __init__(self, batch_size: int = 1, lr: float = 0.1) -> None: ...


@pytest.mark.parametrize("chosen", [False, True])
@pytest.mark.parametrize("command", [(), ("fit",)])
def test_what_follows_another_value_is_no_option(
    command: tuple[str, ...], chosen: bool, heard: Heard, words: Words
) -> None:
    """Lightning's own example of a link: jsonargparse refuses what is linked as an option."""
    jsonargparse = pytest.importorskip("jsonargparse")
    own = whole = jsonargparse.ArgumentParser()
    if command:
        own = jsonargparse.ArgumentParser()
    own.add_class_arguments(OfData, "data")
    if chosen:
        own.add_subclass_arguments(OfModel, "model", default={"class_path": f"{__name__}.OfModel"})
        own.link_arguments("data.batch_size", "model.init_args.batch_size")
    else:
        own.add_class_arguments(OfModel, "model")
        own.link_arguments("data.batch_size", "model.batch_size")
    if command:
        whole.add_subcommands().add_subcommand("fit", own)
    words(*command)
    whole.parse_args()
    assert {*heard} == {"--data.batch_size", "--model.init_args.lr" if chosen else "--model.lr"}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_module_of_the_programs_own_of_that_name_is_no_library(
    name: str, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, ModuleType(name))
    CONFIGURATIONS[name](Patches(), lambda places: None)
