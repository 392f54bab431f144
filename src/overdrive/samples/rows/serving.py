"""Decides which loaders' batches are gathered from arrays, and puts that into torch's iterators."""

from __future__ import annotations

import weakref
from typing import Any

from overdrive.core.progress import log
from overdrive.datacache.buffers import Buffers
from overdrive.datacache.layout import Unfit
from overdrive.datacache.loader import Early, buffers_for
from overdrive.datacache.manager import other_loaders
from overdrive.datacache.source import Source
from overdrive.samples.rows.slices import Slices
from overdrive.samples.rows.trial import slices_of

# A trial takes half a second, which a program that makes a new data set in every step won't get back.
_MOST_TRIED = 8


class Slicing:
    """All that is gathered from arrays in one session."""

    def __init__(self) -> None:
        self.reasons: list[str] = []  # why loaders were refused
        self._found: list[Slices] = []
        self._verdicts: weakref.WeakKeyDictionary[Any, Slices | str] = weakref.WeakKeyDictionary()
        self._tried = 0

    @property
    def useful(self) -> bool:
        """Whether anything is gathered."""
        return any(slices.dropped is None for slices in self._found)

    def serve(self, loader: Any, iterator: Any) -> bool:
        """Gather this iterator's batches, if that can be; else it stays as it is."""
        from torch.utils.data._utils.fetch import _BaseDatasetFetcher

        real = getattr(iterator, "_dataset_fetcher", None)
        if real is not None and not isinstance(real, _BaseDatasetFetcher):
            if loader not in self._verdicts:
                self._verdicts[loader] = self._refuse("another technique serves its samples")
            return False
        slices = self._slices_for(loader)
        if slices is None or real is None:
            return False
        slices.opened()
        iterator._dataset_fetcher = _Fetcher(slices, real, buffers_for(iterator))
        return True

    def look_at_others(self) -> None:
        """Look at all other loaders that the program has made: the one for evaluation, say."""
        for loader in other_loaders(self._verdicts):
            self._slices_for(loader)

    def close(self) -> None:
        """Iterators that live on fetch as they did before."""
        for slices in self._found:
            slices.drop("the session has ended")
        self._found.clear()
        self._verdicts.clear()

    def _slices_for(self, loader: Any) -> Slices | None:
        verdict = self._verdicts.get(loader)
        if isinstance(verdict, Slices) and verdict.changed():
            verdict = None
        if verdict is None:
            verdict = self._verdicts[loader] = self._look(loader)
        return verdict if isinstance(verdict, Slices) else None

    def _look(self, loader: Any) -> Slices | str:
        try:
            source = Source.of(loader)
            for slices in self._found:
                if slices.source.same(source) and not slices.changed():
                    return slices
            self._tried += 1
            if self._tried > _MOST_TRIED:
                raise Unfit("the program makes or changes data sets again and again")
            slices = slices_of(source)
            self._found = [*(each for each in self._found if each.dropped is None), slices]
            return slices
        except Unfit as error:
            return self._refuse(str(error))
        except Exception as error:  # an odd data set must not take the others with it
            return self._refuse(f"it could not be examined ({type(error).__name__}: {error})")

    def _refuse(self, reason: str) -> str:
        log.info("a loader's batches are not gathered from arrays: %s", reason)
        self.reasons.append(reason)
        return reason


class _Fetcher:
    """Stands for torch's fetcher in one iterator."""

    def __init__(self, slices: Slices, real: Any, buffers: Buffers) -> None:
        self.slices = slices
        self._real = real
        self._buffers = buffers
        self.ahead: Early | None = None  # gathers the next batches meanwhile

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def fetch(self, indices: Any) -> Any:
        return self.slices.fetch(self._real, indices, self._gathered)

    def _gathered(self, indices: Any) -> Any:
        rows = self.slices.rows(indices)
        if self.ahead is not None and rows is not None:
            return self.ahead.batch(rows)
        return self.slices.gather(rows, self._buffers)


def slices_of_iterator(iterator: Any) -> Slices | None:
    """The arrays that this iterator gathers its batches from; None where it does not."""
    fetcher = getattr(iterator, "_dataset_fetcher", None)
    return fetcher.slices if type(fetcher) is _Fetcher else None
