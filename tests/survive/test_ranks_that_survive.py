"""`overdrive run --survive --ranks N`: ranks are killed, and the end is that of the run of which none was."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.survive.killed import PICTURES, files_of, started, survive

pytest.importorskip("torch")

# What rank 1 prints goes to a file: by that it is known in the program, which knows of no ranks and holds no number of
# one.
ON_RANK = """
if os.environ.get("ON_RANK") not in (None, "1" if "rank1.log" in os.readlink("/proc/self/fd/1") else "0"):
    os.environ.pop("DIES", None)
"""
ON_RANKS = PICTURES.replace("nn, F =", ON_RANK + "nn, F =").replace(
    "os.kill(os.getpid()", 'os.environ.get("DIED") and open(os.environ["DIED"], "w"); os.kill(os.getpid()'
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, bytes]]:
    """Output and files of the run that nobody disturbs."""
    place = tmp_path_factory.mktemp("ranks")
    got = survive(place, "whole", ON_RANKS, "--ranks", "2")
    assert got.returncode == 0 and "called whole" not in got.stderr, got.stderr
    return got.stdout, files_of(place / "whole")


@pytest.mark.survive
@pytest.mark.fault("lost rank")
@pytest.mark.parametrize("rank", [0, 1])
def test_a_lost_rank_costs_the_way_from_the_last_snapshot(
    rank: int, whole: tuple[str, dict[str, bytes]], tmp_path: Path
) -> None:
    """The same command goes on by itself: all ranks are started again, and the numbers are those of the run."""
    # Where every rank really writes, and what is there is no file of the run's.
    (tmp_path / "killed-cache").mkdir()
    variables = {"ON_RANK": str(rank), "DIED": str(tmp_path / "killed-cache" / "died")}
    got = survive(tmp_path, "killed", ON_RANKS, "--ranks", "2", dies=17, variables=variables)
    assert got.returncode == 0 and f"rank {rank} is lost (SIGKILL); all go on from step" in got.stderr, got.stderr
    assert "gone on after step" in got.stderr and "from its start" not in got.stderr
    assert (got.stdout, files_of(tmp_path / "killed")) == whole


@pytest.mark.survive
@pytest.mark.fault("lost rank")
def test_optimizers_whose_state_is_divided_go_on_with_all_of_it(
    whole: tuple[str, dict[str, bytes]], tmp_path: Path
) -> None:
    """The elements are those of the run in which each rank has all of the state, bit for bit."""
    (tmp_path / "killed-cache").mkdir()
    variables = {"ON_RANK": "1", "DIED": str(tmp_path / "killed-cache" / "died")}
    options = ("--ranks", "2", "--layout", "zero1=2")
    got = survive(tmp_path, "killed", ON_RANKS, *options, dies=17, variables=variables)
    assert got.returncode == 0 and "the state of AdamW is divided over 2 ranks" in got.stderr, got.stderr
    assert "rank 1 is lost (SIGKILL); all go on from step" in got.stderr and "gone on after step" in got.stderr
    assert "from its start" not in got.stderr
    assert (got.stdout, files_of(tmp_path / "killed")) == whole


# What is trained hangs on the times that it reads, also before PyTorch comes.
TIMED = ON_RANKS.replace("import os,", "import time; began = time.time()\nimport os,").replace(
    "optimizer.zero_grad()", "optimizer.param_groups[0]['lr'] *= 1 - (time.time() - began) % 0.1; optimizer.zero_grad()"
)


@pytest.mark.survive
def test_times_of_a_run_that_goes_on_are_rank_0s(tmp_path: Path) -> None:
    (tmp_path / "killed-cache").mkdir()
    variables = {"ON_RANK": "1", "DIED": str(tmp_path / "killed-cache" / "died")}
    got = survive(tmp_path, "killed", TIMED, "--ranks", "2", dies=17, variables=variables)
    assert got.returncode == 0 and "rank 1 is lost (SIGKILL); all go on from step" in got.stderr, got.stderr
    assert "gone on after step" in got.stderr and "from its start" not in got.stderr, got.stderr


@pytest.mark.survive
@pytest.mark.fault("lost rank")
def test_ranks_of_a_launcher_go_on_where_it_starts_them_again(tmp_path: Path) -> None:
    """torchrun does, as often as it was told to."""
    (tmp_path / "killed-cache").mkdir()
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1")
    variables = {"ON_RANK": "1", "DIED": str(tmp_path / "killed-cache" / "died")}
    whole = survive(tmp_path, "whole", ON_RANKS, launcher=torchrun)
    assert whole.returncode == 0 and "called whole" not in whole.stderr, whole.stderr
    got = survive(tmp_path, "killed", ON_RANKS, launcher=torchrun, dies=17, variables=variables)
    assert got.returncode == 0 and "gone on after step" in got.stderr, got.stderr
    assert "from its start" not in got.stderr
    assert (got.stdout, files_of(tmp_path / "killed")) == (whole.stdout, files_of(tmp_path / "whole"))
    over = survive(tmp_path, "killed", ON_RANKS, launcher=torchrun)
    assert over.returncode == 0 and over.stdout == "" and over.stderr.count("over already") == 1, over.stderr


@pytest.mark.survive
@pytest.mark.fault("lost rank")
def test_where_a_rank_is_lost_again_and_again_one_less_goes_on(
    whole: tuple[str, dict[str, bytes]], tmp_path: Path
) -> None:
    got = survive(tmp_path, "killed", ON_RANKS, "--ranks", "2", dies=2, every="10m", variables={"ON_RANK": "1"})
    assert got.returncode == 0, got.stderr
    assert got.stderr.count("rank 1 is lost (SIGKILL)") == 3, got.stderr
    assert "no snapshot was taken in between: all go on as 1" in got.stderr, got.stderr
    assert len(got.stdout.splitlines()) == len(whole[0].splitlines())


@pytest.mark.survive
@pytest.mark.fault("lost rank")
def test_a_rank_that_is_lost_again_and_again_ends_a_run_whose_layout_needs_it(tmp_path: Path) -> None:
    options = ("--ranks", "2", "--layout", "zero1=2")
    got = survive(tmp_path, "killed", ON_RANKS, *options, dies=2, every="10m", variables={"ON_RANK": "1"})
    assert got.returncode == 128 + signal.SIGKILL
    assert got.stderr.count("rank 1 is lost (SIGKILL)") == 3, got.stderr
    assert "no snapshot was taken in between: the run ends here" in got.stderr


@pytest.mark.survive
@pytest.mark.fault("lost rank")
def test_another_number_of_ranks_goes_on_from_the_snapshot(whole: tuple[str, dict[str, bytes]], tmp_path: Path) -> None:
    """With the numbers of the run, but for the last bits: losses, and what depends on no sum."""
    variables = {"ON_RANK": "0"}
    first = survive(tmp_path, "killed", ON_RANKS, "--ranks", "2", dies=17, by=signal.SIGTERM, variables=variables)
    second = survive(tmp_path, "killed", ON_RANKS)
    assert second.returncode == 0 and "ranks: 1, where this run began with 2" in second.stderr, second.stderr
    assert "gone on after step" in second.stderr and "from its start" not in second.stderr, second.stderr
    lines = (first.stdout + second.stdout).splitlines()
    assert len(lines) == len(whole[0].splitlines())
    for one, other in zip(lines[:-1], whole[0].splitlines()[:-1], strict=True):
        if not one.startswith("accuracy"):
            (step, loss, drawn, _), (step_then, loss_then, drawn_then, _) = one.split(), other.split()
            assert (step, drawn) == (step_then, drawn_then) and abs(float(loss) - float(loss_then)) < 1e-3


# It stands for two seconds in step 4.
STANDING = ON_RANKS.replace("import os,", "import time, os,").replace(
    "        print(step,",
    '        if step == 4 and "STANDS" in os.environ: open("../there", "w").close(); time.sleep(2)\n'
    "        print(step,",
)


def told_to_end(
    process: subprocess.Popen[str], there: Path, number: signal.Signals, seconds: float = 60
) -> tuple[str, str]:
    """By a signal, once it has made this file: what it printed."""
    try:
        while not there.exists() and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(number)
        return process.communicate(timeout=seconds)
    finally:
        process.kill()


@pytest.mark.survive
@pytest.mark.fault(10)
@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM], ids=lambda each: each.name)
def test_the_end_of_an_allocation_is_answered_with_a_snapshot(
    number: signal.Signals, whole: tuple[str, dict[str, bytes]], tmp_path: Path
) -> None:
    """The signal comes to the process that started the ranks, as Slurm sends it."""
    # It stands for two seconds after step 7, the end of an epoch.
    stands = 'if step == 7: open("../there", "w").close(); time.sleep(2)'
    text = ON_RANKS.replace("import os,", "import time, os,")
    text = text.replace("    model.eval()", f"    {stands}\n    model.eval()")
    process = started(tmp_path, "killed", text, "--requeue-code", "99", "--ranks", "2", every="10m")
    printed, told = told_to_end(process, tmp_path / "there", number)
    assert process.returncode == 99 and f"stopped by {number.name}: the same command goes on after step" in told, told
    second = survive(tmp_path, "killed", text, "--ranks", "2", every="10m")
    assert second.returncode == 0 and "gone on after step" in second.stderr, second.stderr
    assert printed + second.stdout == whole[0]


@pytest.mark.survive
def test_workers_of_loaders_live_until_rank_0_has_taken_the_snapshot(tmp_path: Path) -> None:
    """Their death would be an error of the program's, in the middle of its epoch."""
    options, variables = ("--requeue-code", "99", "--ranks", "2"), {"WORKERS": "2"}
    whole = survive(tmp_path, "whole", STANDING, *options, variables=variables)
    process = started(tmp_path, "killed", STANDING, *options, every="10m", variables={**variables, "STANDS": "1"})
    printed, told = told_to_end(process, tmp_path / "there", signal.SIGTERM)
    assert process.returncode == 99 and "stopped by SIGTERM: the same command goes on after step" in told, told
    second = survive(tmp_path, "killed", STANDING, *options, every="10m", variables=variables)
    assert second.returncode == 0 and "gone on after step" in second.stderr, second.stderr
    assert printed + second.stdout == whole.stdout


