"""The cache manager: decides which loaders' samples are cached."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Container
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from overdrive.changes.fingerprint import Fingerprint, fingerprint
from overdrive.core.places import samples_folder
from overdrive.core.progress import log
from overdrive.datacache.audit import Audits, audits_of
from overdrive.datacache.cached_dataset import CachedDataset
from overdrive.datacache.dry_run import Unstacked, prove, same_here
from overdrive.datacache.early import EarlyCheck
from overdrive.datacache.key import key_of
from overdrive.datacache.loader import release, serve
from overdrive.datacache.share import Shares, kind_of
from overdrive.datacache.single import SingleSource, makes_batches_itself
from overdrive.datacache.source import Source
from overdrive.datacache.store import Store, StoreUnavailable
from overdrive.datacache.table_places import TablePlaces
from overdrive.forks.layout import Unfit
from overdrive.seams.torch.iterators import lasts_for_program, workers_of_program

# Trying a data set takes 0.05 s and more, which a program that makes a new one in every step won't get back.
_MOST_TRIED = 8
# Of the time of fetching a batch, that looking whether the data set was changed may take.
_MOST_LOOKING = 0.25
_LITTLE = 2e-3  # seconds of it for a batch, up to which a trial's clock decides whether the samples are worth it


class Hub(Protocol):
    """The part of a session's seams that is needed here."""

    off: set[str]
    left_out: dict[str, str]

    def owned_by(self, owner: str) -> AbstractContextManager[None]: ...

    def on_undo(self, undo: Callable[[], None]) -> None: ...


_managers: weakref.WeakKeyDictionary[Hub, CacheManager] = weakref.WeakKeyDictionary()
_early: weakref.WeakKeyDictionary[Hub, EarlyCheck] = weakref.WeakKeyDictionary()


def begin_early(seams: Hub) -> None:
    """Check what this program used last time, beside its start. For the session that is about to need it."""
    if (folder := samples_folder()).is_dir():
        seams.on_undo(_early.setdefault(seams, EarlyCheck(folder)).end)


def shared(seams: Hub, memory_share: float, folder: str = "", user: str = "") -> CacheManager:
    """The session's one cache manager, for all techniques that need samples; closed when the session ends.

    Who asks first decides on the share of memory, and on the folder.

    Args:
        user: the technique that wants samples; where all of them are off, none are served.

    Raises:
        StoreUnavailable: the folder that is named is not there, or is not the user's own.
    """
    manager = _managers.get(seams)
    if manager is None:
        manager = _managers[seams] = CacheManager(memory_share, fills_at_once(), folder, _early.pop(seams, None))
        with seams.owned_by("session"):  # not undone with any technique that is left out
            seams.on_undo(manager.close)
        manager.wanted = partial(_any_on, weakref.ref(seams), manager.users)  # it lives as long as they do
        manager.audits = partial(_audits, weakref.ref(seams))
    if user:
        manager.users.add(user)
    return manager


def _audits(seams: Callable[[], Hub | None]) -> Audits | None:
    return audits_of(seams())


def _any_on(seams: Callable[[], Hub | None], users: set[str]) -> bool:
    hub = seams()
    return hub is None or any(name not in hub.off and name not in hub.left_out for name in users)


