"""Every technique of a program on a GPU, whole on the stand-in for one, with its proof: as declared, without a race."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.core.ledger import Ledger
from overdrive.core.program import Program
from overdrive.core.settings import Chosen
from overdrive.core.trial_spec import TrialSpec
from overdrive.evidence.equivalence import Check
from overdrive.proof.prover import Prover
from overdrive.techniques.catalogue import catalogue
from overdrive.techniques.technique import Technique
from overdrive.trials.checkpoint import TuneCheckpoint
from overdrive.trials.pool import TrialPool
from overdrive.trials.untimed import UntimedRunner
from tests.fakes import catalogue as listed
from tests.fakes.catalogue import PROVED, Case
from tests.warm_trials import warm_trials

ALSO = ("tests.fakes.defects", "tests.fakes.adapted")
SECONDS = 300.0  # that a proof under seeds may take


class Proofs:
    """The one way on which each is proved: a prover for each program, whose original is run once.

    Attributes:
        acted: whether the last one's runs did anything on the device that the original's did not.
    """

    def __init__(self, pool: TrialPool, folder: Path) -> None:
        self._pool, self._folder = pool, folder
        self._provers: dict[str, Prover] = {}
        self.acted = False

    def prove(self, name: str, techniques: tuple[Chosen, ...], level: Contract, beside: int = 0) -> Check:
        """At this level, of the program of this name; the first `beside` techniques are what it is compared with."""
        old, new = self._spec(name, techniques[:beside]), self._spec(name, techniques)
        prover = self._prover(name)
        if level is Contract.STATISTICAL:
            check = prover.statistical(old, new, time.monotonic() + SECONDS)
        else:
            check = (prover.exact if level is Contract.EXACT else prover.rounding)(old, new)
        self.acted = bool(self._told(new) - self._told(old))
        return check

    def _prover(self, name: str) -> Prover:
        if name not in self._provers:
            checkpoint = TuneCheckpoint(Ledger(), _program(name), "gpu")
            facts = Facts(device="cuda", inference=name == "answers")
            self._provers[name] = Prover(UntimedRunner(self._pool), checkpoint, facts)
        return self._provers[name]

    def _spec(self, name: str, techniques: tuple[Chosen, ...]) -> TrialSpec:
        spec = TrialSpec(_program(name), techniques)
        if name == "answers":
            spec = replace(spec, clock="inference")
        return replace(spec, environment={"STAND_IN_TELLS": str(self._file(name, spec))})

    def _file(self, name: str, spec: TrialSpec) -> Path:
        return self._folder / f"{name} {spec.name()}".replace("/", " ")

    def _told(self, spec: TrialSpec) -> set[str]:
        path = Path(spec.environment["STAND_IN_TELLS"])
        return set(path.read_text().splitlines()) if path.exists() else set()


def _program(name: str) -> Program:
    return Program(str(Path(__file__).with_name("programs.py")), (name,), False)


@pytest.fixture(scope="module")
def proofs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proofs]:
    with TrialPool(isolate=False, also=ALSO, launcher=warm_trials()) as pool:
        yield Proofs(pool, tmp_path_factory.mktemp("told"))


def cases() -> list[Any]:
    """The first program of each technique is for `make test`."""
    found = []
    for name, its in PROVED.items():
        for number, (case, program) in enumerate((each, program) for each in its for program in each.programs):
            words = (name, *(str(each) for each in case.settings.values()), program)
            marks = [pytest.mark.long] if number else []
            found.append(pytest.param(name, case, program, id="-".join(words), marks=marks))
    return found


@pytest.mark.parametrize(("name", "case", "program"), cases())
def test_it_acts_and_is_proved_as_declared(proofs: Proofs, name: str, case: Case, program: str) -> None:
    level = case.level or catalogue()[name].contract
    check = proofs.prove(program, (*case.beside, (name, case.settings)), level, len(case.beside))
    assert check.level is level and not check.left_out, (check.sentence, check.left_out)
    assert proofs.acted


# -- what is wrong is refused on the same way ---------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("racing", "a race: aten.clone.default on stream"),
        ("unawaited", "on stream 0 does not wait"),
        ("stale", "other inputs of the model"),
        ("coarse", ""),
    ],
)
@pytest.mark.parametrize("program", ["images", pytest.param("gpt", marks=pytest.mark.long)])
def test_a_defect_is_refused(proofs: Proofs, name: str, told: str, program: str) -> None:
    check = proofs.prove(program, ((name, {}),), catalogue()[name].contract)
    assert check.level is None and told in check.sentence, check.sentence


@pytest.mark.parametrize("program", ["images", "answers"])
def test_one_that_does_nothing_is_seen(proofs: Proofs, program: str) -> None:
    check = proofs.prove(program, (("idle", {}),), Contract.EXACT)
    assert check.level is Contract.EXACT and not proofs.acted


# -- none is forgotten --------------------------------------------------------------------------------


def faults(technique: Technique) -> list[str]:
    """What is wrong with what is said of it in `tests/fakes/catalogue.py`."""
    name = technique.name
    places = [each for each in ("PROVED", "NOT_RUN", "OF_THE_CPU") if name in getattr(listed, each)]
    found = [] if len(places) == 1 else [f"{name} stands in {' and '.join(places) or 'none of the lists'}"]
    for framework in technique.frameworks:
        there = Facts(framework=framework, device="cuda", compute_capability=9.0, bf16_fast=True)
        if name in listed.OF_THE_CPU and technique.applies(there) is None:
            found.append(f"{name} stands among those of the CPU, and is tried for {framework} on a GPU")
    if name in listed.NOT_RUN and len(listed.NOT_RUN[name]) < 20:
        found.append(f"{name} lacks a reason")
    return found


def own() -> list[Technique]:
    return [each for each in catalogue().values() if type(each).__module__.startswith("overdrive.")]


def test_each_technique_is_proved_here_or_has_a_reason() -> None:
    assert [fault for technique in own() for fault in faults(technique)] == []
    assert {*PROVED, *listed.NOT_RUN, *listed.OF_THE_CPU} <= {each.name for each in own()}


class New(Technique):
    name = "new"
    contract = Contract.EXACT
    targets = ("forward",)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda patch: None, "none of the lists"),
        (lambda patch: patch.setattr(listed, "OF_THE_CPU", ("new",)), "is tried for torch on a GPU"),
        (lambda patch: patch.setitem(listed.NOT_RUN, "new", "later"), "lacks a reason"),
    ],
    ids=["in no list", "said to refuse a GPU", "without a reason"],
)
def test_a_new_technique_without_either_is_seen(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[pytest.MonkeyPatch], None], told: str
) -> None:
    change(monkeypatch)
    assert any(told in each for each in faults(New()))
