"""One unmodified program on two ranks (gloo, on this machine) prints the numbers of one process."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from overdrive.cli.started_again import words_of_ranks
from overdrive.machine.numa import nodes
from overdrive.ranks.membership import Membership
from tests.conftest import Run
from tests.ranks.comparing import difference
from tests.ranks.named import DEFECTS, NAMES, STOPPED, TRIED

HERE = Path(__file__).parent
ROUNDING = 1e-9  # of numbers in fp64, after a dozen steps
FEW = (
    *("plain_with_a_ragged_last_batch", "batches_smaller_than_the_ranks", "dropout", "batch_norm", "gan", "lbfgs"),
    *("weight_penalty", "unused_parameters", "hooks_on_gradients", "blends_its_samples", "keeps_its_result"),
    *("looks_at_its_batch", "decides_by_truth_values", "scaled_by_how_many_at_most"),
    *("terms_that_have_no_weight_at_first", "hooks_put_on_gradients_after_the_call"),
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


FAILING = """
import torch
class Failing(torch.nn.Linear):
    def __init__(self):
        super().__init__(4, 2)
        self.calls = 0
    def forward(self, x):
        self.calls += 1
        if self.calls == 4:
            raise ValueError("everywhere")
        return super().forward(x)
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


def test_small_programs_print_the_numbers_of_one_process(warm_python: Run, overdrive: Run) -> None:
    compare(FEW, warm_python, overdrive)


@cluster
def test_more_small_programs_do(python: Run, overdrive: Run) -> None:
    compare(tuple(name for name in NAMES if name not in FEW), python, overdrive)


@cluster
def test_what_is_not_divided_is_said_with_its_reason(overdrive: Run) -> None:
    names = (
        "divided_by_other_numbers",
        "decides_by_its_batch",
        "blends_its_samples",
        "lstm_with_dropout",
        "dropout",
    )
    names += ("normalises_the_samples_that_it_chooses", "stores_on_an_object_that_it_is_given")
    names += ("gradients_between_results",)
    told = overdrive("run", "--ranks", "2", "small_programs.py", *names, cwd=HERE).stderr
    assert "WithLossByOtherNumbers is called whole on every rank: it makes one value of the whole batch" in told
    assert "ByValue is called whole on every rank: it looks at values of its batch" in told
    assert "Blended is called whole on every rank: what it makes of a sample depends on the rest" in told
    assert re.search(r"ranks saved nothing in [\d]+ of the [\d]+ calls of \w+, which were made whole on each: ", told)
    assert "Dropping is called whole on every rank: it draws random numbers inside of" in told
    assert told.count("OfChosen is called whole on every rank: Expected more than 1 value") == 1
    assert "Noting is called whole on every rank: it keeps something of the batch: 'features' of a Notes" in told
    assert (
        "Generator is called whole" not in told
        and "OfNone is called whole" not in told
        and "Sequential is called whole" not in told
    )


@cluster
def test_a_part_that_fails_on_one_rank_alone_is_undone_on_all(python: Run, overdrive: Run) -> None:
    names = ("normalises_the_samples_that_it_chooses", "stores_on_an_object_that_it_is_given")
    compare((*names, "gradients_between_results"), python, overdrive)


@cluster
def test_what_is_summed_by_hand_and_objects_that_are_returned(python: Run, overdrive: Run) -> None:
    names = ("looks_at_its_batch", "normalised_by_hand", "experts_in_balance", "a_gradient_penalty_through_statistics")
    names += ("coupled_behind_a_head_that_is_zero_at_first", "returns_objects")
    compare(names, python, overdrive)
    told = overdrive("run", "--ranks", "2", "small_programs.py", *names, cwd=HERE).stderr
    assert "called whole" not in told, told


@cluster
def test_hooks_by_which_pytorch_makes_weights_see_no_batch(python: Run, overdrive: Run) -> None:
    names = ("weights_normalised_by_hooks", "shapes_that_the_first_call_decides")
    compare(names, python, overdrive)
    told = overdrive("run", "--ranks", "2", "small_programs.py", *names, cwd=HERE).stderr
    assert "called whole" not in told, told


@cluster
def test_what_is_divided_by_how_many_samples_there_are(python: Run, overdrive: Run) -> None:
    names = ("divided_by_how_many_samples_there_are",)
    compare((*names, "divided_by_other_numbers"), python, overdrive)
    told = overdrive("run", "--ranks", "2", "small_programs.py", *names, cwd=HERE).stderr
    assert "called whole" not in told, told


