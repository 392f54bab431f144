"""Wrong answers are caught, and what is harmless passes: programs that only call their model. (About half a minute.)"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from tests.zoo import harmless_answers
from tests.zoo.defects import answers
from tests.zoo.harness import InProcess
from tests.zoo.specimen import Specimen

EXACT, ROUNDING, STATISTICAL = Contract.EXACT, Contract.ROUNDING, Contract.STATISTICAL
LEVELS = (EXACT, ROUNDING, STATISTICAL)


def specimens(module: Any) -> list[type[Specimen]]:
    found = (each for each in vars(module).values() if isinstance(each, type) and issubclass(each, Specimen))
    return sorted((each for each in found if "name" in vars(each)), key=lambda each: each.name)


DEFECTS = specimens(answers)
PROGRAMS = ("images", "tokens", "feedback", "turns", "streams")


@pytest.fixture(scope="module")
def provers(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, InProcess]:
    return {name: InProcess(name, tmp_path_factory.mktemp(name), inference=True) for name in PROGRAMS}


def named(value: object) -> str | None:
    return value.name if isinstance(value, type) and issubclass(value, Specimen) else None


def test_there_are_as_many_as_were_promised() -> None:
    assert len(DEFECTS) >= 15


@pytest.mark.parametrize(
    ("kind", "level"),
    [(kind, level) for kind in DEFECTS for level in LEVELS if level.rank <= kind.contract.rank],
    ids=lambda value: named(value) or str(value),
)
@pytest.mark.fault(19)
def test_a_defect_is_caught(kind: type[Specimen], level: Contract, provers: Mapping[str, InProcess]) -> None:
    check = provers[kind.program].judged(kind.name, level)
    assert check.level is None
    assert "broke off" not in check.sentence, "it was the test that failed, not the proof that caught it"


@pytest.mark.parametrize("level", LEVELS, ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_is_the_same_as_itself(name: str, level: Contract, provers: Mapping[str, InProcess]) -> None:
    prover = provers[name]
    if level is EXACT:
        check = prover.repeats(prover.plain)
    elif level is ROUNDING:
        check = prover.rounding(prover.plain, prover.plain)
        assert "as near to fp64" in check.sentence, "all of them have a reference in fp64"
    else:
        check = prover.statistical(prover.plain, prover.plain, 1e12)
    if level is STATISTICAL and name == "feedback":
        assert check.agreement and check.agreement.holds is None and "149 samples would be enough" in check.sentence
        return
    assert check.level is level, check.sentence


@pytest.mark.parametrize("kind", [each for each in DEFECTS if each.contract is ROUNDING], ids=named)
def test_what_only_rounding_refuses_is_not_refused_at_statistical(
    kind: type[Specimen], provers: Mapping[str, InProcess]
) -> None:
    check = provers[kind.program].judged(kind.name, STATISTICAL)
    assert check.agreement and check.agreement.holds is not False, check.sentence


@pytest.mark.parametrize("kind", specimens(harmless_answers), ids=named)
def test_a_harmless_technique_passes(kind: type[Specimen], provers: Mapping[str, InProcess]) -> None:
    check = provers[kind.program].judged(kind.name, kind.contract)
    assert check.level is kind.contract, check.sentence
    assert "calls" in check.sentence
    if kind.contract is ROUNDING:
        assert provers[kind.program].judged(kind.name, EXACT).level is None


def test_where_fp64_takes_long_fewer_calls_tell(tmp_path: Path) -> None:
    prover = InProcess("images", tmp_path, inference=True)
    prover._runs.facts = Facts(inference=True, step_seconds=0.3)
    passed = prover.judged("convolution_by_matrix_product", ROUNDING)
    assert passed.level is ROUNDING and passed.sentence.startswith("6 replayed calls")
    assert prover.judged("convolution_in_bf16", ROUNDING).level is None
