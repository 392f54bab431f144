"""`overdrive run --survive` on ranks: one process holds the folder and starts the ranks, again where one dies; of ranks
that a launcher has started, which is the one to start them again, rank 0 holds it."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from overdrive.cli.line import fail
from overdrive.cli.started_again import Start, group_of
from overdrive.cli.survive import Wish, folder_of, interval_of, open_folder, under
from overdrive.core.program import Program
from overdrive.core.settings import Chosen

if TYPE_CHECKING:
    from overdrive.ranks.membership import Membership
    from overdrive.ranks.rank import Rank
    from overdrive.survive.folder import RunFolder
    from overdrive.survive.survivor import Survivor

RUN = "OVERDRIVE_SURVIVE_RUN"  # the run's folder, for the ranks of a run that survives
_ANEW = "anew"  # in that folder: why the run has to begin from its start
_EMPTIED_FOR = "emptied for"  # notes who had started the ranks then
_AGAIN = 75  # EX_TEMPFAIL: the code of a rank that wrote this
_GRACE = 60  # seconds for a snapshot, after a signal


def _keeps_parts(name: str, settings: Mapping[str, Any]) -> bool:
    """Whether each rank has parts of the parameters."""
    return name in ("tensor_parallel", "pipeline_parallel") or settings.get("shards") == "all"


def start_surviving_ranks(
    program: Program,
    ranks: int,
    techniques: Sequence[Chosen],
    wish: Wish,
    say: Callable[[str], None],
    may_be_fewer: bool = False,
) -> int:
    """The exit code of the run, of which ranks may have been lost and started again.

    Args:
        may_be_fewer: where one is lost again and again.
    """
    from overdrive.survive.folder import FROM_START, NO_MORE
    from overdrive.survive.interval import MOST_LOST
    from overdrive.survive.notices import listen
    from overdrive.survive.snapshot import steps_of

    start = Start.now()
    folder = open_folder(program, techniques, wish, say, ranks)
    os.environ[RUN] = str(folder.path)
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, _pass_on)
    if wish.notices:
        listen(wish.notices)
    lost, newest = 0, -1
    while True:
        end = group_of(ranks, seed=folder.manifest["seed"], grace=_GRACE)
        steps = steps_of(folder.path)
        if end.stopped_by:
            if end.stopped_by == signal.SIGTERM and wish.requeue_code is not None:
                return wish.requeue_code
            return end.code
        if sentence := _why_anew(folder):
            say(sentence)
        elif end.lost is None:
            return end.code
        else:
            lost = 1 if steps and steps[0] > newest else lost + 1
            newest = steps[0] if steps else -1
            if lost > MOST_LOST:
                told = f"{lost} times a rank was lost, and no snapshot was taken in between"
                if not may_be_fewer:
                    say(f"{told}: the run ends here")
                    return 128 + end.signal
                ranks, lost = ranks - 1, 0
                say(f"{told}: all go on as {ranks}; sums in another order have other last bits")
                if ranks == 1:
                    _go_on_alone(folder, start)
            notes = folder.read_notes()
            why_not = notes.get(FROM_START) or ("" if steps else notes.get(NO_MORE) or "there is no snapshot yet")
            where = f"the start, as {why_not}" if why_not else f"step {newest:,}"
            say(f"rank {end.lost} is lost ({signal.Signals(end.signal).name}); all go on from {where}")


def _go_on_alone(folder: RunFolder, start: Start) -> NoReturn:
    """In this process's place: what its ranks were given would make it another run."""
    folder.close()
    start.again({}, without=("--fresh", "--ranks"), besides=["--ranks=1"])


