"""All first halves that are kept in one session: which loaders' methods have one, and who serves it."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from overdrive.core.progress import log
from overdrive.datacache.audit import Audit
from overdrive.datacache.draws import Generators, contents_of
from overdrive.datacache.manager import CacheManager
from overdrive.datacache.share import Shares
from overdrive.datacache.source import Source
from overdrive.datacache.switch import SharedFlag
from overdrive.forks.layout import Unfit
from overdrive.seams.torch.loaders import live_loaders
from overdrive.techniques.data.prefix_cache.finding import Method, find_methods, source_of
from overdrive.techniques.data.prefix_cache.guard import Reached
from overdrive.techniques.data.prefix_cache.prefix import PrefixSource
from overdrive.techniques.data.prefix_cache.proving import find_prefix
from overdrive.techniques.data.prefix_cache.recall import Recall
from overdrive.techniques.data.prefix_cache.serving import Served, serving

# Times as many samples as the loader's: a table has a row for each, and a trial fills them all.
_MOST_UNUSED = 4
# Trying a data set takes 0.3 s and more.
_MOST_TRIED = 8

# Gives a data set its audit, and is told how to have it served no more; None where nothing is audited.
MakeAudit = Callable[[Callable[[str], None]], Audit | None]


class Halving:
    """All first halves that are kept in one session, and the methods that serve them."""

    def __init__(
        self, memory_share: float, at_once: bool, switch: SharedFlag, make_audit: MakeAudit = lambda drop: None
    ) -> None:
        self._switch = switch
        self._make_audit = make_audit
        self.manager = CacheManager(memory_share, at_once)
        self.reasons: list[str] = []
        self._verdicts: weakref.WeakKeyDictionary[Any, list[Served] | str] = weakref.WeakKeyDictionary()
        # By object, and whether it is fetched from in a worker: there it may compute with other threads.
        self._served: dict[tuple[int, bool], Served] = {}
        self._known: list[tuple[Source, list[Served]]] = []
        self._shares = Shares()
        self._tried = 0
        self._replaced: list[tuple[type, str, Any, Any]] = []

    @property
    def useful(self) -> bool:
        return any(served.in_force for served in self._served.values())

    def prepare(self, loader: Any) -> None:
        """Look at a loader that is about to be opened."""
        verdict = self._verdicts.get(loader)
        if isinstance(verdict, str):
            return
        for served in verdict or ():
            served.look()
        if verdict is None or not all(served.in_force for served in verdict):
            self._verdicts[loader] = self._try(loader)

    def new_batch(self) -> None:
        """A batch is about to be fetched in this process: the program has been at work since the last one."""
        for served in list(self._served.values()):
            served.before_batch()

    def batch_is_made(self) -> None:
        for served in list(self._served.values()):
            served.in_batch = False

    def hands_out(self) -> None:
        """A worker is about to be given a batch."""
        for served in list(self._served.values()):
            served.look_for_workers()

    def opened(self, loader: Any) -> None:
        """New workers of this loader have begun, with the data set as it is."""
        verdict = self._verdicts.get(loader)
        for served in verdict if isinstance(verdict, list) else ():
            served.have_audited()

    def prepare_others(self) -> None:
        """Look at all other loaders that the program has made."""
        for loader in live_loaders():
            if loader not in self._verdicts:
                self.prepare(loader)

    def close(self) -> None:
        """Put the methods back, and let go of everything."""
        for base, name, ours, real in reversed(self._replaced):
            if vars(base).get(name) is ours:
                setattr(base, name, real)
        self._replaced.clear()
        for served in self._served.values():
            with contextlib.suppress(Exception):  # whatever it is, the program has had its samples
                served.finish()
        self._served.clear()
        self._known.clear()
        self._verdicts.clear()
        self.manager.close()

    def _try(self, loader: Any) -> list[Served] | str:
        try:
            source = source_of(loader)
            for known, its in self._known:  # a program may make a loader anew for each epoch
                if known.same(source):
                    for served in its:
                        served.look()
                    if all(served.in_force for served in its):
                        return its
            self._tried += 1
            if self._tried > _MOST_TRIED:
                raise Unfit("the program makes new data sets again and again")
            found: list[Served] = []
            reasons = []
            contents = contents_of(source.dataset)
            for chain in find_methods(source, contents):
                try:
                    found.append(self._served_by(chain, loader, source, contents.generators))
                except Unfit as error:
                    reasons.append(str(error))
            if found:
                self._known.append((source, found))
                return found
            raise Unfit(reasons[0])
        except Unfit as error:
            return self._refuse(str(error))
        except (Exception, Reached) as error:  # an odd data set must not take the others' samples with it
            return self._refuse(f"it could not be examined ({type(error).__name__}: {error})")

    def _refuse(self, reason: str) -> str:
        log.info("what a loader's samples have in common is not kept: %s", reason)
        self.reasons.append(reason)
        return reason

    def _served_by(self, chain: list[Method], loader: Any, source: Source, generators: Generators) -> Served:
        """The innermost method that can be halved.

        Raises:
            Unfit: none can, with the reason of the innermost.
        """
        reasons = []
        for method in chain:
            known = self._served.get((id(method.owner), source.workers > 0))
            if known is not None and known.in_force:
                return known
            try:
                return self._serve(method, loader, source, generators)
            except Unfit as error:
                reasons.append(str(error))
        raise Unfit(reasons[0])

    def _serve(self, method: Method, loader: Any, source: Source, generators: Generators) -> Served:
        if len(method.owner) > _MOST_UNUSED * len(source.dataset):
            raise Unfit("the loader uses only a small part of its data set")
        recall = Recall(self.manager.store, method, source)
        prefix = find_prefix(method, source, generators, recall)
        of_prefix = PrefixSource.of_prefix(prefix, source, generators)
        kept = self.manager.keep(of_prefix, recall.seen)
        kept.audit = self._make_audit(partial(self.manager.drop_all, kept.key))
        served = Served(prefix, kept, of_prefix, generators, recall, self._shares.of(loader) is not None)
        self._served[id(method.owner), source.workers > 0] = served
        self._replace(method)
        return served

    def _replace(self, method: Method) -> None:
        if any(base is method.base and name == method.name for base, name, _, _ in self._replaced):
            return
        real = method.function
        ours = serving(real, self._served, self._switch)
        self._replaced.append((method.base, method.name, ours, real))
        setattr(method.base, method.name, ours)