class CacheManager:
    """All that is kept in one session.

    Args:
        memory_share: of the available memory, that one table may take.
        at_once: fill a table when its loader is first opened, not in the course of the first epoch.
        folder: where `overdrive pack` wrote the samples; no others are kept then.
        early: what has begun to check the tables that are usually kept.

    Raises:
        StoreUnavailable: that folder cannot be used.
    """

    def __init__(self, memory_share: float, at_once: bool, folder: str = "", early: EarlyCheck | None = None) -> None:
        self.reasons: list[str] = []  # why loaders were refused
        self.users: set[str] = set()
        self.wanted: Callable[[], bool] = lambda: True  # whether one of them is on
        self.audits: Callable[[], Audits | None] = lambda: None
        self._process = os.getpid()
        self._at_once = at_once
        self._kept: list[CachedDataset] = []
        self._verdicts: weakref.WeakKeyDictionary[Any, CachedDataset | str] = weakref.WeakKeyDictionary()
        self._frozen: weakref.WeakSet[Any] = weakref.WeakSet()
        self._shares = Shares()
        self._tried = 0
        self._opened = False
        try:
            self.store: Store | None = (
                Store(Path(folder), packed=True) if folder else Store(samples_folder(), early=early)
            )
        except StoreUnavailable as error:
            if folder:
                raise
            log.info("samples are kept for this run only: %s", error)
            self.store = None
        self._places = TablePlaces(self.store, memory_share, at_once)

    @property
    def useful(self) -> bool:
        """Whether anything is kept."""
        return any(kept.dropped is None for kept in self._kept)

    @property
    def kept(self) -> list[CachedDataset]:
        return list(self._kept)

    def kept_for(self, loader: Any) -> CachedDataset | None:
        """What is kept of this loader's samples, which is about to be opened; None where it is refused."""
        verdict = self._verdicts.get(loader)
        if isinstance(verdict, str):
            return None
        if verdict is None or loader not in self._frozen:
            verdict = self._look(loader, verdict)
        if isinstance(verdict, CachedDataset) and verdict.dropped is not None:
            verdict = self._refuse(verdict.dropped)
        self._verdicts[loader] = verdict
        if isinstance(verdict, str):
            return None
        if workers_of_program(loader) > 0 and lasts_for_program(loader):
            self._frozen.add(loader)  # such workers go on with the data set as it was when they began
        return verdict

    def open(
        self,
        loader: Any,
        call: Callable[[], Any],
        leave_out: Callable[[str], None],
    ) -> Any:
        """The iterator over an epoch of this loader's batches: served where its samples are kept, else that of `call`.

        At the first opening, all other loaders are looked at where this one is refused, or where all is to be
        filled at once. Where nothing is kept after that, `leave_out` is told why.
        """
        first, self._opened = not self._opened, True
        kept = self.kept_for(loader)
        if first and (kept is None or fills_at_once()):
            self.keep_others()
        if kept is not None:
            return self.serve(kept, loader, call)
        if not self.useful:
            leave_out(self.reasons[0])
        release(loader)
        return call()

    def serve(self, kept: CachedDataset, loader: Any, call: Callable[[], Any]) -> Any:
        return serve(kept, loader, call, lambda: self.wanted())

    def keep_others(self) -> None:
        """Look at all other loaders that the program has made: the one for evaluation, say."""
        for loader in other_loaders(self._verdicts):
            self.kept_for(loader)

    def close(self) -> None:
        """Release all samples; the reasons stay."""
        if os.getpid() != self._process:
            return  # a fork of the program that came back up here: what is on disk is not its own
        for kept in self._kept:
            kept.close()
        self._kept.clear()
        if self.store is not None:
            self.store.forget_unused()
        self._verdicts.clear()
        for loader in self._frozen:
            release(loader)

    def _refuse(self, reason: str) -> str:
        log.info("a loader's samples are not kept: %s", reason)
        self.reasons.append(reason)
        return reason

    def _look(self, loader: Any, before: CachedDataset | None) -> CachedDataset | str:
        try:
            sampler = getattr(loader.batch_sampler, "sampler", None)
            source = replace(Source.of(loader), share=self._shares.of(loader), kind=kind_of(sampler))
            if before is not None and before.source.same(source):
                before.changed()
                return before
            return self._find(source) or self._keep_somehow(source)
        except Unfit as error:
            return self._refuse(str(error))
        except Exception as error:  # an odd data set must not take the others' samples with it
            return self._refuse(f"it could not be examined ({type(error).__name__}: {error})")

    def _keep_somehow(self, source: Source) -> CachedDataset:
        """Stacked; or one by one, where they cannot be, or a collate function of the program's own does more.

        Raises:
            Unfit: as `keep`.
        """
        try:
            return self.keep(source)
        except Unfit as error:
            unstacked = isinstance(error, Unstacked) and not source.workers
            if type(source) is not Source or not (unstacked or makes_batches_itself(source)):
                raise
        return self.keep(SingleSource.tried(source))

    def _find(self, source: Source) -> CachedDataset | None:
        """Another loader's samples, where that has the same data set."""
        for kept in self._kept:
            if kept.dropped is None and kept.source.same(source) and not kept.changed():
                return kept
        return None

    def keep(self, source: Source, earlier: Fingerprint | None = None) -> CachedDataset:
        """Try these samples, and keep them from now on.

        Args:
            earlier: see `fingerprint`.

        Raises:
            Unfit: they cannot be kept, with the reason.
        """
        besides = str(self.store.folder) if self.store else ""
        seen = fingerprint(*source.roots, besides=besides, earlier=earlier)
        for kept in self._kept:  # a program may make the same data set anew for each epoch
            if kept.dropped is None and kept.digest == seen.digest and kept.serves_equal():
                self._kept.remove(kept)
                return self._add(kept.renewed(source, seen))
        self._tried += 1
        if self._tried > _MOST_TRIED:
            raise Unfit("the program makes new data sets again and again")
        if seen.open_file:
            raise Unfit("its data set holds an open file, whose place a trial would move")
        if seen.hidden_here:
            raise Unfit(f"whether its data set changes cannot be seen: {seen.hidden_here}")
        key = key_of(seen, source.count) if self.store and seen.hidden is None else None
        stored = self._places.stored(source, key, seen.hidden)
        if stored is not None:
            table, called = stored
            how: dict[str, Any] = {"besides": besides, "opened": table.made_from, "called": called, "key": key or ""}
            return self._add(CachedDataset(source, seen, table, as_in_forks=bool(source.workers) or None, **how))

        proof = prove(source, seen)
        if proof.settles and not source.workers:
            raise Unfit("fetching a sample changes the data set")
        alike = not seen.asks_where and same_here(source, proof.layout, proof.checks)
        in_forks = bool(source.workers) or alike
        table, partial = self._places.place(source, proof, key, seen.hidden)
        seconds_each = proof.seconds if in_forks and not source.workers else 0.0
        how = {"called": proof.called, "key": key or "", "as_in_forks": in_forks, "settles": proof.settles}
        kept = CachedDataset(source, seen, table, partial, besides, proof.opened, seconds_each, **how)
        seconds = proof.seconds * source.batch_size
        if not source.workers and kept.seconds_a_look > max(_LITTLE, _MOST_LOOKING * seconds):
            kept.drop("to see whether it changes takes too long")
            look, fetch = 1000 * kept.seconds_a_look, 1000 * seconds
            raise Unfit(f"to see whether its data set changes takes {look:.1f} ms a batch, to fetch one {fetch:.1f} ms")
        if self._at_once:
            try:
                kept.filler.fill(in_forks)
            except BaseException:
                kept.filler.abandon()  # what did not end well is nothing to go on with
                kept.close()
                raise
        return self._add(kept)

    def _add(self, kept: CachedDataset) -> CachedDataset:
        self._kept.append(kept)
        audits = self.audits()
        if audits is not None and kept.audit is None:
            kept.audit = audits.audit(lambda: tuple(self.users), partial(self.drop_all, kept.key))
        return kept

    def drop_all(self, key: str, reason: str) -> None:
        """Serve no more of anything; and nobody is to be served what is on disk under this key."""
        for kept in self._kept:
            kept.drop(reason)
        if self.store is not None and key:
            self.store.remove(key)


def other_loaders(known: Container[Any]) -> list[Any]:
    """The loaders that this process has made, besides these."""
    from overdrive.seams.torch.loaders import live_loaders

    return [loader for loader in live_loaders() if loader not in known]


def fills_at_once() -> bool:
    """Whether this is a trial, whose tuner wants to see steady speed from the first step on."""
    return os.environ.get("OVERDRIVE_PREFILL") == "1"
