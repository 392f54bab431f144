"""The script by which Slurm runs one program as ranks: a task a rank, each of which is `overdrive run`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

_TIME = re.compile(r"(\d+-)?\d+(:\d\d){0,2}")  # as Slurm has it: minutes, H:MM:SS, D-HH, ...

_AHEAD = "USR1@120"  # seconds before the limit
# Since Slurm 22.05 srun does not take it from the job: each task would be bound to one core.
_CORES = '[ -z "$SLURM_CPUS_PER_TASK" ] || export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"'
_REQUEUE = 99  # the exit code of a run that is to be queued again


class CannotWriteScript(ValueError):
    """What was asked for cannot stand in a batch script; the message is one sentence for people."""


@dataclass(frozen=True)
class Allocation:
    """
    Attributes:
        tasks_per_node: ranks of a node; 0: as many as it has GPUs, or one.
        cpus_per_task: cores of a rank; 0: as the cluster has it.
        time: the longest it may take, in Slurm's own notation; "": as the cluster has it.
        options: further options of `sbatch`, each as on its command line without the dashes.
    """

    nodes: int = 1
    gpus_per_node: int = 0
    tasks_per_node: int = 0
    cpus_per_task: int = 0
    time: str = ""
    options: Sequence[str] = ()

    def ranks_of_a_node(self) -> int:
        return self.tasks_per_node or self.gpus_per_node or 1

    def lines(self) -> list[str]:
        """
        Raises:
            CannotWriteScript: a value has another form than Slurm's.
        """
        if self.time and not _TIME.fullmatch(self.time):
            raise CannotWriteScript(f"{self.time!r} is no time: give it as 4:00:00, 90 (minutes) or 2-12:00:00.")
        wanted = {
            "nodes": self.nodes,
            "ntasks-per-node": self.ranks_of_a_node(),
            "gpus-per-node": self.gpus_per_node,
            "cpus-per-task": self.cpus_per_task,
            "time": self.time,
        }
        return [*(f"{name}={value}" for name, value in wanted.items() if value), *self.options]


def batch_script(allocation: Allocation, command: Sequence[str], name: str, folder: Path) -> str:
    """
    Args:
        command: what each task runs.
        name: of the job, and the beginning of the name of the file for its output, in `folder`.
        folder: where it runs.

    Raises:
        CannotWriteScript: something asked for cannot be written in a line of such a script.
    """
    # Without it Slurm lets the other tasks go on where one has failed; overdrive's own watch would end them later.
    line = f"exec srun --kill-on-bad-exit=1 {shlex.join(command)}\n"
    return _head(allocation.lines(), name, folder) + line


def batch_script_until_done(
    allocation: Allocation, command: Sequence[str], program: Sequence[str], name: str, folder: Path
) -> str:
    """Of a run that survives: told of its end two minutes before, it takes a snapshot, and the job is queued again.

    One task, which starts the ranks: where one is lost, it starts them again.

    Args:
        command: `overdrive run`, before its options.
        program: with its arguments.

    Raises:
        CannotWriteScript: as `batch_script`; and of several nodes.
    """
    if allocation.nodes > 1:
        raise CannotWriteScript("--until-done is for one node: nobody starts ranks of several again where one is lost.")
    ranks = allocation.ranks_of_a_node()
    # By Slurm itself the one task has one core.
    cores = ranks * (allocation.cpus_per_task or 1) if ranks > 1 else allocation.cpus_per_task
    own = (f"signal={_AHEAD}", "requeue", "open-mode=append")
    alone = replace(allocation, tasks_per_node=1, cpus_per_task=cores, options=[*own, *allocation.options])
    survive = ["--survive", f"--requeue-code={_REQUEUE}", *([f"--ranks={ranks}"] if ranks > 1 else [])]
    return _head(alone.lines(), name, folder) + (
        f"srun {shlex.join([*command, *survive, *program])}\n"
        f'code=$?\n[ "$code" -eq {_REQUEUE} ] && exec scontrol requeue "$SLURM_JOB_ID"\nexit "$code"\n'
    )


def _head(asked: Sequence[str], name: str, folder: Path) -> str:
    own = [f"job-name={_quoted(name)}", f"chdir={_quoted(str(folder))}", f"output={_quoted(str(output(folder, name)))}"]
    lines = [*own, *asked]
    for each in lines:
        if "\n" in each:
            raise CannotWriteScript(f"{each.splitlines()[0]!r} ... has a line's end, which a batch script cannot have.")
    return "#!/bin/bash\n" + "\n".join(map(_directive, lines)) + f"\n\n{_CORES}\n"


def _directive(option: str) -> str:
    return f"#SBATCH {option if option.startswith('-') else f'--{option}'}"


def output(folder: Path, name: str, job: str = "%j") -> Path:
    """The file for what a job prints; `%j` is Slurm's sign for the job's number."""
    escaped = name.replace("%", "%%") if job == "%j" else name
    within = Path(str(folder).replace("%", "%%")) if job == "%j" else folder
    return within / f"{escaped}-{job}.out"


def _quoted(text: str) -> str:
    if '"' in text:
        raise CannotWriteScript(f'{text!r} has a ", which a batch script cannot have in a name.')
    return f'"{text}"' if re.search(r"\s|#|'", text) else text