@cluster
def test_losses_that_a_model_makes_itself(python: Run, overdrive: Run) -> None:
    divided = ("losses_made_by_the_model", "labels_of_which_one_part_has_none", "loss_inside_of_the_model")
    compare((*divided, "losses_made_by_the_model_that_are_no_sums"), python, overdrive)
    told = overdrive("run", "--ranks", "2", "small_programs.py", *divided, cwd=HERE)
    assert "called whole" not in told.stderr


def test_what_watches_the_gradient_of_a_result_sees_the_whole_batch_s(warm_python: Run, overdrive: Run) -> None:
    compare(("gradients_watched_between_results",), warm_python, overdrive)


# As on a GPU, where the trial of a call is made in the rank's own process.
WITHOUT_FORKS = """
import sys, torch
from overdrive.ranks.rank import current
if current():
    from overdrive.model_state.division import trial
    sys.modules[trial.tried.__module__].may_fork_with = trial.may_fork_with = lambda model: False
sys.path.insert(0, {folder!r})
import small_programs
small_programs.main(["batch_norm_of_other_kinds", "decides_by_its_batch"])
"""


@cluster
def test_what_a_model_reads_in_its_trial_is_asked_of_no_other_rank(script: Write, python: Run, overdrive: Run) -> None:
    path = script(WITHOUT_FORKS.format(folder=str(HERE)))
    one, many = python("train.py", cwd=path.parent), overdrive("run", "--ranks", "2", "train.py", cwd=path.parent)
    assert one.returncode == many.returncode == 0, many.stderr
    assert "ByValue is called whole on every rank: it looks at values" in many.stderr
    assert "Error" not in one.stdout and not difference(one.stdout, many.stdout, ROUNDING)


@cluster
@pytest.mark.fault(19)
def test_seeded_defects_change_the_numbers(python: Run, overdrive: Run) -> None:
    one = numbers_of(python("small_programs.py", *set(DEFECTS.values()), cwd=HERE).stdout)
    told = overdrive("run", "--ranks", "2", "defects.py", cwd=HERE)
    got = numbers_of(told.stdout)
    assert got.keys() == DEFECTS.keys(), told.stderr
    assert not [name for name, program in DEFECTS.items() if not difference(one[program], got[name], 1e-6)]


@cluster
def test_defects_of_what_is_drawn_are_found_in_the_trial_of_a_call(python: Run, overdrive: Run) -> None:
    one = numbers_of(python("small_programs.py", *{DEFECTS[name] for name in TRIED}, cwd=HERE).stdout)
    told = overdrive("run", "--ranks", "2", "defects.py", "guarded", *TRIED, cwd=HERE)
    got = numbers_of(told.stdout)
    assert not [name for name in TRIED if difference(one[DEFECTS[name]], got[name], ROUNDING)]
    assert "for a part of its batch it draws other random numbers" in told.stderr
    assert "what it makes of a sample depends on the rest of its batch" in told.stderr


@cluster
@pytest.mark.parametrize("name", STOPPED)
@pytest.mark.fault(19)
def test_a_rank_that_differs_stops_the_run(name: str, overdrive: Run) -> None:
    told = overdrive("run", "--ranks", "2", "defects.py", "guarded", name, cwd=HERE, timeout=60)
    assert told.returncode == 1 and not told.stdout
    assert re.search(r"stopped at step \d+: .* of rank 1 differ from those of rank 0", told.stderr)


# No program needs it that does not compile: a second and a half of each rank's start, and of each that is lost.
COMPILER = """
from overdrive.ranks.rank import current
assert not (current() and "torch._dynamo.eval_frame" in sys.modules)
"""


def test_output_files_and_exit_code_are_those_of_one_process(script: Write, warm_python: Run, overdrive: Run) -> None:
    text = STEPS.replace("act()", "os.mkdir('out'); open('out/log.txt', 'a').write('line\\n')")
    path = script(text + f"os.rename('out/log.txt', 'out/kept.txt')\nprint(os.listdir('out'))\n{COMPILER}sys.exit(3)\n")
    one = warm_python("train.py", cwd=path.parent)
    files = {each.name: each.read_text() for each in (path.parent / "out").iterdir()}
    for each in (path.parent / "out").iterdir():
        each.unlink()
    (path.parent / "out").rmdir()
    many = overdrive("run", "--ranks", "2", "train.py", cwd=path.parent)
    assert not difference(one.stdout, many.stdout, 1e-5)
    assert many.returncode == one.returncode == 3
    assert {each.name: each.read_text() for each in (path.parent / "out").iterdir()} == files == {"kept.txt": "line\n"}


