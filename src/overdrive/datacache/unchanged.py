"""Whether a data set is still what it was: its objects, its files, and the settings of the process."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any

from overdrive.changes.called import Called, watch_called
from overdrive.changes.files import Files
from overdrive.changes.fingerprint import Fingerprint, objects_again, of_objects
from overdrive.changes.watch import Watch
from overdrive.changes.written_files import WrittenFiles
from overdrive.core.trial_spec import is_switched
from overdrive.datacache.key import Settings
from overdrive.forks.layout import Unfit

# Attributes set anew to what they were; each such alarm costs a fingerprint.
_MOST_FALSE_ALARMS = 5
_REPLACED = "something of a library's was replaced that samples may depend on"


class Unchanged:
    """
    Args:
        roots: all that samples depend on.
        seen: of these, as they were.
        opened: files that samples were read from, beside those that are named there.
        called: what samples came to in libraries.

    Attributes:
        seconds: that a look takes.
        false_alarms: how often the watch saw something that turned out to be no change.
    """

    def __init__(
        self, roots: tuple[Any, ...], seen: Fingerprint, opened: Collection[str] = (), called: Called | None = None
    ) -> None:
        self.seen = seen
        self._roots = roots
        self._settings = Settings()
        self._libraries = watch_called(called) if called else None
        self._files = WrittenFiles()
        self._files.add(seen.files.all())
        if seen.files.looked_for:
            self._files.add_folders(seen.files.folders())
            self._files.add(seen.files.absent())
        self._files.add(opened)
        self._opened = set(opened)
        self.false_alarms = 0
        self.seconds = seen.watch.seal()

    def in_fork(self) -> UnchangedInFork:
        """For a forked process to make, before it fetches."""
        return UnchangedInFork(self.seen.watch)

    def count(self, opened: Iterable[str]) -> None:
        """These files, which were read since, are to stay as they are, too."""
        self._opened.update(paths := set(opened))
        self._files.add(paths, read_since=True)

    def watched_files(self) -> WatchedFiles:
        """Those of now."""
        return WatchedFiles(self._paths(), self.seen.files)

    def _paths(self) -> set[str]:
        """The absolute paths of those that are watched, by the names that they have and without links on the way."""
        named = self._opened | self.seen.files.absolute()
        folders = {folder: os.path.realpath(folder) for folder in set(map(os.path.dirname, named))}
        linked = {folder: real for folder, real in folders.items() if folder != real}
        return named | {
            os.path.join(linked[os.path.dirname(path)], os.path.basename(path))
            for path in named
            if os.path.dirname(path) in linked
        }

    def as_seen(self) -> bool:
        """Whether the objects are what they were; takes as long as a fingerprint."""
        return of_objects(*self._roots) == self.seen.of_objects

    def touched(self) -> bool:
        """Quick enough for every sample; may be a false alarm."""
        return self.seen.watch.touched()

    def changed_for_workers(self) -> str | None:
        """What was changed that a process sees that was forked before, in words: files, and memory that they share."""
        if (path := self._files.written()) is not None:
            return f"a file of the data set was written to: {path}"
        return "memory that workers share was written to" if self.seen.watch.shared_changed() else None

    def changed_besides(self) -> str | None:
        """What was changed that an equal data set would depend on as well, in words: settings, files, libraries."""
        if self._settings.changed() and not is_switched():  # some techniques change settings
            return "a setting was changed that samples may depend on"
        if (path := self._files.written()) is not None:
            return f"a file of the data set was written to: {path}"
        return _REPLACED if self._libraries is not None and self._libraries.changed() else None

    def changed(self) -> str | None:
        """What was changed, in words; for every batch."""
        if (reason := self.changed_besides()) is not None:
            return reason
        if not self.seen.watch.changed():
            return None
        if self.seen.watch.replaced():
            return _REPLACED
        now = objects_again(*self._roots)
        self.false_alarms += 1
        if self.false_alarms > _MOST_FALSE_ALARMS:
            return "the data set is written to all the time"
        if now.of_objects != self.seen.of_objects:
            return "the data set was changed"
        self.seen = replace(self.seen, watch=now.watch)
        now.watch.seal()
        return None


@dataclass(frozen=True)
class WatchedFiles:
    """What a process watches, for others to know: what they read besides, nobody would see change."""

    paths: set[str]
    files: Files

    def read_besides(self, fresh: set[str]) -> str:
        """That one of these, which were read, is not among them, in words; nothing if all are."""
        unknown = fresh - self.paths
        if unknown:  # a link, perhaps, to one that is
            unknown = set(self.files.uncovered(unknown))
        return f"it reads {unknown.pop()}, which is not watched" if unknown else ""


class UnchangedInFork:
    """Whether fetching in a forked process leaves the data set as it is: what a fetch changed, others have read."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        watch.in_fork()

    def changed(self) -> bool:
        return self._watch.changed()

    def check(self) -> None:
        """
        Raises:
            Unfit: it was changed.
        """
        if self.changed():
            raise Unfit("fetching a sample changes the data set")
