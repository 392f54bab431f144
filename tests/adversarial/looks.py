"""Made programs without their training: what their data set reads is changed, and the guard is to see that it was.

A hundred times as many as can be run to their end: each is a fork of 50 ms.
"""

from __future__ import annotations

import faulthandler
import importlib
import io
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

_SEEN, _MISSED, _ALARM, _SAME, _REFUSED, _FAILED = "seen", "MISSED", "false alarm", "no effect", "refused", "failed"
_HUNG = "HUNG"
_PATIENCE = 60.0  # seconds; then a program is ended, and says where each of its threads was
_ATTEMPTS = 3  # writes of one program


def looked(made: Iterable[tuple[str, dict[str, str]]], folder: Path, told: bool) -> Counter[str]:
    """How many of these programs were refused, and of the writes to others how many were seen; those that were not are printed.

    Args:
        told: print why programs failed, too.
    """
    from tests.adversarial.forked_runs import import_all

    import_all()
    found: Counter[str] = Counter()
    for name, files in made:
        place = folder / "look"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        for file, text in files.items():
            (place / file).write_text(text)
        for verdict, what in _in_fork(place):
            found[verdict] += 1
            if verdict in (_MISSED, _HUNG) or (verdict == _FAILED and told):
                print(name, verdict, what, files["train.py"].split("\n", 1)[0], flush=True)
    return found


def _in_fork(place: Path) -> list[tuple[str, str]]:
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        os.close(reading)
        os.chdir(place)
        faulthandler.dump_traceback_later(_PATIENCE, exit=True, file=open(place.parent / _HUNG, "w"))  # noqa: SIM115
        try:
            with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
                told = list(_look())
        except BaseException as error:  # of the program's own, most of them
            told = [(_FAILED, f"{type(error).__name__}: {error}".replace("\n", " "))]
        try:
            os.write(writing, "\n".join(f"{verdict}\t{what}" for verdict, what in told).encode()[:60_000])
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading) as pipe:
        lines = pipe.read().splitlines()
    _, status = os.waitpid(process, 0)
    if os.waitstatus_to_exitcode(status):
        return [(_HUNG, "\n" + (place.parent / _HUNG).read_text())]
    return [tuple(line.split("\t", 1)) for line in lines] or [(_FAILED, "it said nothing")]  # type: ignore[misc]


def _look() -> Iterator[tuple[str, str]]:
    from overdrive.changes.called import Calls
    from overdrive.changes.fingerprint import fingerprint
    from overdrive.datacache.opened import Opened
    from overdrive.datacache.unchanged import Unchanged

    sys.path.insert(0, os.getcwd())
    program = importlib.import_module("train")
    loader: Any = program.loader.make() if hasattr(program.loader, "make") else program.loader
    roots = (loader.dataset, loader.collate_fn, None, False)
    for write in _writes(program):
        opened, calls = Opened(), Calls()
        with opened, calls:
            before = _samples(loader)
        seen = fingerprint(*roots)
        if seen.hidden_here or seen.open_file:
            yield _REFUSED, seen.hidden_here or "an open file"
            return
        unchanged = Unchanged(roots, seen, opened.paths(), calls.told())
        if (reason := unchanged.changed()) is not None:
            yield _ALARM, reason
        elif _samples(loader) == before and unchanged.changed() is None:
            try:
                write()
            except Exception:
                continue
            reason = unchanged.changed()
            differ = _samples(loader) != before
            verdict = (_SEEN if reason else _MISSED) if differ else (_ALARM if reason else _SAME)
            yield verdict, f"{write.__name__} {reason or ''}"
        else:
            yield _REFUSED, "fetching changes it"
            return


def _writes(program: Any) -> list[Callable[[], Any]]:
    """What it does to its data set sooner or later, each twice: what was changed once may be watched in another way."""
    names = sorted(name for name in vars(program) if name.startswith("write_"))
    writes = [(name, value) for value in (3, 5) for name in names][: 2 * _ATTEMPTS]

    def named(name: str, value: int) -> Callable[[], Any]:
        def write() -> Any:
            return getattr(program, name)(value)

        write.__name__ = f"{name}({value})"
        return write

    return [named(*each) for each in writes]


def _samples(loader: Any) -> list[str]:
    found = []
    for index in range(len(loader.dataset)):
        try:
            found.append(repr(loader.collate_fn([loader.dataset[index]])))
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")
    return found
