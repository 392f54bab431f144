"""The times that a program's lines read, in every way that Python has: told again as they were told first."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from overdrive.seams import clocks

# Runs `program.py` with the clocks told; answers from `journal`, where that is there.
DRIVER = """
import json, os, runpy, sys
from overdrive.seams import clocks
known = json.load(open("journal")) if os.path.exists("journal") else None
noted = []
def read(plain, made):
    value = made()
    noted.append(known[len(noted)] if known else value)
    return noted[-1]
in_libraries = {}
def read_in_library(line, now):
    now()
    return in_libraries.setdefault(line.rpartition(os.sep)[2], 1e9 + len(in_libraries))
clocks.tell(read, read_in_library)
runpy.run_path("program.py")
json.dump(noted, open("journal", "w"))
json.dump(in_libraries, open("in_libraries", "w"))
"""
READS = """
import datetime, pickle, time
from datetime import date, datetime as D, timezone
print(time.time(), time.time_ns(), time.perf_counter(), time.monotonic_ns())
print(time.process_time(), time.process_time_ns(), time.thread_time(), time.thread_time_ns())
print(time.strftime("%H:%M:%S %f"), time.ctime(), time.asctime(), time.localtime().tm_sec, time.gmtime(None).tm_sec)
print(D.now(), D.utcnow(), D.today(), date.today(), datetime.datetime.now(timezone.utc), D.now().strftime("%H%M%S"))
"""
# What asks for no time, or for the class that makes one.
REST = """
import datetime, logging, pickle, time
from datetime import date, datetime as D
class Own(D):
    pass
then = D(2020, 1, 2, 3)
assert time.gmtime(0).tm_year == 1970 and time.strftime("%Y", time.gmtime(0)) == "1970"
assert type(then) is type(D.now()) is type(D.strptime("2020", "%Y")) and type(then).__module__ == "datetime"
assert isinstance(then, D) and isinstance(then, date) and isinstance(date(2020, 1, 1), date) and not isinstance(3, D)
assert issubclass(D, date) and issubclass(Own, D) and not isinstance(then, Own)
assert pickle.loads(pickle.dumps([then, date.today()]))[0] == then and D.fromisoformat("2020-01-02T03:00:00") == then
assert type(Own.now()) is Own and type(Own(2020, 1, 1)) is Own
assert D.max > D.now() > then and (D.now() - then).days > 0
assert getattr(datetime, "datetime") is type(then)  # as libraries find it
table = {D: "time", date: "day"}
assert table[type(then)] == "time" and type(then) == D and D == type(then) and D != date and Own != D
assert {type(then): 1}[D] == 1 and pickle.loads(pickle.dumps([D, Own])) == [type(then), Own]
class Schema:
    asked = []
    def __call__(self, kind):
        self.asked.append(kind)
assert D.__get_pydantic_core_schema__(D, Schema()) is None and Schema.asked[0] is type(then)
assert datetime.datetime is type(then) and datetime.datetime.strptime("2020", "%Y").year == 2020
class Timer:
    clock = time.perf_counter
assert Timer().clock() < Timer.clock() and pickle.loads(pickle.dumps(time.time)) is time.time
logging.Formatter.converter = time.gmtime
record = logging.makeLogRecord({"created": 0.0, "msecs": 0.0})
assert logging.Formatter().formatTime(record) == "1970-01-01 00:00:00,000"
"""


# Names the class alone, as one with fields of pydantic does.
NAMED = """
import datetime, pickle
from datetime import date, datetime as D
then = D(2020, 1, 2, 3)
assert type(then) is D is datetime.datetime and type(then.date()) is date is datetime.date
assert b"copy" not in pickle.dumps([D, date, datetime.datetime])
"""


def _run(folder: Path, program: str, **variables: str) -> str:
    (folder / "program.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "-c", DRIVER], cwd=folder, env={**os.environ, **variables}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_way_to_ask_for_the_time_is_told_again(tmp_path: Path) -> None:
    first = _run(tmp_path, READS)
    assert _run(tmp_path, READS) == first
    (tmp_path / "journal").unlink()
    assert _run(tmp_path, READS) != first


def test_dates_are_those_of_python_otherwise(tmp_path: Path) -> None:
    _run(tmp_path, REST)
    _run(tmp_path, NAMED)


def test_times_that_are_made_are_the_same_in_two_runs_and_pass(tmp_path: Path) -> None:
    program = READS + "\nprint(time.time() < time.time())"
    first = _run(tmp_path, program, OVERDRIVE_SURVIVE_CLOCK="1")
    (tmp_path / "journal").unlink()
    assert _run(tmp_path, program, OVERDRIVE_SURVIVE_CLOCK="1") == first and first.endswith("True\n")


@pytest.mark.parametrize("kind", ["in a script", "in a thread"])
def test_a_clock_of_which_differences_count_runs_on_from_what_it_told(kind: str) -> None:
    """The machine was started anew, or the processor time is another process's: `time.monotonic() - last > 600`."""
    now, told = 5, [1000, 1060]

    def read(plain: Callable[[], Any], noted: Callable[[], Any]) -> Any:
        value = noted()
        return told.pop(0) if told else plain() if kind == "in a thread" else value

    clock = clocks._RunningOn(lambda: now, read, lambda: now).tell
    assert [clock(), clock()] == [1000, 1060]
    assert clock() == 1060
    now = 25
    assert clock() == 1080
    ticking = clocks._RunningOn(time.monotonic, read, time.monotonic).tell
    assert time.monotonic() <= ticking() <= time.monotonic()


LIBRARY = """
import datetime, time
from datetime import datetime as Plain
def named():
    from datetime import datetime
    return (datetime.now(),
        time.strftime("%Y"),
        time.ctime())
def bare():
    return Plain.now(), datetime.datetime.now(), time.time(), time.strftime("%Y", time.gmtime(0))
"""


def test_calendar_times_of_libraries_are_asked_for_apart(tmp_path: Path) -> None:
    """Those of which names are made. The class that a library has had from its start is the plain one: it may stand
    in a table of types."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "named_by_time.py").write_text(LIBRARY)
    program = """
import sys; sys.path.insert(0, "site-packages")
import datetime, named_by_time
print(*named_by_time.named()); now = named_by_time.bare()
assert type(now[0]) is type(now[1]) and now[0].year > 2024 and now[2] > 1.7e9 and now[3] == "1970"
assert type(datetime.datetime.now()) is named_by_time.Plain
"""
    told = _run(tmp_path, program)
    assert told.count("2001") == 3, told
    assert list(json.loads((tmp_path / "in_libraries").read_text())) == [f"named_by_time.py:{n}" for n in (6, 7, 8)]


def test_a_made_clock_goes_on_by_what_the_program_asks_alone(tmp_path: Path) -> None:
    """Libraries ask in calls that are skipped when a run is made again."""
    asks = """
import mailbox, os, time
began = time.time()
for _ in range(int(os.environ["TIMES"])):
    mailbox.mboxMessage().set_from("somebody", True)
print(time.time() - began)
"""
    told = []
    for times in ("0", "3"):
        (folder := tmp_path / times).mkdir()
        told.append(_run(folder, asks, TIMES=times, **{clocks.MADE: "1"}))
        assert bool(json.loads((folder / "in_libraries").read_text())) == (times == "3")
    assert told[0] == told[1]
