"""A run while it is recorded: when a snapshot is due, what goes into it, and what is told where it cannot be kept."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from overdrive.changes.mappings import mapped_for_writing
from overdrive.survive.files import open_for_writing
from overdrive.survive.folder import COST, GONE_ON
from overdrive.survive.identity import modules_of_program
from overdrive.survive.refusals import CannotTake
from overdrive.survive.taking import MOST_IN_HASTE, MOST_OTHERS, Snapshots

if TYPE_CHECKING:
    from overdrive.survive.calls import Calls
    from overdrive.survive.ending import Ending
    from overdrive.survive.files import Files
    from overdrive.survive.folder import RunFolder
    from overdrive.survive.in_parts import InParts
    from overdrive.survive.inputs import Inputs
    from overdrive.survive.interval import SnapshotInterval
    from overdrive.survive.journal import Journal
    from overdrive.survive.output import UnsavedOutput
    from overdrive.survive.under_plan import UnderPlan

_ALL_CROSSED = (
    "no snapshot can be taken: each loss goes back through a graph that was made before the last step, which is in none"
)
_OTHER_DRAWS = (
    "killed, this run goes on, but not to the same bit: cuDNN keeps the random numbers of dropout between an RNN's "
    "layers to itself, and draws others from there"
)


class RecordedRun(Protocol):
    """What is asked of the run that is recorded.

    Attributes:
        steps: made so far.
        why_not: why no snapshot is taken any more.
    """

    folder: RunFolder
    journal: Journal
    files: Files
    inputs: Inputs
    output: UnsavedOutput
    ending: Ending
    plan: UnderPlan
    calls: Calls
    steps: int
    why_not: str
    say: Callable[[str], None]

    def end(self, sentence: str) -> NoReturn: ...

    def cannot_skip(self, reason: str) -> None: ...

    def agreed(self, wanted: bool) -> bool:
        """Whether a snapshot is taken after this step. Asked once a step."""

    def reading_alone(self) -> AbstractContextManager[None]:
        """What is asked of tensors within is no question of the program's."""


