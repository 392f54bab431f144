"""Every naive program runs under `run --no-plan` and under a full plan without breaking, some under an exact one."""

from __future__ import annotations

import json
import math
import shutil
import statistics
from importlib.util import find_spec
from pathlib import Path

import pytest

from overdrive.core.contract import Contract
from overdrive.techniques.catalogue import catalogue, conflict
from tests.conftest import Run, long_but
from tests.programs.manifest import PROGRAMS, NaiveProgram


def together(*levels: Contract) -> tuple[str, ...]:
    """All techniques that promise one of these levels; of two that cannot go together, the first.

    Not what makes several processes, which goes with none of the others: see tests/ranks.
    """
    names: list[str] = []
    for name, technique in catalogue().items():
        alone = technique.ranks(technique.defaults()) > 1
        if technique.is_for(False) and technique.contract in levels and not alone and not conflict(name, names):
            names.append(name)
    return tuple(names)


# Those that some programs force down to a looser level promise nothing for all programs.
EXACT = tuple(name for name in together(Contract.EXACT) if catalogue()[name].fallback_contract is None)
FULL = together(Contract.EXACT, Contract.ROUNDING, Contract.STATISTICAL)
# These run under an exact plan too: of each kind of data, loop and model one.
BIT_FOR_BIT = {
    "gan",
    "workers_fork",
    "dict_collate",
    "padded_text",
    "checkpoint_resume",
    "random_augment",
    "chargpt_memmap",
}
# Compiling takes half a minute a program on two cores: these are compiled, the others get all the rest.
COMPILED = {"cnn_argparse", "lstm_stateful", "weight_tied_ema", "view_after_conv"}


# In make test: of each kind of data, loop, model and end one. A program takes four starts, of which those under a plan
# are fresh ones: what must precede the process is in it. Of those that are compiled it is the one with fewest graphs.
OF_EACH_KIND = {
    *("random_augment", "workers_fork", "padded_text", "checkpoint_resume", "gan"),
    *("weight_tied_ema", "modpkg", "raises_step5", "no_training"),
}


def plan_text(program: NaiveProgram, techniques: tuple[str, ...]) -> str:
    lines = ["overdrive = 1", f'program = "{program.command[-1]}"', 'contract = "statistical"']
    for name in techniques:
        if name != "compile" or program.name in COMPILED:
            lines += ["[[technique]]", f'name = "{name}"']
    return "\n".join(lines) + "\n"


def skip_without(program: NaiveProgram) -> None:
    missing = [name for name in program.needs if find_spec(name) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)} (an optional extra)")


def own_frames_shown(errors: str) -> bool:
    return "src/overdrive" in errors or "runpy" in errors


def late(losses: list[list[str]]) -> float:
    means = [statistics.fmean(float.fromhex(loss) for loss in step) for step in losses if step]
    return statistics.fmean(means[-max(1, len(means) // 3) :])


@pytest.mark.parametrize("name", long_but(OF_EACH_KIND, (program.name for program in PROGRAMS)))
def test_runs_as_under_python_and_keeps_its_losses_under_plans(
    name: str, programs: Path, tmp_path: Path, warm_python: Run, warm_run: Run, overdrive: Run
) -> None:
    program = next(each for each in PROGRAMS if each.name == name)
    skip_without(program)
    places = {}
    for arm in ("python", "no-plan", "full"):
        places[arm] = programs.parent / arm
        shutil.copytree(programs, places[arm])
    expected = warm_python(*program.command, cwd=places["python"])
    assert expected.returncode == program.exit_code, expected.stderr

    record = tmp_path / "no-plan.json"
    plain = warm_run("--no-plan", "--record", str(record), *program.command, cwd=places["no-plan"])
    assert plain.returncode == program.exit_code, plain.stderr
    assert plain.stdout == expected.stdout
    assert not own_frames_shown(plain.stderr)
    assert ("overdrive: " in plain.stderr) is (program.exit_code == 0)  # an error of the program's stands alone
    before = json.loads(record.read_text())
    if program.optimizer_steps is not None:
        assert before["steps"] > 0 or program.optimizer_steps == 0
    assert _files(places["no-plan"]) == _files(places["python"])

    if program.name in BIT_FOR_BIT:
        plan = tmp_path / "exact.toml"
        plan.write_text(plan_text(program, EXACT))
        place = programs.parent / "exact"
        shutil.copytree(programs, place)
        exact = overdrive("run", "--plan", str(plan), *program.command, cwd=place)
        assert exact.returncode == program.exit_code, exact.stderr
        assert exact.stdout == expected.stdout

    plan = tmp_path / "full.toml"
    plan.write_text(plan_text(program, FULL))
    record = tmp_path / "full.json"
    full = overdrive("run", "--plan", str(plan), "--record", str(record), *program.command, cwd=places["full"])
    assert full.returncode == program.exit_code, full.stderr
    assert not own_frames_shown(full.stderr), full.stderr
    after = json.loads(record.read_text())
    assert after["steps"] == before["steps"] and after["samples"] == before["samples"]
    if before["losses"] and any(before["losses"]):
        assert math.isfinite(late(after["losses"]))
        largest = max(abs(float.fromhex(loss)) for step in before["losses"] for loss in step)
        assert abs(late(after["losses"]) - late(before["losses"])) <= 0.25 * largest + 0.05


def _files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if "__pycache__" not in path.parts)
