"""One unmodified program on two ranks (gloo, on this machine) prints the numbers of one process."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Run
from tests.ranks.comparing import difference
from tests.ranks.named import ALONE, DEFECTS, NAMES

HERE = Path(__file__).parent
ROUNDING = 1e-9  # of numbers in fp64, after a dozen steps
FEW = (
    *("plain_with_a_ragged_last_batch", "batches_smaller_than_the_ranks", "dropout", "batch_norm", "gan", "lbfgs"),
    *("weight_penalty", "unused_parameters", "hooks_on_gradients", "looks_at_its_batch", "keeps_its_result"),
)

Write = Callable[[str], Path]
cluster = pytest.mark.cluster

# Makes five steps; `act(rank)` comes before the fourth. It knows its rank, which the program of a user does not.
STEPS = """
import os, sys, time, torch
from overdrive.ranks.rank import current
rank = current().rank if current() else 0
torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    if step == 3:
        act()
    loss = model(torch.randn(8, 4)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item(), flush=True)
"""


def acting(line: str) -> str:
    return f"def act():\n    {line}\n{STEPS}"


def numbers_of(output: str) -> dict[str, str]:
    return dict(line.split(": ", 1) for line in output.splitlines())


def compare(names: tuple[str, ...], python: Run, overdrive: Run) -> None:
    one = python("small_programs.py", *names, cwd=HERE)
    many = overdrive("run", "--ranks", "2", "small_programs.py", *names, cwd=HERE)
    assert one.returncode == many.returncode == 0, many.stderr
    expected, got = numbers_of(one.stdout), numbers_of(many.stdout)
    assert expected.keys() == got.keys() and not any("Error" in each for each in expected.values())
    differing = {name: difference(expected[name], got[name], ROUNDING) for name in expected}
    assert not any(differing.values()), differing


def test_small_programs_print_the_numbers_of_one_process(python: Run, overdrive: Run) -> None:
    compare(FEW, python, overdrive)


@cluster
def test_more_small_programs_do(python: Run, overdrive: Run) -> None:
    compare(tuple(name for name in NAMES if name not in FEW), python, overdrive)


@cluster
def test_what_is_not_divided_is_said_with_its_reason(overdrive: Run) -> None:
    names = ("loss_inside_of_the_model", "decides_by_its_batch", "looks_at_its_batch", "lstm_with_dropout", "dropout")
    told = overdrive("run", "--ranks", "2", "small_programs.py", *names, cwd=HERE).stderr
    assert "Loses is called whole on every rank: it makes one value of the whole batch" in told
    assert "ByValue is called whole on every rank: it looks at values of its batch" in told
    assert "OfBatch is called whole on every rank: what it makes of a sample depends on the rest" in told
    assert "Dropping is called whole on every rank: it draws random numbers inside of" in told
    assert "Sequential is called whole" not in told


@cluster
def test_seeded_defects_change_the_numbers(python: Run, overdrive: Run) -> None:
    one = numbers_of(python("small_programs.py", *set(DEFECTS.values()), cwd=HERE).stdout)
    told = overdrive("run", "--ranks", "2", "defects.py", cwd=HERE)
    got = numbers_of(told.stdout)
    assert got.keys() == DEFECTS.keys(), told.stderr
    missed = [name for name, program in DEFECTS.items() if not difference(one[program], got[name], 1e-6)]
    assert not missed


@cluster
@pytest.mark.parametrize("name", ALONE)
def test_a_rank_that_differs_stops_the_run(name: str, overdrive: Run) -> None:
    told = overdrive("run", "--ranks", "2", "defects.py", name, cwd=HERE, timeout=60)
    assert told.returncode
    assert re.search(r"of rank 1 differ from those of rank 0|does not do the same on all ranks", told.stderr)


def test_output_files_and_exit_code_are_those_of_one_process(script: Write, python: Run, overdrive: Run) -> None:
    text = STEPS.replace("act()", "os.mkdir('out'); open('out/log.txt', 'a').write('line\\n')")
    path = script(text + "os.rename('out/log.txt', 'out/kept.txt')\nprint(os.listdir('out'))\nsys.exit(3)\n")
    one = python("train.py", cwd=path.parent)
    files = {each.name: each.read_text() for each in (path.parent / "out").iterdir()}
    for each in (path.parent / "out").iterdir():
        each.unlink()
    (path.parent / "out").rmdir()
    many = overdrive("run", "--ranks", "2", "train.py", cwd=path.parent)
    assert not difference(one.stdout, many.stdout, 1e-5)
    assert many.returncode == one.returncode == 3
    assert {each.name: each.read_text() for each in (path.parent / "out").iterdir()} == files == {"kept.txt": "line\n"}


def test_the_error_of_one_rank_ends_all_and_is_shown(script: Write, overdrive: Run) -> None:
    path = script(acting("if rank == 1: raise ValueError('only here')"))
    began = time.monotonic()
    told = overdrive("run", "--ranks", "2", "train.py", cwd=path.parent, timeout=60)
    assert told.returncode == 1
    assert "rank 1 of 2" in told.stderr and "failed in step 4" in told.stderr
    assert told.stderr.count("ValueError: only here") == 1 and "src/overdrive" not in told.stderr
    assert time.monotonic() - began < 60


@cluster
def test_an_error_of_all_ranks_is_shown_once(script: Write, python: Run, overdrive: Run) -> None:
    path = script(acting("raise ValueError('everywhere')"))
    told = overdrive("run", "--ranks", "2", "train.py", cwd=path.parent)
    errors = "".join(line for line in told.stderr.splitlines(True) if not line.startswith("overdrive: "))
    assert told.returncode == 1 and errors == python("train.py", cwd=path.parent).stderr


@cluster
@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("if rank == 1: os.kill(os.getpid(), 9)", "rank 1 was ended by SIGKILL"),
        ("if rank == 1: os.kill(os.getpid(), 19)", "rank 1 does not answer"),
        ("if rank == 1: sys.exit(0)", "the program does not do the same on all ranks"),
        ("if rank == 1: loss.item()", "the program does not do the same on all ranks"),
        ("if rank == 1: time.sleep(3)", ""),
    ],
)
def test_a_rank_that_goes_astray_ends_all(line: str, sentence: str, script: Write, overdrive: Run) -> None:
    told = overdrive("run", "--ranks", "2", "train.py", cwd=script(acting(line)).parent, timeout=75)
    assert sentence in told.stderr and bool(told.returncode) is bool(sentence)
    assert not children_left()


@cluster
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_all_ranks(number: signal.Signals, script: Write) -> None:
    path = script(acting("print('ready', flush=True); time.sleep(60)"))
    command = [sys.executable, "-m", "overdrive", "run", "--ranks", "2", "train.py"]
    process = subprocess.Popen(command, cwd=path.parent, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    while "ready" not in process.stdout.readline():
        assert process.poll() is None
    began = time.monotonic()
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode == -number and time.monotonic() - began < 30
    assert not children_left()


def children_left() -> list[str]:
    found = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = each.read_bytes().decode().split("\0")
        except OSError:
            continue
        if "overdrive" in words and "train.py" in words:
            found.append(each.parent.name)
    return found


@cluster
def test_inside_torchrun(script: Write, python: Run) -> None:
    path = script(acting("pass"))
    one = python("train.py", cwd=path.parent)
    words = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "overdrive", "run")
    many = python(*words, "train.py", cwd=path.parent)
    assert many.returncode == 0 and not difference(one.stdout, many.stdout, 1e-5), many.stderr


@cluster
def test_inside_a_slurm_step(script: Write, python: Run) -> None:
    """As `srun -n 2` sets the variables: Slurm itself is not there."""
    path = script(acting("pass"))
    one = python("train.py", cwd=path.parent)
    step = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2"}
    step["SLURM_STEP_NODELIST"] = "localhost"
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "overdrive", "run", "train.py"],
            cwd=path.parent,
            env={**os.environ, **step, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [each.communicate(timeout=120)[0] for each in ranks]
    assert [each.returncode for each in ranks] == [0, 0]
    assert not difference(one.stdout, outputs[0], 1e-5) and outputs[1] == ""


HIDDEN = """
import os, random, uuid, time
import numpy as np, torch
print(torch.distributed.is_initialized(), [each for each in os.environ if each in ("RANK", "WORLD_SIZE")])
numbers = [random.random(), np.random.rand(), torch.rand(1).item(), np.random.default_rng().random()]
numbers.append(uuid.uuid4().int % 997)
torch.manual_seed(time.time_ns() % 100_003)
numbers += [torch.rand(1).item(), torch.seed() % 997, len(str({"a", "b", "c"}))]
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=sum(numbers) * 1e-4)
for _ in range(3):
    loss = model(torch.randn(8, 4)).pow(2).mean()
    loss.backward()
    optimizer.step()
