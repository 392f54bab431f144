"""`overdrive pack`: the small files of a program's data sets in a few large shards, and a plan that reads them."""

from __future__ import annotations

import datetime
import errno
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from overdrive.core.atomic_file import write_atomically
from overdrive.core.contract import Contract
from overdrive.core.plan import Plan, PlannedTechnique
from overdrive.core.program import Program
from overdrive.core.records import TrialOver
from overdrive.core.trial_spec import TrialSpec
from overdrive.datacache.shards import (
    INDEX,
    LARGEST_SHARE,
    PLAN,
    File,
    PackError,
    Packing,
    check_folder,
    common_root,
    look_at,
    pack,
)
from overdrive.techniques.catalogue import catalogue
from overdrive.trials.pool import TrialPool
from overdrive.trials.trial import Trial
from overdrive.core.settings import Chosen

_READER = "packed_files"
_FINDER = "overdrive.trials.files_read"
# Headers, padding and indices: 1 kB a file at most, or little more.
_BESIDES = 1536


class CannotPack(Exception):
    """Nothing was packed, or not all; the message is one sentence for people."""


def default_folder(program: Program) -> Path:
    """Beside the script, or in the current folder."""
    return program.plan_path().with_name(f"{program.stem}.packed")


def write_pack(program: Program, folder: Path, shard_size: int) -> int:
    """Returns the exit code.

    Raises:
        CannotPack: with the reason.
    """
    console = Console(highlight=False, soft_wrap=True)
    folder = Path(os.path.abspath(folder))
    try:
        check_folder(folder)
        console.print(f"Looking which files the data sets of {program.command()} read.", markup=False)
        files = _files(program, shard_size, folder, console)
        _check_room(files, folder)
        began = time.monotonic()
        packing = pack(files, folder, shard_size, _about(program), _live(console))
        write_atomically(folder / PLAN, _plan(program, folder))
    except PackError as error:
        raise CannotPack(str(error)) from None
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        what = "The disk is full" if full else f"{error.filename or folder} could not be used ({error.strerror})"
        raise CannotPack(
            f"{what}: the shards in {folder} that are whole stay, and the same command goes on after them. "
            "No file of yours was touched."
        ) from None
    _tell(console, program, folder, packing, time.monotonic() - began)
    return 0


def _files(program: Program, shard_size: int, folder: Path, console: Console) -> list[File]:
    """What is to be packed, in the order of the samples."""
    told = _found(program)
    for each in told:
        if not each["files"]:
            console.print(f"  {each['data_set']}: left as it is, for {each['reason']}", markup=False)
    files, missing = look_at([path for each in told for path in each["files"]])
    if not files:
        made = f" {missing:,} files were made by the program itself: run it once first." if missing else ""
        none = "" if told else " It opens no DataLoader before its first training step."
        raise CannotPack(f"The program's data sets read no file that could be packed.{none}{made}")
    if missing:
        console.print(f"  {missing:,} files are not there and left out", markup=False)
    small = [file for file in files if file.size <= shard_size // LARGEST_SHARE]
    if large := len(files) - len(small):
        console.print(f"  {large:,} files stay where they are: they would fill a quarter of a shard", markup=False)
    if len(small) < 2:
        raise CannotPack("The program's data sets read no two small files, so that there is nothing to gain.")
    root = common_root(small)
    if os.path.realpath(folder).startswith(os.path.realpath(root) + os.sep):
        raise CannotPack(
            f"{folder} lies among the files themselves, where the program may come upon it: "
            "choose another folder with --output."
        )
    return small


def _found(program: Program) -> list[dict[str, Any]]:
    """What the program's data sets read, by its first training step."""
    told: list[dict[str, Any]] | None = first_step(program, _FINDER, "files_read")
    if told is None:
        raise CannotPack("The program's data sets could not be examined.")
    return told


def first_step(
    program: Program,
    module: str,
    finder: str,
    techniques: Sequence[Chosen] = (),
    on_fill: Callable[[int, int], None] = lambda done, total: None,
) -> Any:
    """What the technique `finder` (of `module`, beside others) reports of the program's first training step, in a trial
    of its own; None where it reported nothing.

    Args:
        on_fill: told how many samples of how many have been fetched.

    Raises:
        CannotPack: the program makes no such step.
    """
    with TrialPool(also=[module]) as pool:
        pool.on_fill = on_fill
        report = pool.scratch / "inductor" / f"{finder}.json"  # this folder stays writable in a trial
        trial = Trial(pool, TrialSpec(program, (*techniques, (finder, {"report": str(report)}))))
        try:
            trial.first_step()
        except TrialOver as over:
            if over.exit_reason.kind == "ended":
                raise CannotPack("The program made no training step that Overdrive could see.") from None
            if pool.last_output.strip():
                print(pool.last_output.rstrip(), file=sys.stderr)
            raise CannotPack(f"The program fails by itself ({over.exit_reason}).") from None
        finally:
            trial.stop()
        try:
            return json.loads(report.read_text())
        except FileNotFoundError:
            return None


def _check_room(files: list[File], folder: Path) -> None:
    """
    Raises:
        CannotPack: the disk has no room; known before anything is written.
    """
    place = folder
    while not place.exists():
        place = place.parent
    there = sum(path.stat().st_size for path in folder.glob("shard-*")) if place == folder else 0
    needed = sum(file.size + _BESIDES for file in files) - there
    free = shutil.disk_usage(place).free
    if needed > free:
        raise CannotPack(
            f"The shards need {needed / 1e9:.2f} GB more, and {place} has {free / 1e9:.2f} GB free: "
            "choose another place with --output. Nothing was written."
        )


def _about(program: Program) -> dict[str, Any]:
    return {"program": program.command(), "created": datetime.date.today().isoformat()}


def _live(console: Console) -> Any:
    def on_shard(done: int, total: int) -> None:
        if console.is_terminal and (done == total or total < 50 or done % (total // 50) == 0):
            console.print(f"  shard {done} of {total}", end="\r" if done < total else "\n")

    return on_shard


def _plan(program: Program, folder: Path) -> str:
    reader = PlannedTechnique(_READER, {"index": str(folder / INDEX)}, Contract.EXACT)
    plan = Plan(program.name, Contract.EXACT, (reader,))
    return plan.dumps({_READER: catalogue()[_READER].summary()})


def _tell(console: Console, program: Program, folder: Path, packing: Packing, seconds: float) -> None:
    shards = f"{packing.shards:,} shard{'s' if packing.shards > 1 else ''}"
    before = f", {packing.found:,} of which were there" if packing.found else ""
    console.print(
        f"{packing.files:,} files ({packing.bytes / 1e6:,.1f} MB) are in {shards}{before}, in {seconds:.1f} s.",
        markup=False,
    )
    if packing.changed:
        console.print(f"{packing.changed:,} files were changed meanwhile, and are read from their own places.")
    console.print(f"plan    {folder / PLAN}", markup=False)
    console.print(f"to run  overdrive run --plan {folder / PLAN} {program.command()}", markup=False)
