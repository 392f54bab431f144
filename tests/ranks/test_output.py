"""What ranks above 0 leave behind."""

from __future__ import annotations

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


@pytest.mark.parametrize("told", [(), ("told",)], ids=["ended well", "its place was told"])
def test_a_rank_that_a_launcher_has_started_leaves_what_people_were_told_of(
    told: tuple[str, ...], python: Run, tmp_path: Path
) -> None:
    assert python("-c", RANK, *told, cwd=tmp_path).returncode == 0
    left = [path.name for path in tmp_path.glob("overdrive-ranks-*/*")]
    assert left == (["rank1.log"] if told else [])
    assert len(list(tmp_path.iterdir())) == len(told)
