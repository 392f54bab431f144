"""Decides which loaders' samples are kept, and where their tables come from."""

from __future__ import annotations

import gc
import os
import weakref
from typing import Any

from overdrive.samples import log
from overdrive.samples.fingerprint import fingerprint
from overdrive.samples.kept import Kept
from overdrive.samples.key import key_of
from overdrive.samples.layout import Unfit
from overdrive.samples.proof import Proof, prove, same_here, still_true
from overdrive.samples.serve import release
from overdrive.samples.source import Source
from overdrive.samples.store import Draft, Store, StoreUnavailable, home
from overdrive.samples.table import Table

# Trying a data set takes 0.05 s and more, which a program that makes a new one in every step won't get back.
_MOST_TRIED = 8
# Samples of a stored table that are fetched and compared when it is opened.
_LOOKED_AT = 16


class Keeper:
    """All that is kept in one session.

    Args:
        memory_share: of the available memory, that one table may take.
        at_once: fill a table when its loader is first opened, not in the course of the first epoch.
    """

    def __init__(self, memory_share: float, at_once: bool) -> None:
        self.reasons: list[str] = []  # why loaders were refused
        self._memory_share = memory_share
        self._at_once = at_once
        self._kept: list[Kept] = []
        self._verdicts: weakref.WeakKeyDictionary[Any, Kept | str] = weakref.WeakKeyDictionary()
        self._frozen: weakref.WeakSet[Any] = weakref.WeakSet()
        self._tried = 0
        self.fill_seconds = 0.0  # spent on filling tables at once
        try:
            self._store: Store | None = Store(home())
        except StoreUnavailable as error:
            log.info("samples are kept for this run only: %s", error)
            self._store = None

    @property
    def useful(self) -> bool:
        """Whether anything is kept."""
        return any(kept.dropped is None for kept in self._kept)

    def kept_for(self, loader: Any) -> Kept | None:
        """What is kept of this loader's samples, which is about to be opened; None where it is refused."""
        verdict = self._verdicts.get(loader)
        if isinstance(verdict, str):
            return None
        if verdict is None or loader not in self._frozen:
            verdict = self._look(loader, verdict)
        if isinstance(verdict, Kept) and verdict.dropped is not None:
            verdict = self._refuse(verdict.dropped)
        self._verdicts[loader] = verdict
        if isinstance(verdict, str):
            return None
        if loader.num_workers > 0 and loader.persistent_workers:
            self._frozen.add(loader)  # such workers go on with the data set as it was when they began
        return verdict

    def keep_others(self) -> None:
        """Look at all other loaders that the program has made: the one for evaluation, say."""
        from torch.utils.data import DataLoader

        for thing in gc.get_objects():
            if issubclass(type(thing), DataLoader) and thing not in self._verdicts:
                self.kept_for(thing)

    def close(self) -> None:
        """Let go of all samples; the reasons stay."""
        for kept in self._kept:
            kept.close()
        self._kept.clear()
        self._verdicts.clear()
        for loader in self._frozen:
            release(loader)

    def _refuse(self, reason: str) -> str:
        log.info("a loader's samples are not kept: %s", reason)
        self.reasons.append(reason)
        return reason

    def _look(self, loader: Any, before: Kept | None) -> Kept | str:
        try:
            source = Source.of(loader)
            if before is not None and before.source.same(source):
                before.changed()
                return before
            return self._find(source) or self._try(source)
        except Unfit as error:
            return self._refuse(str(error))
        except Exception as error:  # an odd data set must not take the others' samples with it
            return self._refuse(f"it could not be examined ({type(error).__name__}: {error})")

    def _find(self, source: Source) -> Kept | None:
        """Another loader's samples, where that has the same data set."""
        for kept in self._kept:
            if kept.dropped is None and kept.source.same(source) and not kept.changed():
                return kept
        return None

    def _try(self, source: Source) -> Kept:
        besides = str(self._store.folder) if self._store else ""
        seen = fingerprint(*source.roots, besides=besides)
        for kept in self._kept:  # a program may make the same data set anew for each epoch
            if kept.dropped is None and kept.table.complete and kept.digest == seen.digest:
                self._kept.remove(kept)
                return self._add(Kept(source, seen, kept.table, besides=besides))
        self._tried += 1
        if self._tried > _MOST_TRIED:
            raise Unfit("the program makes new data sets again and again")
        if seen.open_file:
            raise Unfit("its data set holds an open file, whose place a trial would move")
        key = key_of(seen, len(source.dataset)) if self._store and seen.hidden is None else None
        table = self._stored(source, key)
        if table is not None:
            return self._add(Kept(source, seen, table, besides=besides))

        proof = prove(source, seen.digest)
        if proof.settles and not source.workers:
            raise Unfit("fetching a sample changes the data set")
        in_forks = bool(source.workers) or same_here(source, proof.layout, proof.checks)
        draft = self._draft(source, proof, key)
        table = draft.table if draft else Table.in_memory(proof.layout, len(source.dataset))
        files_known = not seen.files.uncovered(set(proof.opened))
        kept = Kept(source, seen, table, draft, besides, files_known)
        if self._at_once:
            try:
                kept.fill(in_forks)
            except BaseException:
                kept.close()
                raise
            self.fill_seconds += kept.fill_seconds
        return self._add(kept)

    def _add(self, kept: Kept) -> Kept:
        self._kept.append(kept)
        return kept

    def _stored(self, source: Source, key: str | None) -> Table | None:
        if self._store is None or key is None:
            return None
        table = self._store.open(key)
        if table is not None and (table.count != len(source.dataset) or not still_true(source, table, _LOOKED_AT)):
            self._store.remove(key)
            return None
        return table

    def _draft(self, source: Source, proof: Proof, key: str | None) -> Draft | None:
        """A table on disk if it may outlive this process and there is room.

        Raises:
            Unfit: the samples are too large, wherever they lie.
        """
        count = len(source.dataset)
        size = proof.layout.bytes * count
        budget = self._memory_share * _available_memory()
        if size > budget:
            raise Unfit(f"its samples need {size / 1e9:.1f} GB, the budget is {budget / 1e9:.1f} GB")
        return self._store.draft(key, proof.layout, count) if self._store and key else None


def _available_memory() -> int:
    try:
        from overdrive.machine.inventory import available_memory

        return int(available_memory())
    except ImportError:
        import psutil

        return int(psutil.virtual_memory().available)


def fills_at_once() -> bool:
    """Whether this is a trial, whose tuner wants to see steady speed from the first step on."""
    return os.environ.get("OVERDRIVE_PREFILL") == "1"
