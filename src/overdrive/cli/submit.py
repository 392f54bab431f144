"""`overdrive submit`: has Slurm run the program as ranks, by a batch script that is shown."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import click

from overdrive.cli.json_output import STDOUT, json_option, write_json
from overdrive.cli.line import fail, parse_program, program_argument, program_command
from overdrive.cli.values import Whole
from overdrive.ranks.batch_script import Allocation, CannotWriteScript, batch_script, batch_script_until_done, output

_PATIENCE = 120.0  # seconds that Slurm has to take a job


def submit(script: str, program_name: str, folder: Path) -> tuple[str, str]:
    """Hand the script to Slurm, and say where the job's output will be. Returns the job's number, and that place."""
    sbatch = shutil.which("sbatch")
    if sbatch is None:
        fail("There is no sbatch here: run this on a machine with Slurm's commands, or keep the script (--dry-run).")
    try:
        told = subprocess.run(
            [sbatch, "--parsable"], input=script, capture_output=True, text=True, timeout=_PATIENCE, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        fail(f"sbatch did not answer: {error}.", 1)
    if told.returncode:
        said = " ".join(told.stderr.split()) or "it gave no reason"
        fail(f"Slurm did not take the job: {said} (exit code {told.returncode}).", 1)
    job = told.stdout.strip().split(";")[0]
    place = str(output(folder, program_name, job))
    print(f"overdrive: job {job} is with Slurm; its output goes to {place}", file=sys.stderr)
    print(f"overdrive: `squeue -j {job}` tells how it stands, `scancel {job}` ends it", file=sys.stderr)
    return job, place


@program_command
@click.option("--nodes", type=Whole(1), default=1, show_default=True, help="How many machines.")
@click.option("--gpus-per-node", type=Whole(0), default=0, help="GPUs of each machine; each has a rank.")
@click.option("--ranks-per-node", type=Whole(1), help="Ranks of each machine.  [default: one for each GPU, or one]")
@click.option("--cpus-per-rank", type=Whole(1), help="Cores of each rank.")
@click.option("--time", "limit", default="", metavar="H:MM:SS", help="The longest it may take.")
@click.option(
    "--sbatch",
    "options",
    multiple=True,
    metavar="OPTION",
    help="A further option of sbatch, as partition=gpu or account=mine; may be given several times.",
)
@click.option("--until-done", is_flag=True, help="Run it under --survive, and requeue it until it is done.")
@click.option("--dry-run", is_flag=True, help="Show the batch script, and submit nothing.")
@json_option
@program_argument("SCRIPT [ARGS]...")
def command(
    nodes: int,
    gpus_per_node: int,
    ranks_per_node: int | None,
    cpus_per_rank: int | None,
    limit: str,
    options: tuple[str, ...],
    until_done: bool,
    dry_run: bool,
    json_path: Path | None,
    words: tuple[str, ...],
) -> None:
    """Run the program as a Slurm job: one `overdrive run SCRIPT` per rank, with the same numbers as one process.

    The batch script is shown on standard output. It is not saved; `--dry-run SCRIPT > job.sbatch` saves it.
    """
    program = parse_program(words)
    folder = Path.cwd()
    allocation = Allocation(nodes, gpus_per_node, ranks_per_node or 0, cpus_per_rank or 0, limit, options)
    run = [sys.executable, "-m", "overdrive", "run"]
    try:
        if until_done:
            script = batch_script_until_done(allocation, run, words, program.name, folder)
        else:
            script = batch_script(allocation, [*run, *words], program.name, folder)
    except CannotWriteScript as error:
        fail(str(error))
    if json_path != STDOUT:
        print(script, end="", flush=True)
    job, place = ("", "") if dry_run else submit(script, program.name, folder)
    try:
        write_json(json_path, {"version": 1, "script": script, "job": job, "output": place})
    except OSError as error:
        fail(f"{json_path} cannot be written ({error.strerror}).", 1)
