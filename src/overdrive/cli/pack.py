"""`overdrive pack`: a program's finished samples in a folder, and a plan that starts with them."""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import psutil

from overdrive.cli.json_output import console_beside, json_option, write_json
from overdrive.cli.line import faults_as_sentences, parse_trial_program, program_argument, program_command, repeat
from overdrive.cli.values import stdin_option
from overdrive.core.atomic_file import write_atomically
from overdrive.core.contract import Contract
from overdrive.core.places import samples_folder
from overdrive.core.plan import Plan, PlannedTechnique
from overdrive.core.program import Program
from overdrive.core.records import TrialOver
from overdrive.core.trial_spec import TrialSpec
from overdrive.datacache.in_use import ENTRIES
from overdrive.datacache.store import Store, StoreUnavailable
from overdrive.techniques.catalogue import catalogue
from overdrive.trials.pool import TrialPool
from overdrive.trials.trial import Trial

_CACHE = "sample_cache"
_PLAN = "plan.toml"
_OURS = re.compile(r"[0-9a-f]{40}|partial-.*|plan\.toml")
_FINDER = "overdrive.worker.cached_samples"


class CannotPack(Exception):
    """Nothing was packed, or not all; the message is one sentence for people."""


def write_pack(program: Program, folder: Path, json_path: Path | None = None) -> int:
    """Returns the exit code.

    Raises:
        CannotPack: with the reason.
    """
    console = console_beside(json_path, lasts=True, soft_wrap=True)
    folder = Path(os.path.abspath(folder))
    _check_folder(folder)
    began = time.monotonic()
    console.print(f"Fetching all samples of {program.command()}, or finding them where they are.", markup=False)
    with console.status("") as status:  # a line on a terminal, nothing in a file

        def fetched(done: int, total: int) -> None:
            status.update(f"{done:,} of {total:,} samples fetched")

        seen = _found(program, fetched)
    for reason in seen["refused"]:
        console.print(f"  a data set is left as it is: {reason}", markup=False)
    tables = []
    for each in seen["kept"]:
        if each["reason"] or not (samples_folder() / str(each["key"]) / "manifest.json").is_file():
            reason = each["reason"] or "its samples could not be written down"
            console.print(f"  {each['data_set']}: left as it is, for {reason}", markup=False)
        else:
            tables.append(each)
    if not tables:
        none = "" if seen["kept"] or seen["refused"] else " It opens no DataLoader before its first training step."
        raise CannotPack(f"The program has no samples that could be packed.{none}")
    try:
        found = _copy(tables, folder)
        write_atomically(folder / _PLAN, _plan(program, folder))
    except (OSError, StoreUnavailable) as error:
        raise CannotPack(
            f"{folder} could not be used ({error}): what is whole stays, and the same command goes on after it."
        ) from None
    samples, size = (sum(each[what] for each in tables) for what in ("samples", "bytes"))
    console.print(
        f"{samples:,} samples ({size / 1e6:,.1f} MB) of {len(tables)} data sets are in {folder}"
        f"{f', {found} of which were there' if found else ''}, in {time.monotonic() - began:.1f} s.",
        markup=False,
    )
    plan = folder / _PLAN
    told = {"folder": str(folder), "plan": str(plan), "samples": samples, "bytes": size, "data_sets": len(tables)}
    write_json(json_path, told)
    console.print(f"plan    {plan}", markup=False)
    console.print(f"to run  overdrive run --plan {shlex.quote(str(plan))} {program.command()}", markup=False)
    return 0


def _check_folder(folder: Path) -> None:
    """
    Raises:
        CannotPack: it is no place to write a pack to.
    """
    try:
        strange = [name for name in os.listdir(folder) if not _OURS.fullmatch(name)]
    except FileNotFoundError:
        return
    except NotADirectoryError:
        raise CannotPack(f"{folder} is a file: choose another folder with --output.") from None
    if strange:
        raise CannotPack(f"{folder} holds other things ({min(strange)}): choose an empty folder with --output.")