@pytest.mark.survive
def test_workers_live_as_long_where_torchrun_tells_the_whole_group(tmp_path: Path) -> None:
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    how = {"launcher": torchrun, "every": "10m"}
    whole = survive(tmp_path, "whole", STANDING, variables={"WORKERS": "2"}, **how)
    process = started(tmp_path, "killed", STANDING, variables={"WORKERS": "2", "STANDS": "1"}, **how)
    printed, told = told_to_end(process, tmp_path / "there", signal.SIGTERM, 90)
    assert "stopped by SIGTERM: the same command goes on after step" in told, told
    second = survive(tmp_path, "killed", STANDING, variables={"WORKERS": "2"}, **how)
    assert second.returncode == 0 and "gone on after step" in second.stderr, second.stderr
    assert printed + second.stdout == whole.stdout


@pytest.mark.survive
def test_ranks_of_a_launcher_meet_again_and_go_on_where_it_does_not_count_that(tmp_path: Path) -> None:
    """Of several agents each counts the starts after a rank of its own was lost. `--fresh` is for the first start."""
    (tmp_path / "killed-cache").mkdir()
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1")
    uncounted = (*torchrun, "--no-python", "env", "TORCHELASTIC_RESTART_COUNT=0", sys.executable)
    variables = {"ON_RANK": "1", "DIED": str(tmp_path / "killed-cache" / "died")}
    whole = survive(tmp_path, "whole", ON_RANKS, launcher=torchrun)
    got = survive(tmp_path, "killed", ON_RANKS, "--fresh", launcher=uncounted, dies=17, variables=variables)
    assert got.returncode == 0 and "gone on after step" in got.stderr, got.stderr
    assert (got.stdout, files_of(tmp_path / "killed")) == (whole.stdout, files_of(tmp_path / "whole"))
    anew = survive(tmp_path, "killed", ON_RANKS, "--fresh", launcher=uncounted)
    assert anew.returncode == 0 and anew.stdout == whole.stdout, anew.stderr
