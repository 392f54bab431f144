"""A real Slurm (22.05 of Debian: `apt-get install slurmctld slurmd slurm-client`): two nodes, both of this machine."""

from __future__ import annotations

import getpass
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import Run
from tests.ranks.comparing import difference
from tests.ranks.test_ranks import acting

pytestmark = pytest.mark.cluster

Write = Callable[[str], Path]
COMMANDS = ("slurmctld", "slurmd", "sbatch", "srun", "sinfo", "squeue")
CONFIGURATION = """
ClusterName=test
SlurmctldHost=localhost
AuthType=auth/none
CredType=cred/none
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={ports[0]}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
MpiDefault=none
ReturnToService=2
KillWait=5
MailProg=/bin/true
NodeName=n1 NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports[1]} CPUs=4
NodeName=n2 NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports[2]} CPUs=4
PartitionName=all Nodes=ALL Default=YES State=UP
"""


def free_ports(count: int) -> list[int]:
    held = [socket.socket() for _ in range(count)]
    for each in held:
        each.bind(("127.0.0.1", 0))
    ports = [int(each.getsockname()[1]) for each in held]
    for each in held:
        each.close()
    return ports


def waited_for(what: Callable[[], bool], seconds: float) -> bool:
    until = time.monotonic() + seconds
    while not what():
        if time.monotonic() > until:
            return False
        time.sleep(0.5)
    return True


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Its daemons run with a configuration of their own, in a folder of the test's own."""
    missing = [name for name in COMMANDS if shutil.which(name) is None]
    if missing:
        pytest.skip(f"Slurm is not installed here: no {', '.join(missing)}")
    folder = tmp_path / "slurm"
    (folder / "state").mkdir(parents=True)
    configuration = folder / "slurm.conf"
    configuration.write_text(CONFIGURATION.format(user=getpass.getuser(), folder=folder, ports=free_ports(3)))
    monkeypatch.setenv("SLURM_CONF", str(configuration))
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")  # no host has the names of these nodes
    commands = [["slurmctld", "-D"], ["slurmd", "-D", "-N", "n1"], ["slurmd", "-D", "-N", "n2"]]
    with (folder / "said.txt").open("wb") as said:
        daemons = [subprocess.Popen([*each, "-f", str(configuration)], stdout=said, stderr=said) for each in commands]
        try:
            assert waited_for(lambda: "2   idle" in words_of("sinfo"), 60), (folder / "said.txt").read_text()
            yield
        finally:
            subprocess.run(["scancel", f"--user={getpass.getuser()}"], check=False)
            waited_for(lambda: jobs() == 0, 20)
            for each in daemons:
                each.terminate()
            for each in daemons:
                each.wait(30)


def words_of(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def jobs() -> int:
    return len(words_of("squeue", "--noheader").splitlines())


def test_a_submitted_program_has_the_numbers_of_one_process(
    slurm: None, script: Write, python: Run, overdrive: Run
) -> None:
    path = script(acting("pass"))
    one = python("train.py", cwd=path.parent)
    told = overdrive("submit", "--nodes", "2", "--time", "5", "train.py", cwd=path.parent)
    assert told.returncode == 0 and waited_for(lambda: jobs() == 0, 120), told.stderr
    [output] = path.parent.glob("train.py-*.out")
    assert f"its output goes to {output}" in told.stderr
    lines = [line for line in output.read_text().splitlines(True) if not line.startswith("overdrive: ")]
    assert not difference(one.stdout, "".join(lines), 1e-5), output.read_text()


def test_the_error_of_one_rank_ends_the_job_and_is_shown(slurm: None, script: Write, overdrive: Run) -> None:
    path = script(acting("if rank == 1: raise ValueError('only here')"))
    told = overdrive("submit", "--ranks-per-node", "2", "--time", "5", "train.py", cwd=path.parent)
    assert told.returncode == 0 and waited_for(lambda: jobs() == 0, 120), told.stderr
    [output] = path.parent.glob("train.py-*.out")
    text = output.read_text()
    assert text.count("ValueError: only here") == 1 and "rank 1 of 2" in text and "failed in step 4" in text, text


# It takes its time within its model, which is left out of what a run that goes on makes again.
LONG = """
import os, time, torch
class Slow(torch.nn.Module):
    def forward(self, x):
        time.sleep(float(os.environ.get("PAUSE", 0)))
        return x
torch.manual_seed(3)
layers = torch.nn.Linear(8, 16), torch.nn.Dropout(0.5), Slow(), torch.nn.Linear(16, 1)
model = torch.nn.Sequential(*layers)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(150):
    optimizer.zero_grad()
    x = torch.randn(16, 8)
    loss = torch.nn.functional.mse_loss(model(x), x[:, :1])
    loss.backward()
    optimizer.step()
    print(f"loss: {loss.item():.17g}", flush=True)
"""


@pytest.mark.timeout(900)
def test_a_job_that_comes_to_its_limit_is_queued_again_and_ends_as_one_run(
    slurm: None, script: Write, python: Run, overdrive: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm tells of the limit of four minutes one to two minutes after a start; the program takes two and a half."""
    path = script(LONG)
    one = python("train.py", cwd=path.parent)
    monkeypatch.setenv("PAUSE", "1")
    told = overdrive("submit", "--until-done", "--time", "4", "train.py", cwd=path.parent)
    assert told.returncode == 0, told.stderr
    [number] = re.findall(r"job (\d+) is with Slurm", told.stderr)
    restarts = "0"

    def over() -> bool:
        nonlocal restarts
        shown = words_of("scontrol", "show", "job", number)
        restarts = max([restarts, *re.findall(r"Restarts=(\d+)", shown)])
        return jobs() == 0

    assert waited_for(over, 840), words_of("scontrol", "show", "job", number)
    [output] = path.parent.glob("train.py-*.out")
    text = output.read_text()
    assert int(restarts) >= 1 and text.count("gone on after step") == int(restarts), text
    assert [line for line in text.splitlines() if line.startswith("loss: ")] == one.stdout.splitlines(), text
