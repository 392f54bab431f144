"""`overdrive run --survive`: a run that goes on where it was killed."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from overdrive.cli.line import fail
from overdrive.core.program import Program
from overdrive.core.settings import Chosen
from overdrive.techniques.catalogue import catalogue

if TYPE_CHECKING:
    from overdrive.survive.folder import RunFolder
    from overdrive.survive.interval import SnapshotInterval
    from overdrive.survive.survivor import Survivor
    from overdrive.survive.under_plan import UnderPlan

_SETTLING = 3  # steps: techniques choose, check and lay out at a model's first calls
SEED = "OVERDRIVE_SURVIVE_SEED"  # of the chance that the program takes from the system; else drawn


@dataclass(frozen=True)
class Wish:
    """What the command's line asks for.

    Args:
        folder: "" where the program's name gives it.
        every: seconds between two snapshots; None: what costs least with a failure every `mtbf` seconds.
        notices: the cloud whose notices that it takes this machine away are answered.
    """

    folder: str
    every: float | None
    mtbf: float | None
    fresh: bool
    requeue_code: int | None = None
    notices: str | None = None


def open_folder(
    program: Program, techniques: Sequence[Chosen], wish: Wish, say: Callable[[str], None], ranks: int = 1
) -> RunFolder:
    """The run's; what cannot be gone on with is told, and ends this command."""
    from overdrive.survive.folder import RunFolder, Unusable
    from overdrive.survive.identity import RANKS, changed_module, identity_of
    from overdrive.survive.inputs import changed_input

    path = folder_of(program, wish)
    try:
        folder = RunFolder(path, identity_of(program, techniques, ranks), wish.fresh, os.environ.pop(SEED, ""))
    except Unusable as error:
        fail(str(error))
    except OSError as error:
        fail(f"The folder {path} cannot be used: {error.strerror}.")
    if changed := changed_module(folder.notes.get("modules", {})) or changed_input(path):
        fail(f"{changed} is not what it was when this run began: --fresh begins the run anew")
    if folder.notes.get("finished"):
        say(f"this run is over already; --fresh makes it again ({path})")
        sys.exit(0)
    if (then := folder.manifest[RANKS]) != ranks:
        say(f"ranks: {ranks}, where this run began with {then}; sums in another order have other last bits")
    return folder


def folder_of(program: Program, wish: Wish) -> Path:
    return Path(wish.folder or f"{Path(program.name).stem}.survive").resolve()


def interval_of(wish: Wish) -> SnapshotInterval:
    from overdrive.machine.scheduler import seconds_left
    from overdrive.survive.interval import MTBF, SnapshotInterval

    left = seconds_left()
    end = math.inf if left is None else time.monotonic() + left
    return SnapshotInterval(wish.every, wish.mtbf or MTBF, end)


def under(techniques: Sequence[Chosen]) -> UnderPlan:
    """What a run has to know of those that it runs under."""
    from overdrive.survive.under_plan import UnderPlan

    known = [catalogue()[name] for name, _ in techniques]
    settling = max((max(_SETTLING, each.settles_in) for each in known), default=0)
    return UnderPlan(any(each.family == "data" for each in known), settling)


def survivor_of(
    program: Program,
    techniques: Sequence[Chosen],
    wish: Wish,
    say: Callable[[str], None],
    start_again: Callable[[Mapping[str, str]], NoReturn],
) -> Survivor:
    """Made before the program starts, and before PyTorch is imported.

    Args:
        techniques: under which it runs: under others it would come to other numbers.
        start_again: this command as it began, with these variables besides.
    """
    from overdrive.ranks.entropy import Entropy, share
    from overdrive.survive.ending import Ending
    from overdrive.survive.folder import Unusable, sentence_of
    from overdrive.survive.notices import listen
    from overdrive.survive.output import SavedOutput
    from overdrive.survive.survivor import Survivor

    folder = open_folder(program, techniques, wish, say)
    listener = listen(wish.notices) if wish.notices else None

    def anew(note: str, reason: str) -> NoReturn:
        if listener:
            listener.terminate()
            listener.wait()  # the program would find it among its own
        say(sentence_of(note, reason))
        start_again({SEED: folder.manifest["seed"]})

    share(Entropy(folder.manifest["seed"]))
    ending = Ending(wish.requeue_code)
    output = SavedOutput(folder.output)
    try:
        survivor = Survivor(folder, output, interval_of(wish), ending, say, anew, under(techniques))
        survivor.begin()
    except Unusable as error:
        fail(str(error))
    return survivor
