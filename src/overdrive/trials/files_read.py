"""Finds out which files a program's data sets read, for `overdrive pack`. Runs inside a trial.

By trying: samples are fetched in a forked process, and the files that they are seen to open through
Python's own `open`, and are not asked for their handles, are those that can be packed. Where a few
samples open only files that the data set's attributes name, all files of that kind that are named there
are taken; else every sample is fetched, which takes as long as an epoch's fetching on all cores.
"""

from __future__ import annotations

import gc
import io
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from overdrive.core.contract import Contract
from overdrive.core.progress import progress
from overdrive.datacache.files import Opened, is_library
from overdrive.datacache.forked import Tick, Work, in_children
from overdrive.datacache.layout import Unfit
from overdrive.machine.cpu import granted_cores
from overdrive.samples.packed.reading import plain_path
from overdrive.seams.files import answer_opens
from overdrive.techniques.technique import Knob, Settings, Technique

if TYPE_CHECKING:
    from overdrive.datacache.source import Source
    from overdrive.seams.hub import Handle, Seams

_TRIED = 32  # samples


class FilesRead(Technique):
    """Writes down which files the data sets read, when the first training step has been made.

    No technique to be chosen: it is in no catalogue but that of the one trial that `overdrive pack` runs.
    """

    name = "files_read"
    family = "data"
    contract = Contract.EXACT
    targets = ()
    knobs = (Knob("report", "", "the file to write"),)

    def install(self, seams: Seams, settings: Settings) -> Handle:
        opened: list[Any] = []
        written: list[bool] = []

        def opens(loader: Any, call: Callable[[], Any]) -> Any:
            opened.append(loader)
            return call()

        def stepped(_optimizer: Any) -> None:
            if not written:
                written.append(True)
                Path(str(settings["report"])).write_text(json.dumps(_report(_loaders(opened))))

        seams.loader_opens.subscribe(opens)
        seams.step_ends.subscribe(stepped)
        return seams.handle()


def _loaders(opened: list[Any]) -> list[Any]:
    """All that the program has made so far, one of each data set; those in use first."""
    from torch.utils.data import DataLoader

    made = [thing for thing in gc.get_objects() if issubclass(type(thing), DataLoader)]
    return list({id(loader.dataset): loader for loader in reversed([*opened, *made])}.values())[::-1]


def _report(loaders: list[Any]) -> list[dict[str, Any]]:
    told = []
    for loader in loaders:
        files: list[str] = []
        try:
            files, reason = _files_of(loader)
        except Unfit as error:
            reason = str(error)
        except Exception as error:
            reason = f"it could not be examined ({type(error).__name__}: {error})"
        told.append({"data_set": type(loader.dataset).__name__, "files": files, "reason": reason})
    return told


def _files_of(loader: Any) -> tuple[list[str], str]:
    """The files that can be packed, in the order of the samples; and, where there are none, why.

    Raises:
        Unfit: the data set cannot be tried.
    """
    from overdrive.datacache.fingerprint import fingerprint
    from overdrive.datacache.source import Source, spread

    source = Source.of(loader)
    seen = fingerprint(*source.roots)
    if seen.open_file:
        raise Unfit("it reads from a file that it holds open")
    count = len(source.dataset)
    (told,) = in_children([_fetches(source, spread(count, _TRIED))], lambda _: progress(0, count))
    tried = _in_order([told])
    if not tried:
        if told["handled"]:
            return [], f"it asks its files for their handles, which a shard has not ({told['handled'][0]})"
        if told["otherwise"]:
            return [], f"it opens its files in a way that cannot be redirected ({told['otherwise'][0]})"
        return [], "it opens no file through Python's open(), as is seen of what reads in C (cv2.imread, say)"
    named = dict.fromkeys(map(plain_path, seen.files.named()))
    if named.keys() >= set(tried):
        kinds = {os.path.splitext(path)[1] for path in tried}
        return [path for path in named if os.path.splitext(path)[1] in kinds], ""
    cores = max(1, granted_cores())
    done = 0

    def on_tick(ticks: int) -> None:
        nonlocal done
        done += ticks
        progress(done, count)

    return _in_order(in_children([_fetches(source, range(k, count, cores)) for k in range(cores)], on_tick)), ""


def _in_order(tolds: list[dict[str, Any]]) -> list[str]:
    lists = sorted((index, paths) for told in tolds for index, paths in told["opened"])
    return list(dict.fromkeys(path for _, paths in lists for path in paths))


class _Watched(io.FileIO):
    """The real file; notes whether its handle is asked for, as np.load does of .npy files."""

    def __init__(self, path: Any, handled: set[str]) -> None:
        super().__init__(path)
        self._path = plain_path(os.fsdecode(path))
        self._handled = handled

    def fileno(self) -> int:
        self._handled.add(self._path)
        return super().fileno()


def _fetches(source: Source, indices: Iterable[int]) -> Work:
    """Fetch these; tells which files each opened by Python's `open`, and which were opened or read otherwise."""

    def work(tick: Tick) -> dict[str, Any]:
        source.enter_worker(0)
        now: list[str] = []
        handled: set[str] = set()
        opened: list[tuple[int, list[str]]] = []

        def watch(path: Any) -> io.BufferedReader:
            now.append(plain_path(os.fsdecode(path)))
            return io.BufferedReader(_Watched(path, handled))

        answer_opens(watch)
        with Opened() as besides:
            for index in indices:
                now.clear()
                try:
                    source.dataset[index]
                except Exception:  # the program will meet it itself
                    continue
                finally:
                    tick(1)
                opened.append((index, [path for path in now if not is_library(path)]))
        ours = {os.path.realpath(path) for _, paths in opened for path in paths}
        packable = [(index, [path for path in paths if path not in handled]) for index, paths in opened]
        return {"opened": packable, "handled": sorted(handled), "otherwise": sorted(besides.paths() - ours)}

    return work
