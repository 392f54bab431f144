"""Remembers where a method was cut, beside the table that came of it, so that the next run need not find out again.

What was found hangs on the whole data set and on the files that the tried samples were read from; its name is a
hash of the former, and the latter are looked at again. A few samples are tried all the same.
"""

from __future__ import annotations

import time
from typing import Any

from overdrive.changes.files import stats_of
from overdrive.changes.fingerprint import Fingerprint, fingerprint
from overdrive.datacache.key import key_of
from overdrive.datacache.source import Source
from overdrive.datacache.store import Store
from overdrive.techniques.data.prefix_cache.finding import Method
from overdrive.version import __version__


class Recall:
    """What was found of one method, in this run or an earlier one.

    Attributes:
        seen: of the whole data set; None where nothing can be remembered.
    """

    def __init__(self, store: Store | None, method: Method, source: Source) -> None:
        self._store = store
        self._name = ""
        self._note: dict[str, Any] | None = None  # to be written down
        self.seen: Fingerprint | None = None
        if store is None:
            return
        of_method = (method.owner, method.base.__module__, method.base.__qualname__, method.name, method.kind.__name__)
        self._began = time.time_ns()
        self.seen = fingerprint(*source.roots, *of_method, __version__, besides=str(store.folder))
        if self.seen.hidden is None and not self.seen.open_file:
            self._name = f"cut-{key_of(self.seen, len(source.dataset))}"

    def found_before(self) -> dict[str, Any] | None:
        """What an earlier run was told by its trial, if that is still to be believed."""
        note = self._store.noted(self._name) if self._store and self._name else None
        try:
            depends = [tuple(each) for each in note["depends"]] if note else []
            if not note or stats_of([path for path, _, _ in depends]) != depends:
                return None
            return dict(note["told"])
        except (LookupError, TypeError, ValueError):  # it is none of ours
            return None

    def learnt(self, told: dict[str, Any]) -> None:
        """This run's trial has told so."""
        if not self._name or self.seen is None:
            return
        depends = stats_of(self.seen.files.uncovered(set(told["opened"])))
        if depends is not None and all(modified < self._began for _, _, modified in depends):
            self._note = {"told": told, "depends": depends}

    def write(self, key: str) -> None:
        """Beside the table of this key, where it goes when that goes."""
        if self._store is not None and self._note is not None and self._store.note(key, self._name, self._note):
            self._note = None
