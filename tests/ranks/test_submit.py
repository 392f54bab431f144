"""`overdrive submit`: the batch script, what Slurm says to it, and what is said where there is no Slurm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from overdrive.ranks.batch_script import Allocation, CannotWriteScript, batch_script, batch_script_until_done, output
from tests.conftest import Run
from tests.schemas import held

SBATCH = """#!/bin/sh
echo "$@" > asked.txt
cat > given.sh
{answer}
"""


@pytest.fixture
def sbatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path of a command that stands in for Slurm's; a test writes what it does."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin")
    path = folder / "sbatch"
    path.write_text(SBATCH.format(answer="echo '41;cluster'"))
    path.chmod(0o755)
    (tmp_path / "train.py").write_text("import sys; print(sys.argv[1:])")
    return path


def test_a_job_is_submitted_and_its_script_is_shown(sbatch: Path, tmp_path: Path, overdrive: Run) -> None:
    words = ("--nodes", "2", "--gpus-per-node", "8", "--time", "4:00:00", "--sbatch", "partition=gpu")
    told = overdrive("submit", *words, "train.py", "--lr", "0.1 1", cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    assert f"job 41 is with Slurm; its output goes to {tmp_path / 'train.py-41.out'}" in told.stderr
    assert (tmp_path / "given.sh").read_text() == told.stdout
    assert (tmp_path / "asked.txt").read_text() == "--parsable\n"
    for line in ("nodes=2", "ntasks-per-node=8", "gpus-per-node=8", "time=4:00:00", "partition=gpu"):
        assert f"\n#SBATCH --{line}\n" in told.stdout
    assert told.stdout.endswith(f"{sys.executable} -m overdrive run train.py --lr '0.1 1'\n")


def test_a_dry_run_shows_the_script_alone(sbatch: Path, tmp_path: Path, overdrive: Run) -> None:
    told = overdrive("submit", "--dry-run", "--ranks-per-node", "4", "--cpus-per-rank", "2", "train.py", cwd=tmp_path)
    assert told.returncode == 0 and not told.stderr and not (tmp_path / "given.sh").exists()
    assert "\n#SBATCH --ntasks-per-node=4\n#SBATCH --cpus-per-task=2\n" in told.stdout


@pytest.mark.parametrize("cores", ["8", ""])
def test_each_task_has_the_cores_of_the_job(cores: str, tmp_path: Path) -> None:
    """Which `srun` no longer takes from the job by itself."""
    (tmp_path / "srun").write_text('#!/bin/sh\necho "cores=$SRUN_CPUS_PER_TASK"\n')
    (tmp_path / "srun").chmod(0o755)
    given = {"PATH": f"{tmp_path}:/usr/bin:/bin", **({"SLURM_CPUS_PER_TASK": cores} if cores else {})}
    for script in (
        batch_script(Allocation(), ["x"], "x", tmp_path),
        batch_script_until_done(Allocation(), ["x"], ["y"], "x", tmp_path),
    ):
        done = subprocess.run(["bash"], input=script, text=True, capture_output=True, env=given)
        assert (done.returncode, done.stdout) == (0, f"cores={cores}\n"), done.stderr


def test_the_job_is_told_as_json(sbatch: Path, tmp_path: Path, overdrive: Run) -> None:
    told = overdrive("submit", "--json", "-", "train.py", cwd=tmp_path)
    found = json.loads(told.stdout)
    held("job", found)
    assert found["job"] == "41" and found["output"] == str(tmp_path / "train.py-41.out")
    assert found["script"] == (tmp_path / "given.sh").read_text()


def test_a_job_is_queued_again_until_it_is_done(tmp_path: Path, overdrive: Run) -> None:
    """By a script that Slurm tells of the limit two minutes ahead, and whose one task starts the ranks."""
    words = (
        "--until-done",
        "--dry-run",
        "--ranks-per-node",
        "2",
        "--cpus-per-rank",
        "3",
        "--time",
        "10",
        "train.py",
        "7",
    )
    (tmp_path / "train.py").touch()
    told = overdrive("submit", *words, cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    for line in ("ntasks-per-node=1", "cpus-per-task=6", "signal=USR1@120", "requeue", "open-mode=append"):
        assert f"\n#SBATCH --{line}\n" in told.stdout
    assert " run --survive --requeue-code=99 --ranks=2 train.py 7\n" in told.stdout
    refused = overdrive("submit", "--until-done", "--nodes", "2", "--dry-run", "train.py", cwd=tmp_path)
    assert refused.returncode == 2 and "--until-done is for one node" in refused.stderr
    for command, does in (("srun", "exit $CODE"), ("scontrol", 'echo "$@" > asked.txt')):
        (tmp_path / command).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / command).chmod(0o755)
    for code, asked, ends in (("99", "requeue 41\n", 0), ("3", "", 3), ("0", "", 0)):
        (tmp_path / "asked.txt").write_text("")
        variables = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "41", "CODE": code}
        got = subprocess.run(["bash", "-c", told.stdout], cwd=tmp_path, env=variables)
        assert (got.returncode, (tmp_path / "asked.txt").read_text()) == (ends, asked)


def test_the_script_runs_the_program(tmp_path: Path) -> None:
    """Where `srun` is a command that runs the rest once, names with spaces and quotes come through."""
    folder = tmp_path / "a folder"
    folder.mkdir()
    (folder / "srun").write_text('#!/bin/sh\nshift\nexec "$@"\n')
    (folder / "srun").chmod(0o755)
    script = batch_script(
        Allocation(), [sys.executable, "-c", "import sys; print(sys.argv[1:])", "it's"], "a b", folder
    )
    done = subprocess.run(
        ["bash"], input=script, text=True, capture_output=True, env={"PATH": f"{folder}:/usr/bin:/bin"}
    )
    assert done.stdout == '["it\'s"]\n' and f'#SBATCH --chdir="{folder}"\n' in script


@pytest.mark.parametrize(
    ("answer", "words", "code", "sentence"),
    [
        ("echo 'sbatch: error: invalid partition' >&2; exit 1", [], 1, "did not take the job: sbatch: error: invalid"),
        ("", ["--time", "soon"], 2, "'soon' is no time"),
        ("", ["--nodes", "0"], 2, "'0' is not a whole number, 1 or more"),
        ("", ["--sbatch", "comment=a\nb"], 2, "has a line's end"),
        (None, [], 2, "There is no sbatch here"),
    ],
)
def test_bad_input_is_one_sentence(
    answer: str | None,
    words: list[str],
    code: int,
    sentence: str,
    sbatch: Path,
    tmp_path: Path,
    overdrive: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if answer is None:  # Slurm itself may be installed
        monkeypatch.setenv("PATH", str(tmp_path))
    else:
        sbatch.write_text(SBATCH.format(answer=answer))
    told = overdrive("submit", *words, "train.py", cwd=tmp_path)
    assert told.returncode == code and sentence in told.stderr and "Traceback" not in told.stderr
    assert not (tmp_path / "given.sh").exists() or code == 1


def test_names_that_cannot_stand_in_a_script_are_refused() -> None:
    with pytest.raises(CannotWriteScript, match='has a "'):
        batch_script(Allocation(), ["x"], 'a"b', Path("/tmp"))
    assert output(Path("/tmp"), "a%b") == Path("/tmp/a%%b-%j.out")
    assert output(Path("/5%"), "x") == Path("/5%%/x-%j.out") and output(Path("/5%"), "x", "7") == Path("/5%/x-7.out")
    script = batch_script(Allocation(options=("-p gpu", "--qos=low", "mem=1G")), ["x"], "x", Path("/home/o'brien"))
    for line in ("-p gpu", "--qos=low", "--mem=1G", '--chdir="/home/o\'brien"'):
        assert f"\n#SBATCH {line}\n" in script


@pytest.mark.parametrize(
    ("asked", "cores"),
    [
        (Allocation(tasks_per_node=2), 2),
        (Allocation(gpus_per_node=8), 8),
        (Allocation(tasks_per_node=2, cpus_per_task=3), 6),
        (Allocation(cpus_per_task=3), 3),
        (Allocation(), 0),
    ],
)
def test_the_one_task_of_a_job_until_it_is_done_has_a_core_for_each_rank(asked: Allocation, cores: int) -> None:
    script = batch_script_until_done(asked, ["x"], ["y"], "x", Path("/tmp"))
    assert (f"\n#SBATCH --cpus-per-task={cores}\n" in script) if cores else ("--cpus-per-task=" not in script)