# Rank 1 comes later to its files than rank 0, which is not to have written them by then.
CACHED = """
import os, time, torch
from pathlib import Path
from overdrive.ranks.rank import current
if current() and current().rank:
    time.sleep(1)
if not os.path.exists("cache.pt"):
    torch.save(torch.randn(8, 4), "cache.pt")
runs = Path("runs.txt")
seen = int(runs.read_text()) if runs.exists() else 0
runs.write_text(str(seen + 1))
with open("log.txt", "a+") as log:
    log.seek(0)
    print(seen, log.read(), file=log)
torch.manual_seed(seen)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    loss = model(torch.load("cache.pt") + torch.randn(8, 4)).pow(2).mean()
    loss.backward()
    optimizer.step()
print(loss.item(), seen, Path("log.txt").read_text())
"""


@cluster
def test_a_rank_does_not_find_what_another_has_written_before_it(script: Write, overdrive: Run) -> None:
    path = script(CACHED)
    for seen in range(2):
        told = overdrive("run", "--ranks", "2", "train.py", cwd=path.parent)
        assert told.returncode == 0 and f" {seen} 0" in told.stdout, told.stderr


@pytest.mark.fault(16)
def test_the_error_of_one_rank_ends_all_and_is_shown(script: Write, overdrive: Run) -> None:
    path = script(acting("if rank == 1: raise ValueError('only here')"))
    told = overdrive("run", "--ranks", "2", "train.py", cwd=path.parent, timeout=60)
    assert told.returncode == 1
    assert "rank 1 of 2" in told.stderr and "failed in step 4" in told.stderr
    assert told.stderr.count("ValueError: only here") == 1 and "src/overdrive" not in told.stderr


@cluster
@pytest.mark.parametrize("within", [False, True])
def test_an_error_of_all_ranks_is_shown_once(within: bool, script: Write, python: Run, overdrive: Run) -> None:
    """`within`: in the call of the model, which is made again whole before the error is the program's."""
    text = acting("raise ValueError('everywhere')")
    if within:
        text = FAILING + acting("pass").replace("torch.nn.Linear(4, 2)", "Failing()")
    path = script(text)
    told = overdrive("run", "--ranks", "2", "train.py", cwd=path.parent)
    assert told.returncode == 1 and "called whole" not in told.stderr and "left out" not in told.stderr
    assert told.stderr.replace("overdrive: ", "") == python("train.py", cwd=path.parent).stderr


APART = "rank 0 asks for a model's result in step 4, and rank 1 for "


@cluster
@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("if rank == 1: os.kill(os.getpid(), 9)", "rank 1 was ended by SIGKILL"),
        ("if rank == 1: os.kill(os.getpid(), 19)", "rank 1 does not answer"),
        ("if rank == 1: sys.exit(0)", f"{APART}the comparison at the end"),
        ("if rank == 1: loss.item()", f"{APART}a number that is read in step 4: the program does not do the same"),
        ("if rank == 1: torch.manual_seed(1)", f"{APART}a seed in step 4"),
        ("if rank == 1: optimizer.step()", f"{APART}the comparison at step 4"),
        ("if rank == 1: model(torch.randn(16, 4))", "and rank 1 for how a model's call is divided in step 4: "),
        ("if rank == 1: time.sleep(3)", ""),
    ],
)
@pytest.mark.fault(16, 17)
def test_a_rank_that_goes_astray_ends_all(line: str, sentence: str, script: Write, overdrive: Run) -> None:
    path = script(acting(line))
    told = overdrive("run", "--ranks", "2", "train.py", cwd=path.parent, timeout=75)
    assert sentence in told.stderr
    assert bool(told.returncode) is bool(sentence) and told.stderr.count("overdrive: rank ") <= 1
    assert "gloo" not in told.stderr and not left_in(path.parent)


@cluster
@pytest.mark.fault(17, "hang")
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_stands_by_itself_names_itself(rank: int, script: Write, overdrive: Run) -> None:
    path = script(acting(f"if rank == {rank}: time.sleep(60)"))
    told = overdrive("run", "--ranks", "2", "--on-hang", "stop", "--hang-after", "3s", "train.py", cwd=path.parent)
    assert told.returncode == 75 and f"rank {rank} of 2 on " in told.stderr, told.stderr
    assert told.stderr.count("no step and no batch for 3 s, since step") == 1
    place = re.search(r"stacks of all threads are in (\S+?):", told.stderr)
    assert place and "train.py" in Path(place[1]).read_text()