def _found(program: Program, on_fill: Callable[[int, int], None]) -> dict[str, Any]:
    """What `sample_cache` keeps of the program, by its first training step in a trial of its own.

    Raises:
        CannotPack: the program makes no such step, or its samples could not be examined.
    """
    with TrialPool() as pool:
        pool.on_fill = on_fill
        cache = (_CACHE, catalogue()[_CACHE].defaults())
        trial = Trial(pool, TrialSpec(program, (cache,), observers=(_FINDER,)))
        try:
            trial.first_step()
            told: dict[str, Any] | None = trial.observed().get(_FINDER)
        except TrialOver as over:
            if said := over.exit_reason.unwatched:
                raise CannotPack(said) from None
            if over.exit_reason.by_itself:
                raise CannotPack("The program made no training step that Overdrive could see.") from None
            repeat(pool.last_output)
            raise CannotPack(f"The program fails by itself ({over.exit_reason}).") from None
        finally:
            trial.stop()
    if told is None:
        raise CannotPack("The program's samples could not be examined.")
    return told


def _copy(tables: list[dict[str, Any]], folder: Path) -> int:
    """Put the tables there, each whole or not at all; returns how many were there already.

    Raises:
        CannotPack: there is no room for them, or a table is damaged.
    """
    store = Store(folder)
    keys = {str(each["key"]): int(each["bytes"]) for each in tables}
    wanting = {key: size for key, size in keys.items() if store.open(key) is None}
    free = shutil.disk_usage(folder).free
    if sum(wanting.values()) > free:
        raise CannotPack(
            f"The samples need {sum(wanting.values()) / 1e9:.2f} GB, and {folder} has {free / 1e9:.2f} GB free: "
            "choose another place with --output."
        )
    _clean(folder)
    for key in wanting:
        partial = folder / f"{_partials_here()}{os.getpid()}-{key}"
        try:
            shutil.copytree(samples_folder() / key, partial, ignore=shutil.ignore_patterns(ENTRIES))
            os.rename(partial, folder / key)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        if store.open(key) is None:  # which compares all sums
            raise CannotPack(f"The samples did not arrive in {folder} as they are in {samples_folder()}.")
    return len(keys) - len(wanting)


def _partials_here() -> str:
    """How the partial tables of this machine begin; others may pack into the same folder of a file server."""
    return f"partial-{platform.node()}-"


def _clean(folder: Path) -> None:
    """Remove what was left by a packing that was killed."""
    for partial in folder.glob(_partials_here() + "*"):
        process = partial.name.removeprefix(_partials_here()).partition("-")[0]
        if process.isdigit() and not psutil.pid_exists(int(process)):
            shutil.rmtree(partial, ignore_errors=True)


def _plan(program: Program, folder: Path) -> str:
    settings = {**catalogue()[_CACHE].defaults(), "folder": str(folder)}
    plan = Plan(program.name, Contract.EXACT, (PlannedTechnique(_CACHE, settings, Contract.EXACT),))
    return plan.dumps({_CACHE: catalogue()[_CACHE].summary()})


@program_command
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The folder for the samples and the plan.")
@click.option("--samples", type=click.Choice(["decoded"]), default="decoded", help="The finished samples.", hidden=True)
@json_option
@stdin_option
@program_argument("SCRIPT [ARGS]...")
def command(
    output: Path | None, samples: str, json_path: Path | None, stdin: str | None, words: tuple[str, ...]
) -> None:
    """Write the program's decoded samples into a folder, with a plan that uses them.

    These are the samples that are the same each time (those of technique sample_cache), by default in SCRIPT.packed
    beside the script. If it is stopped, the same command goes on. The data files themselves must stay where they are:
    the program looks for them.
    """
    program = parse_trial_program(words, stdin)
    with faults_as_sentences(failed=CannotPack):
        sys.exit(write_pack(program, output or program.beside(".packed"), json_path))
