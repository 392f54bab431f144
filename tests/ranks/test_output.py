"""What ranks above 0 leave behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Run

RANK = """
import os, sys, tempfile
from types import SimpleNamespace
from overdrive.ranks.output import RankOutput
tempfile.tempdir = os.getcwd()
output = RankOutput(SimpleNamespace(rank=1), apart=True)
(output.scratch / "checkpoint.pt").write_text("numbers")
if not os.fork():
    sys.exit()
os.wait()
assert output.scratch.exists()
print("a line")
if "told" in sys.argv:
    output.keep()
"""


FULL = """
import os, sys, tempfile
from types import SimpleNamespace
from overdrive.ranks.output import RankOutput
tempfile.tempdir = os.getcwd()
output = RankOutput(SimpleNamespace(rank=1), apart=True)
print("kept", flush=True)
output.keep()
full = os.open("/dev/full", os.O_WRONLY)
for number in (1, 2):
    os.dup2(full, number)
print("lost" * 10_000, flush=True)
print("lost, too", file=sys.stderr)
sys.__stdout__.write("and at the end")
"""


@pytest.mark.parametrize("flags", [(), ("-u",)], ids=["buffered", "unbuffered"])
def test_a_full_disk_for_what_a_rank_prints_is_told_once_and_is_no_error(
    flags: tuple[str, ...], python: Run, tmp_path: Path
) -> None:
    done = python(*flags, "-c", FULL, cwd=tmp_path)
    (log,) = tmp_path.glob("overdrive-ranks-*/rank1.log")
    assert done.returncode == 0 and log.read_text() == "kept\n", done.stderr
    assert done.stderr == f"overdrive: rank 1 prints what is not kept any more, in {log}: No space left on device\n"


CLOSED = """
import os, sys, tempfile
from types import SimpleNamespace
from overdrive.ranks.output import RankOutput
tempfile.tempdir = os.getcwd()
output = RankOutput(SimpleNamespace(rank=1), apart=True)
output.say("a sentence")
output.keep()
print("printed")
for number, stream in ((1, sys.stdout), (2, sys.stderr)):
    if stream is None:
        os.write(number, b"by its number\\n")
"""


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_a_rank_whose_output_was_closed_prints_nothing_as_one_process(closed: str, tmp_path: Path) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", f'exec "$0" -c "$1" {closed}', sys.executable, CLOSED],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    (log,) = tmp_path.glob("overdrive-ranks-*/rank1.log")
    count = closed.count(">")
    printed = "" if closed != "2>&-" else "printed\n"
    assert done.returncode == 0 and sorted(log.read_text().splitlines(True)) == sorted(
        [*["by its number\n"] * count, *([printed] if printed else [])]
    ), done.stderr
    assert done.stderr == ("" if "2>" in closed else "overdrive: a sentence\n")


@pytest.mark.parametrize("told", [(), ("told",)], ids=["ended well", "its place was told"])
def test_a_rank_that_a_launcher_has_started_leaves_what_people_were_told_of(
    told: tuple[str, ...], python: Run, tmp_path: Path
) -> None:
    assert python("-c", RANK, *told, cwd=tmp_path).returncode == 0
    left = [path.name for path in tmp_path.glob("overdrive-ranks-*/*")]
    assert left == (["rank1.log"] if told else [])
    assert len(list(tmp_path.iterdir())) == len(told)