@cluster
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.fault(10)
def test_signals_end_all_ranks(number: signal.Signals, script: Write) -> None:
    path = script(acting("print('ready', flush=True); time.sleep(60)"))
    command = [sys.executable, "-m", "overdrive", "run", "--ranks", "2", "train.py"]
    process = subprocess.Popen(command, cwd=path.parent, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    while "ready" not in process.stdout.readline():
        assert process.poll() is None
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode == -number
    assert not left_in(path.parent)


def begun(path: Path, *before: str, **pipes: int) -> subprocess.Popen[str]:
    """`overdrive run --ranks 2` on a program that has said "ready". `before`: words before the command."""
    command = [*before, sys.executable, "-m", "overdrive", "run", "--ranks", "2", path.name]
    process = subprocess.Popen(
        command, cwd=path.parent, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **pipes
    )
    assert process.stdout is not None
    while "ready" not in process.stdout.readline():
        assert process.poll() is None
    return process


@cluster
def test_what_is_to_be_ignored_is_ignored(script: Write) -> None:
    process = begun(script(acting("print('ready', flush=True); time.sleep(3)")), "nohup")
    process.send_signal(signal.SIGHUP)
    printed, told = process.communicate(timeout=60)
    assert process.returncode == 0 and len(printed.splitlines()) == 2, told


@cluster
def test_ranks_stop_and_go_on_with_who_started_them(script: Write) -> None:
    process = begun(script(acting("print('ready', flush=True); time.sleep(3)")))
    ranks = psutil.Process(process.pid).children()
    assert len(ranks) == 2

    def wait_for(stopped: bool) -> None:
        until = time.monotonic() + 30
        while any((each.status() == psutil.STATUS_STOPPED) is not stopped for each in ranks):
            assert time.monotonic() < until
            time.sleep(0.05)

    try:
        process.send_signal(signal.SIGTSTP)
        wait_for(stopped=True)
        process.send_signal(signal.SIGCONT)
        wait_for(stopped=False)
        _, told = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0, told


@cluster
def test_what_a_rank_has_started_ends_with_it(script: Write) -> None:
    """But after it: a loader's workers that end before it are an error in the middle of what it has to do."""
    line = "import subprocess; subprocess.Popen(['sleep', '600']); print('ready', flush=True); time.sleep(60)"
    path = script(acting(line))
    process = begun(path)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM and not left_in(path.parent)


def left_in(folder: Path) -> list[str]:
    """Processes that work in that folder, which is a test's own."""
    found = []
    for each in Path("/proc").glob("[0-9]*/cwd"):
        try:
            if each.readlink().is_relative_to(folder):
                found.append(each.parent.name)
        except OSError:  # it is gone, or another user's
            continue
    return found


@cluster
def test_the_search_for_what_is_left_finds_what_works_there(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"], cwd=tmp_path) as process:
        assert left_in(tmp_path) == [str(process.pid)]
        process.kill()


@cluster
@pytest.mark.parametrize("ranks", ["2", "4"])
def test_inside_torchrun(ranks: str, script: Write, python: Run) -> None:
    path = script(acting("pass"))
    one = python("train.py", cwd=path.parent)
    words = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks, "-m", "overdrive", "run")
    many = python(*words, "train.py", cwd=path.parent)
    assert many.returncode == 0 and not difference(one.stdout, many.stdout, 1e-5), many.stderr


@cluster
def test_what_ranks_of_a_launcher_left_is_gone_with_its_next_start(
    script: Write, python: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each looks to its end at the view that keeps its writes apart, and cannot remove it."""
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    path = script(acting("pass"))
    words = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "overdrive", "run")
    left = []
    for _ in range(2):
        assert python(*words, "train.py", cwd=path.parent).returncode == 0
        left.append({each.name for each in (tmp_path / "temporary").glob("overdrive-*")})
    assert not left[0] & left[1] and len(left[1]) <= 1


@cluster
@pytest.mark.parametrize(("options", "ranks"), [((), 2), (("--ranks", "3"), 3), (("--ranks", "1"), 1)])
def test_as_many_ranks_as_the_project_file_says_where_the_line_does_not(
    options: tuple[str, ...], ranks: int, script: Write, python: Run, overdrive: Run
) -> None:
    """Each rank reads that file, too."""
    path = script(acting("open('size', 'w').write(str(current().size if current() else 1))"))
    (path.parent / "pyproject.toml").write_text("[tool.overdrive.run]\nranks = 2\n")
    one = python("train.py", cwd=path.parent)
    many = overdrive("run", *options, "--record", "record.json", "train.py", cwd=path.parent)
    assert many.returncode == 0 and not difference(one.stdout, many.stdout, 1e-5), many.stderr
    assert (path.parent / "size").read_text() == str(ranks)
    techniques = json.loads((path.parent / "record.json").read_text())["techniques"]
    assert techniques == (["data_parallel"] if ranks > 1 else [])


@cluster
def test_as_many_ranks_as_the_launcher_starts_whatever_the_project_file_says(script: Write, python: Run) -> None:
    path = script(acting("open('size', 'w').write(str(current().size))"))
    (path.parent / "pyproject.toml").write_text("[tool.overdrive.run]\nranks = 3\n")
    words = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "overdrive", "run")
    told = python(*words, "train.py", cwd=path.parent)
    assert told.returncode == 0 and (path.parent / "size").read_text() == "2", told.stderr


def in_slurm_step(path: Path, number: int) -> list[subprocess.Popen[str]]:
    """Two ranks of it, as `srun -n 2` sets the variables: Slurm itself is not there."""
    step = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_ID": str(number), "SLURM_STEP_NUM_TASKS": "2"}
    step["SLURM_STEP_NODELIST"] = "localhost"
    return [
        subprocess.Popen(
            [sys.executable, "-m", "overdrive", "run", "train.py"],
            cwd=path.parent,
            env={**os.environ, **step, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]


@cluster
def test_inside_a_slurm_step(script: Write, python: Run) -> None:
    path = script(acting("pass"))
    one = python("train.py", cwd=path.parent)
    ranks = in_slurm_step(path, 0)
    outputs = [each.communicate(timeout=120)[0] for each in ranks]
    assert [each.returncode for each in ranks] == [0, 0]
    assert not difference(one.stdout, outputs[0], 1e-5) and outputs[1] == ""


@cluster
def test_a_rank_that_works_on_after_the_last_exchange_is_waited_for(script: Write) -> None:
    """Where rank 0 keeps the store. Of a program that trains nothing the last exchange may be long before its end."""
    path = script(
        "import time, torch\nfrom overdrive.ranks.rank import current\ntorch.manual_seed(0)\n"
        "with torch.no_grad():\n    print(torch.nn.Linear(4, 2)(torch.randn(8, 4)).shape)\n"
        "time.sleep(8 if current().rank else 0)\n"
    )
    ranks = in_slurm_step(path, 1)
    said = [each.communicate(timeout=120) for each in ranks]
    assert [each.returncode for each in ranks] == [0, 0] and said[0][0] == "torch.Size([8, 2])\n", said


@cluster
@pytest.mark.parametrize("asks", [False, True])
def test_inside_mpirun(asks: bool, script: Write, python: Run) -> None:
    """As Open MPI's sets the variables. `asks`: the program brings a parallelism of MPI's, and sees them again."""
    path = script(acting("import mpi4py; print(os.environ['OMPI_COMM_WORLD_RANK'])" if asks else "pass"))
    (path.parent / "mpi4py.py").write_text("")
    told = {"PMIX_NAMESPACE": f"of {os.getpid()}", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
    names = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK")
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "overdrive", "run", "train.py"],
            cwd=path.parent,
            env={**os.environ, **told, **dict.fromkeys(names, str(rank))},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [each.communicate(timeout=120) for each in ranks]
    assert [each.returncode for each in ranks] == [0, 0], outputs
    if asks:
        assert "own parallelism (it uses mpi4py)" in outputs[0][1] and "\n0\n" in outputs[0][0]
    else:
        assert not difference(python("train.py", cwd=path.parent).stdout, outputs[0][0], 1e-5) and not outputs[1][0]


OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}
HYDRA = {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4"}


@pytest.mark.parametrize(
    ("variables", "address"),
    [
        ({**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, "127.0.0.1"),
        ({**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "MASTER_ADDR": "gpu03"}, "gpu03"),
        (HYDRA, "127.0.0.1"),
        ({**HYDRA, "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0"}, "127.0.0.1"),  # of the step that started mpirun
        (
            {**HYDRA, "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3", "SLURM_LOCALID": "1"}
            | {"SLURM_STEP_NODELIST": "gpu[05-06]"},
            "gpu05",
        ),  # srun with a PMI
    ],
)
def test_mpirun_says_who_a_rank_is(variables: dict[str, str], address: str) -> None:
    found = Membership.of(variables)
    assert found and (found.rank, found.size, found.local_rank, found.address) == (3, 4, 1, address)
    assert 20_000 <= found.port < 40_000 and Membership.of({**OPEN_MPI, "OMPI_COMM_WORLD_SIZE": "1"}) is None


@cluster
@pytest.mark.parametrize("asks", ["", "torch.distributed.init_process_group('gloo')\n"])
def test_each_rank_of_a_host_has_a_gpu_and_a_program_of_its_own_parallelism_all(
    script: Write, overdrive: Run, monkeypatch: pytest.MonkeyPatch, asks: str
) -> None:
    """No GPU is needed: which one CUDA would see."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4, 5")
    text = "import os, torch\nfrom overdrive.ranks.rank import current\n" + asks
    expected = "'4, 5'" if asks else "'45'[current().rank]"
    path = script(f"{text}assert os.environ['CUDA_VISIBLE_DEVICES'] == {expected}, current().rank\n")
    told = overdrive("run", "--ranks", "2", "train.py", cwd=path.parent)
    assert told.returncode == 0, told.stderr


def test_gpus_that_a_launcher_has_dealt_out_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    for given, gpus, seen in (("3", 8, "3"), ("GPU-a,GPU-b", 8, "GPU-b"), (None, 4, "1"), (None, 1, None), ("", 4, "")):
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if given is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
        second = Membership(1, 2, 1, "127.0.0.1", 1, agents_store=False)
        second.take_gpu(gpus)
        assert os.environ.get("CUDA_VISIBLE_DEVICES") == seen
        second.leave("it asks")
        assert os.environ.get("CUDA_VISIBLE_DEVICES") == given


@pytest.mark.parametrize(
    ("ranks", "names", "taken"),
    [
        (2, ("0-3", "4-7"), ["0 1 2 3", "4 5 6 7"]),
        (4, ("0-3", "4-7"), ["0 1 2 3", "0 1 2 3", "4 5 6 7", "4 5 6 7"]),
        (2, ("0-1", "2-3", "4-5", "6-7"), ["0 1 2 3", "4 5 6 7"]),
        (3, ("0-3", "4-7"), ["0 1 2 3", "0 1 2 3", "4 5 6 7"]),
        (3, ("0-1", "2-7"), ["", "", "2 3 4 5 6 7"]),  # two ranks of two threads have no room on two cores
        (2, ("0-7",), ["", ""]),
        (2, ("0-7", ""), ["", ""]),  # memory without cores
    ],
)
def test_ranks_keep_to_memory_nodes_of_their_own(
    ranks: int, names: tuple[str, ...], taken: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No machine with two of them was there."""
    for number, cores in enumerate(names):
        (place := tmp_path / f"sys/devices/system/node/node{number}").mkdir(parents=True)
        (place / "cpulist").write_text(f"{cores}\n")
    all_cores, bound = frozenset(range(8)), dict[str, frozenset[int]]()
    monkeypatch.setattr("overdrive.ranks.membership.nodes", lambda: nodes(tmp_path, all_cores))
    monkeypatch.setattr("overdrive.ranks.membership.allowed_cores", lambda: all_cores)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: all_cores)
    monkeypatch.setattr("os.sched_setaffinity", lambda process, cores: bound.update(now=cores))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
    for rank in range(ranks):
        bound.clear()
        member = Membership(rank, ranks, rank, "127.0.0.1", 1, agents_store=False)
        member.take_cores()
        assert " ".join(map(str, sorted(bound.get("now", ())))) == taken[rank]
        member.leave("it asks")
        assert bound.get("now", all_cores) == all_cores


@pytest.mark.parametrize(
    ("given", "gpus", "agent", "shown"),
    [
        (None, 1, False, "1 GPU,"),
        (None, 2, False, "2 GPUs,"),
        ("0,1", 8, True, "2 GPUs,"),
        ("0,1", 8, False, ""),  # perhaps this rank's own, of a launcher
        (None, 3, False, ""),
        (None, 0, False, ""),
        ("", 8, True, ""),
    ],
)
def test_more_ranks_than_gpus_of_a_host(
    given: str | None, gpus: int, agent: bool, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if given is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    third = Membership(2, 4, 2, "127.0.0.1", 1, agents_store=False)
    third._hidden = {"LOCAL_WORLD_SIZE": "4"} if agent else {}
    third.take_gpu(gpus)
    assert (shown in third.without_gpu and "rank 2 has no GPU" in third.without_gpu) if shown else not third.without_gpu
    third.leave("it asks")
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == given


USES_GPU = """
import torch
print("begins")
for call, _ in torch.cuda._queued_calls:  # as CUDA's start does
    call.__module__.startswith("overdrive.") and call()
torch.distributed.is_initialized() or print(torch.nn.Linear(2, 1)(torch.ones(4, 2)).shape)
"""


@cluster
@pytest.mark.parametrize("uses", [True, False])
def test_a_rank_without_a_gpu_ends_the_run_where_the_program_uses_one(
    uses: bool, script: Write, overdrive: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program of CPUs alone runs on as many ranks as people like. No GPU is needed."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a")
    path = script(USES_GPU if uses else USES_GPU.replace("and call()", ""))
    told = overdrive("run", "--ranks", "2", "train.py", cwd=path.parent)
    assert "Traceback" not in told.stderr
    if uses:
        assert told.returncode == 1 and told.stdout in ("", "begins\n"), told.stdout
        assert told.stderr.count("rank 1 has no GPU: this host shows 1 GPU, and each rank needs one") == 1, told.stderr
    else:
        assert told.returncode == 0 and "no GPU" not in told.stderr, told.stderr


HIDDEN = """
import os, random, uuid, time
import numpy as np
random.seed(time.time())
np.random.seed(time.time_ns() % 100_003)
import torch
print(torch.distributed.is_initialized(), [each for each in os.environ if each in ("RANK", "WORLD_SIZE")])
numbers = [random.random(), np.random.rand(), torch.rand(1).item(), np.random.default_rng().random()]
numbers.append(uuid.uuid4().int % 997)
torch.manual_seed(time.time_ns() % 100_003)
random.seed(time.time())
np.random.seed(np.int64(time.time_ns() % 100_003))
numbers += [random.random(), np.random.rand()]
torch.cuda.manual_seed_all(time.time_ns() % 100_003)
torch.random.manual_seed(time.time_ns() % 100_003)
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


@cluster
def test_a_seed_that_is_set_before_pytorch_comes_is_the_programs(script: Write, python: Run, overdrive: Run) -> None:
    """PyTorch brings NumPy along, which the program may have had before."""
    path = script("import random, numpy as np\nnp.random.seed(3)\nrandom.seed(3)\nimport torch\n")
    path.write_text(path.read_text() + "print(np.random.rand(3), random.random())\n")
    one = python("train.py", cwd=path.parent)
    assert overdrive("run", "--ranks", "2", "train.py", cwd=path.parent).stdout == one.stdout != ""


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
    total = told.stdout.split()[2]  # the lines of two processes may be mixed
    assert told.returncode == 0 and told.stdout.startswith("0 2 ") and total in plain.stdout
    assert "the program brings its own parallelism" in told.stderr


MESH = """
import torch
mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (2,))
total = torch.ones(3) * (mesh.get_rank() + 1)
torch.distributed.all_reduce(total)
if mesh.get_rank() == 0:
    print(total.tolist())
torch.distributed.destroy_process_group()
"""


def test_a_program_that_makes_a_mesh_of_ranks_is_run_as_it_is(script: Write, overdrive: Run) -> None:
    """PyTorch's code makes the groups."""
    told = overdrive("run", "--ranks", "2", "train.py", cwd=script(MESH).parent)
    assert told.returncode == 0 and told.stdout == "[3.0, 3.0, 3.0]\n", told.stderr
    assert "the program brings its own parallelism (it calls init_process_group)" in told.stderr


DEEPSPEED = """
import os, torch
def init_distributed():
    assert all(each in os.environ for each in ("RANK", "WORLD_SIZE", "LOCAL_RANK")), "looks for MPI"
    torch.distributed.init_process_group("gloo")
"""


@cluster
def test_a_program_for_deepspeed_is_run_as_it_is(script: Write, overdrive: Run) -> None:
    """A package in its place, which looks at the environment as it does."""
    # A rank that ends its group while the other one still connects ends that, too.
    waits = "torch.distributed.barrier()\ntorch.distributed.destroy_process_group()"
    ends = f"deepspeed.init_distributed()\n{waits}\nprint(1)\n"
    folder = script(f"import torch, deepspeed\n{ends}").parent
    (folder / "deepspeed" / "comm").mkdir(parents=True)
    (folder / "deepspeed" / "comm" / "__init__.py").write_text("from .comm import *\n")
    (folder / "deepspeed" / "comm" / "comm.py").write_text(DEEPSPEED)
    (folder / "deepspeed" / "__init__.py").write_text("from .comm.comm import init_distributed\n")
    told = overdrive("run", "--ranks", "2", "train.py", cwd=folder)
    assert told.returncode == 0 and told.stdout == "1\n", told.stderr
    assert "(it calls init_distributed)" in told.stderr


SAVING = """
import os, random, numpy as np, torch
{seeds}
torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
os.makedirs("shards", exist_ok=True)
torch.save([torch.rand(2).tolist(), np.random.rand(), random.random()], f"shards/{{rank}}.pt")
torch.distributed.barrier()
if rank == 0 and os.path.exists("shards/1.pt"):
    one, other = (torch.load(f"shards/{{each}}.pt") for each in range(2))
    print([mine == theirs for mine, theirs in zip(one, other)])
torch.distributed.destroy_process_group()
"""


@cluster
@pytest.mark.parametrize(
    ("seeds", "alike"), [("", [False] * 3), ("torch.manual_seed(1); np.random.seed(1); random.seed(1)", [True] * 3)]
)
def test_ranks_with_a_parallelism_of_their_own_have_files_and_chance_of_their_own(
    seeds: str, alike: list[bool], script: Write, overdrive: Run
) -> None:
    path = script(SAVING.format(seeds=seeds))
    told = overdrive("run", "--ranks", "2", "train.py", cwd=path.parent)
    assert told.returncode == 0 and told.stdout == f"{alike}\n", told.stderr


@cluster
def test_that_they_have_not_is_said(script: Write, overdrive: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVERDRIVE_ISOLATION", "redirect")
    path = script(SAVING.format(seeds=""))
    told = overdrive("run", "--ranks", "2", "train.py", cwd=path.parent)
    assert told.returncode == 0 and not told.stdout and not (path.parent / "shards" / "1.pt").exists()
    assert told.stderr.count("what ranks above 0 write is thrown away") == 1


@pytest.mark.parametrize(
    ("variables", "options", "sentence"),
    [
        ({}, ["--ranks", "0"], "'0' is not a whole number, 1 or more"),
        ({"RANK": "1", "WORLD_SIZE": "2"}, ["--ranks", "3"], "This is rank 1 of 2 already"),
        ({}, ["--on", "ray"], "--on belongs to --ranks"),
        pytest.param(
            *({}, ["--on=ray", "--ranks=2"], "Ray Train is not installed"),
            marks=pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="it is"),
        ),
        ({"RANK": "2", "WORLD_SIZE": "2"}, [], "The launcher says that this is rank 2 of 2."),
        (OPEN_MPI, [], "mpirun does not say which host has rank 0: name it in MASTER_ADDR"),
        ({"RANK": "x", "WORLD_SIZE": "2"}, [], "The variables of the launcher cannot be understood"),
    ],
)
@pytest.mark.fault(28)
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
    assert len(NAMES) >= 45 and len(DEFECTS) >= 20 and len(TRIED) == 2 and len(STOPPED) == 7
    assert {*DEFECTS.values(), *FEW} <= {*NAMES}


def test_options_of_the_script_stay_the_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["overdrive", "run", "--ranks", "2", "train.py", "--on", "cpu"])
    assert words_of_ranks(2)[0] == ["overdrive", "run", "--ranks=2", "train.py", "--on", "cpu"]
    own = ["run", "--survive", "--every", "5m", "train.py", "--ranks", "4", "--fresh"]
    monkeypatch.setattr(sys, "argv", ["overdrive", *own])  # of a plan, or of [tool.overdrive], are ours
    assert words_of_ranks(3)[0] == ["overdrive", "run", "--ranks=3", *own[1:]]
    monkeypatch.setattr(sys, "argv", ["overdrive", "run", "--on=ray", "--ranks", "2", "train.py", "--on", "cpu"])
    words = words_of_ranks(2, options=("--ranks", "--on"))[0]
    assert words == ["overdrive", "run", "--ranks=2", "train.py", "--on", "cpu"]