class Recording:
    def __init__(self, run: RecordedRun, interval: SnapshotInterval, in_parts: InParts | None = None) -> None:
        self._run, self._interval, self._in_parts = run, interval, in_parts
        self._clock = time.monotonic  # before the program's lines are told recorded times
        rank, all_have = (in_parts.rank, in_parts.all_have) if in_parts is not None else (0, bool)
        self.snapshots = Snapshots(run.folder.path, rank, all_have)
        self._states: dict[int, Any] = {}  # of its files, by the snapshot's step
        self._told_failure = self._told_draws = False
        self._refused = 0  # steps, one after the other, after which one was due and could not be taken
        self._asked_at = 0  # the step before which a signal asked for the end
        self.wait()

    def ask(self) -> None:
        """For a snapshot after the step that is under way."""
        self._due_at = self._clock()

    def wait(self) -> None:
        """Until the next one is due."""
        self._due_at = self._interval.due_after(self._clock())

    def goes_on(self, since: float | None) -> None:
        """The run is made again up to its snapshot, from the end of its first step on `since` then. That and now are
        noted for who wants to know what it takes; with None nothing is."""
        self.wait()
        if since is not None:
            self._note(GONE_ON, [self._run.steps, since, self._clock()])

    def _note(self, name: str, value: Any) -> None:
        with contextlib.suppress(OSError):  # no room there: it is told elsewhere
            self._run.folder.note(**{name: value})

    def forget(self) -> bool:
        """None of the snapshots may be gone on from. Whether there were any."""
        from overdrive.survive import snapshot

        if self.snapshots.unsound:
            return False
        self.snapshots.unsound = True
        return snapshot.forget(self._run.folder.path)

    def stepped(self, optimizer: Any) -> None:
        """A step was made."""
        run, snapshots = self._run, self.snapshots
        if run.ending.asked_by and not self._asked_at:
            self._asked_at = snapshots.hasten() or run.steps
        due = self._clock() >= self._due_at or self._asked_at > max(snapshots.kept, 0)
        if snapshots.under_way:
            due = snapshots.stepped(optimizer)
            if not snapshots.under_way and not due:
                self._interval.took(snapshots.cost)
                self._note(COST, snapshots.cost)
                self.wait()
                self._drop_contents()
                self._tell_failure()
        if self._asked_at and snapshots.kept >= self._asked_at:
            run.end(f"the same command goes on after step {snapshots.kept:,}")
        crossed = id(optimizer) in snapshots.crossed
        if due and crossed and not run.why_not:
            self._refuse()
        if run.agreed(due and not run.why_not and not crossed):
            self._refused = 0
            self._take(optimizer)

    def follow(self, optimizer: Any) -> None:
        """A step was made on a rank above 0 that has parts of its own."""
        assert self._in_parts is not None
        if self._in_parts.follow(self.snapshots.keep_part, self._over):
            self._take(optimizer)

    def _over(self) -> None:
        """Rank 0 takes nothing more: nothing need be noted."""
        self._run.why_not = "rank 0 takes no more snapshots"
        self._run.journal.drop()

    def _refuse(self) -> None:
        """Losses go back through this step, as through those of its optimizer before. Another one's may do."""
        self._refused += 1
        if self._refused == MOST_OTHERS:
            self._run.say(_ALL_CROSSED)
        if self._asked_at and self._refused >= MOST_IN_HASTE:
            self._end_without()

    def _tell_failure(self) -> None:
        """Of a snapshot that was due to be kept: there may be room for the next."""
        failure = self.snapshots.failure
        if failure and not self._told_failure:
            self._told_failure = True
            full = f"{self._run.folder.path} takes no more ({failure.strerror})"
            self._run.say(f"no snapshot after step {self._run.steps:,}: {full}")
        if failure and self._run.ending.asked_by:
            self._end_without()

    def _end_without(self) -> NoReturn:
        """A snapshot of this moment."""
        before = any(self._run.folder.path.glob("step-*.snapshot"))
        self._run.end(f"it {'goes on from the snapshot before' if before else 'begins from its start again'}")

    def _drop_contents(self) -> None:
        """A snapshot was kept, and an old one is gone: so are the files' contents that only that one had."""
        from overdrive.survive import snapshot

        steps = snapshot.steps_of(self._run.folder.path)
        self._states = {step: self._states[step] for step in steps if step in self._states}
        if len(self._states) == len(steps):  # else one is an earlier process's
            self._run.files.keep_only(list(self._states.values()))

    def _take(self, optimizer: Any) -> None:
        began, parts = self._clock(), self._in_parts
        with self._run.reading_alone():
            header = None if parts is not None and parts.rank else self._tried(self._header)
            if parts is not None:
                header = parts.shared(header)
            if header is not None and self._tried(lambda: self._take_numbers(optimizer, header)):
                self.snapshots.cost += self._clock() - began
        self.wait()

    def _tried(self, act: Callable[[], Any]) -> Any:
        """What it gives; None where that cannot be had, which is told."""
        try:
            return act()
        except CannotTake as error:
            self._run.cannot_skip(str(error))
        except Exception as error:
            self._run.cannot_skip(f"no snapshot could be taken ({type(error).__name__}: {error})")
        return None

    def _header(self) -> dict[str, Any]:
        """What is in a snapshot of the run, and not of what its variables lead to.

        Raises:
            CannotTake: the program keeps what is in no snapshot.
        """
        from overdrive.survive import held

        run = self._run
        if mapped := mapped_for_writing() & run.files.before.keys():
            raise CannotTake(f"it writes to {min(mapped)} through memory, as a memmap does")
        if unkept := run.files.unkept():
            raise CannotTake(f"it keeps {unkept}, in the system's temporary folder")
        header: dict[str, Any] = {
            "format": 5,
            "step": run.steps,
            "printed": run.output.at,
            "files": run.files.states(),
            "techniques": run.plan.told(),
            "positions": [[path, *at] for _, path, *at, _ in open_for_writing(self._known_path)],
            **held.besides(run.calls, run.folder.path),
        }
        if run.folder.notes.get("modules") != (modules := modules_of_program(run.files.made)):
            run.folder.note(modules=modules)
        run.inputs.keep(run.files.before)
        self._states[run.steps] = header["files"]
        return header

    def _take_numbers(self, optimizer: Any, header: dict[str, Any]) -> bool:
        """Whether it could be taken now.

        Raises:
            CannotTake: the program holds what is in no snapshot.
        """
        from overdrive.survive import held

        run = self._run
        parts = self._in_parts.here() if self._in_parts is not None else None
        taken = held.taken(run.calls, parts)
        if (written := self._written_journal()) is None:
            return False
        header = {**header, "journal": {"bytes": written[0], "sha256": written[1]}}
        if not self._told_draws and taken.keeps_draws():
            self._told_draws = True
            run.say(_OTHER_DRAWS)
        self.snapshots.take(taken.graphs, optimizer, header, taken.numbers, hasty=bool(self._asked_at))
        return True

    def _written_journal(self) -> tuple[int, str] | None:
        """Its length and sha256; None where it cannot be written now, so that there is no snapshot."""
        try:
            return self._run.journal.flush()
        except OSError as error:
            self.snapshots.failure = error
            self._tell_failure()
            return None

    def _known_path(self, path: str) -> str | None:
        return path if path in self._run.files.before else None