def open_launched(
    membership: Membership, program: Program, techniques: Sequence[Chosen], wish: Wish, say: Callable[[str], None]
) -> tuple[Path, str]:
    """Of a rank that a launcher has started: the run's folder, which all see, and of rank 0 the seed of chance."""
    from overdrive.survive.folder import RunFolder
    from overdrive.survive.notices import listen

    path, starter = folder_of(program, wish), _starter()
    emptied = starter and RunFolder.notes_in(path).get(_EMPTIED_FOR) == starter
    wish = replace(wish, fresh=wish.fresh and not membership.attempt and not emptied)
    if membership.rank == 0:
        folder = open_folder(program, techniques, wish, say, membership.size)
        if wish.fresh:
            folder.note(**{_EMPTIED_FOR: starter})
        if sentence := _why_anew(folder):
            say(sentence)
        if wish.notices:
            listen(wish.notices)
        return path, folder.manifest["seed"]
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        fail(f"The folder {path} cannot be used: {error.strerror}.")
    if not wish.fresh and RunFolder.is_finished(path):
        sys.exit(0)  # rank 0 says so
    return path, ""


def _starter() -> str:
    """What has started this process: where that starts it again, what `--fresh` empties is the run's own. "" where that
    is not seen, as out of a container."""
    import psutil

    try:
        began = psutil.Process(os.getppid()).create_time()
    except psutil.Error:
        return ""
    return f"{socket.gethostname()} {os.getppid()} {began}"


def _why_anew(folder: RunFolder) -> str:
    """Noted, for all ranks, and told; "" where none has asked for it."""
    from overdrive.survive.folder import sentence_of

    told = folder.path / _ANEW
    if not told.exists():
        return ""
    note, _, reason = told.read_text(errors="replace").partition("\n")
    folder.notes = folder.read_notes()
    folder.note(**{note: reason})
    told.unlink()
    return sentence_of(note, reason)


def _pass_on(number: int, frame: Any) -> None:
    """To the ranks, of which the first answers."""
    import psutil

    for child in psutil.Process().children():
        child.send_signal(number)


def survivor_in_group(
    rank: Rank, path: Path, techniques: Sequence[Chosen], wish: Wish, launched: bool = False
) -> Survivor:
    """Of one rank. Made before the program starts, and before PyTorch is imported.

    Args:
        path: the run's folder.
        launched: by somebody else, who is to start all again where one has ended.
    """
    from overdrive.core.atomic_file import write_atomically
    from overdrive.survive.ending import Ending
    from overdrive.survive.folder import RunFolder, Unusable, sentence_of
    from overdrive.survive.in_group import InGroup
    from overdrive.survive.in_parts import InParts
    from overdrive.survive.output import SavedOutput, UnsavedOutput
    from overdrive.survive.survivor import Survivor

    try:
        folder = RunFolder.joined(path)
    except (OSError, Unusable):
        rank.leave()
        fail(f"{path} is not what rank 0 has there: name a folder that all machines share with --survive=FOLDER.")

    def anew(note: str, reason: str) -> NoReturn:
        write_atomically(path / _ANEW, f"{note}\n{reason}")
        if launched:
            rank.output.say(f"when it is started again, {sentence_of(note, reason)}")
        rank.leave()
        os._exit(_AGAIN)

    output = UnsavedOutput() if rank.rank else SavedOutput(folder.output)

    def agree(wanted: bool) -> bool:
        return bool(rank.group.from_first(int(wanted), "whether a snapshot is taken"))

    shares = any(settings.get("shards") == "state" for _, settings in techniques)
    parts = InParts(
        rank.rank,
        rank.size,
        here=lambda: rank.parts,
        first=lambda word: int(rank.group.from_first(word, "what is done about a snapshot")),
        told=lambda thing: rank.group.told_by_first(thing, "what all have of a snapshot"),
        each=lambda done: [int(each) for each in rank.group.of_each(done, "whether its part of a snapshot is written")],
    )
    in_parts = parts if any(_keeps_parts(*each) for each in techniques) else None
    aside, times = rank.lockstep.aside, rank.first_times.around
    group = InGroup(rank.rank, rank.leave, aside, times, agree if shares else None, in_parts, launched)
    ending = Ending(wish.requeue_code)
    try:
        survivor = Survivor(folder, output, interval_of(wish), ending, rank.say, anew, under(techniques), group)
        survivor.begin()
    except Unusable as error:
        rank.leave()
        rank.output.say(str(error))  # what a rank above 0 prints is in a file
        sys.exit(2)
    return survivor