print(loss.item() * 0)
"""


@cluster
def test_chance_that_nobody_seeded_is_the_same_on_all_ranks_and_the_ranks_are_hidden(
    script: Write, overdrive: Run
) -> None:
    path = script(HIDDEN)
    told = [overdrive("run", "--ranks", "2", "train.py", cwd=path.parent) for _ in range(2)]
    assert all(each.returncode == 0 and each.stdout == "False []\n0.0\n" for each in told), told[0].stderr


DISTRIBUTED = """
import os, torch
{first}
torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
torch.manual_seed(rank)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()
print(rank, torch.distributed.get_world_size(), sum(each.sum() for each in model.parameters()).item())
torch.distributed.destroy_process_group()
"""


@cluster
@pytest.mark.parametrize("first", ["", "assert int(os.environ['LOCAL_RANK']) == int(os.environ.get('RANK'))"])
def test_a_program_with_its_own_parallelism_is_run_as_it_is(
    first: str, script: Write, overdrive: Run, python: Run
) -> None:
    path = script(DISTRIBUTED.format(first=first))
    told = overdrive("run", "--ranks", "2", "train.py", cwd=path.parent)
    plain = python("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "train.py", cwd=path.parent)
    assert told.returncode == 0 and told.stdout.splitlines()[0] in plain.stdout
    assert "the program brings its own parallelism" in told.stderr


@pytest.mark.parametrize(
    ("variables", "options", "sentence"),
    [
        ({}, ["--ranks", "0"], "0 is not in the range"),
        ({"RANK": "1", "WORLD_SIZE": "2"}, ["--ranks", "2"], "This is rank 1 of 2 already"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, [], "The launcher says that this is rank 2 of 2."),
        ({"RANK": "x", "WORLD_SIZE": "2"}, [], "The variables of the launcher cannot be understood"),
    ],
)
def test_bad_input_is_one_sentence(
    variables: dict[str, str],
    options: list[str],
    sentence: str,
    script: Write,
    overdrive: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = script("")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    told = overdrive("run", *options, "train.py", cwd=path.parent)
    assert told.returncode == 2 and sentence in told.stderr and "Traceback" not in told.stderr


def test_there_are_enough_programs_and_defects() -> None:
    assert len(NAMES) >= 45 and len(DEFECTS) + len(ALONE) >= 15
    assert {*DEFECTS.values(), *ALONE.values(), *FEW} <= {*NAMES}
