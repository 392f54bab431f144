"""The child's side of a trial: runs the program under a plan and stops at step boundaries as told.

Started by a launcher of trials as `python -m overdrive.worker.main COMMANDS REPORTS`, two file descriptors
that carry the messages of `core.messages`. The worker runs the program until it has made as many steps
as ordered, reports, and waits where its clock lets it stand still for the next command.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO, NoReturn

from overdrive.core import messages, progress
from overdrive.core.messages import Ended, Failed, Isolated, Job
from overdrive.core.program import ProgramError
from overdrive.core.records import ExitReason
from overdrive.core.streams import flush
from overdrive.ranks.entropy import Entropy, share
from overdrive.ranks.horovod.imports import HorovodImports
from overdrive.ranks.membership import IMAGINED, SEED, Membership
from overdrive.ranks.rank import Rank
from overdrive.ranks.trackers import MLFLOW_FOLDER, mlflow_kept_here
from overdrive.sandbox.isolation import FOLLOWERS, isolate, redirect_torch
from overdrive.seams.arrival import Arrival
from overdrive.seams.hub import Seams
from overdrive.techniques.catalogue import also_in, catalogue
from overdrive.worker.launch import end_as_python_would, execute, hide_own_frames
from overdrive.worker.seeds import seeds
from overdrive.worker.session import Session
from overdrive.worker.worker import Worker


def _redirected(seams: Seams) -> None:
    """An observer: what frameworks and libraries write past Python goes where all else does."""
    seams.framework_arrived.subscribe(lambda: redirect_torch() if seams.frameworks[-1] == "torch" else None)
    for library, follow in FOLLOWERS.items():
        Arrival(library, follow).watch()


def _tells_no_server(job: Job) -> Callable[[Seams], None]:
    """An observer, which needs no seam."""
    store = (Path(job.scratch) / MLFLOW_FOLDER).as_uri()
    return lambda seams: Arrival("mlflow", lambda: mlflow_kept_here(store)).watch()


def _standard_input(path: str) -> None:
    """Have the program read this file; it is empty where there is none."""
    if path:
        with open(path, "rb") as file:
            os.dup2(file.fileno(), 0)


def _take_in(also: Sequence[str]) -> None:
    """All techniques, with those of these modules, which may lie in the working folder."""
    sys.path[:0] = [os.getcwd()] * bool(also)
    also_in(also)
    catalogue()
    del sys.path[: bool(also)]


def _membership_of_trial() -> Membership | None:
    """None in a trial of one process, whatever launcher started the tune itself."""
    return Membership.of(os.environ) if SEED in os.environ else None


def _scratch_of(job: Job, membership: Membership | None) -> Path:
    """A folder for this process's writes: each rank has its own view of the user's files."""
    folder = Path(job.scratch)
    if membership is None:
        return folder
    own = folder / f"rank{membership.rank}"
    own.mkdir(mode=0o700)
    return own


def work(commands: BinaryIO, reports: BinaryIO) -> NoReturn:
    """The whole life of a trial's process, to its end."""
    job: Job = messages.read(commands.readline())
    membership = _membership_of_trial()
    isolation = isolate(_scratch_of(job, membership), [Path(each) for each in job.keep]) if job.isolate else None
    _take_in(job.also)  # here: what comes from outside may bring a clock
    worker = Worker(commands, reports, job)
    worker.rank = Rank(membership, [], hide_own_frames, trial=True) if membership else None
    if worker.rank and IMAGINED not in os.environ:
        worker.rank.first_times.answer()
    if not worker.rank:
        share(Entropy(str(job.spec.seed)))  # else two trials of a program that sets no seed could not be compared
    if isolation:
        worker.reports.report(Isolated(isolation.kind, isolation.detail))
    progress.on_progress = worker.reports.filling
    own = [*([_redirected] if job.isolate else []), _tells_no_server(job), seeds(job.spec.seed), worker.observe]
    own[:0] = [worker.rank.observe] if worker.rank else []
    worker.session = Session(job.spec.techniques, own, worker.left_out, worker.clock.inference)
    code = 0
    try:
        with worker.session, worker.told_of_spawned(), worker.returned or contextlib.nullcontext():
            _standard_input(job.spec.program.stdin)
            HorovodImports().provide()
            worker.blocks.starts_clock()
            execute(job.spec.program, worker.hyperparameters.compile if worker.hyperparameters else None)
    except SystemExit as error:
        code = end_as_python_would(error)
    except ProgramError as error:
        worker.reports.report(Failed(ExitReason("exception", str(error))))
        code = 1
    except BaseException as error:
        hide_own_frames(error)
        worker.reports.report(worker.failed(error))
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    if worker.rank:
        worker.rank.over_in_trial(failed=bool(code))
    flush()
    if code == 0:
        told = worker.ended()
        worker.reports.report(told)
        if isinstance(told, Ended) and not worker.rank:  # a failure is told by the end of its process
            worker.stand_by()
    flush()
    os._exit(code)


if __name__ == "__main__":
    work(os.fdopen(int(sys.argv[1]), "rb"), os.fdopen(int(sys.argv[2]), "wb"))
