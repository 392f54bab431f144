"""What the kernels take of a GPU, as `benchmarks/kernels.py` has compiled them: today's source, and nothing spilled."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

from overdrive.kernels.cross_entropy.operator import tile
from tests.conftest import ROOT
from tests.kernels.cross_entropy import errors

sys.path.insert(0, str(ROOT / "benchmarks"))
import kernels

RESULTS = json.loads(kernels.TARGET.read_text())
AGAIN = "after a change of the kernel: benchmarks/kernels.py"


def test_the_table_is_of_todays_source() -> None:
    assert RESULTS["source"] == kernels.source_hash(), AGAIN
    for row in RESULTS["rows"]:
        assert row["warps"] == tile(row["columns"]).warps, AGAIN


def test_it_has_both_kernels_for_all_shapes_types_and_gpus() -> None:
    keys = ("kernel", "capability", "columns", "type", "options")
    found = {tuple(row[key] for key in keys) for row in RESULTS["rows"]}
    assert len(found) == len(RESULTS["rows"]) == 2 * 3 * 4 * 2 * 2


def test_nothing_is_spilled_and_there_is_room_for_half_of_all_warps() -> None:
    for row in RESULTS["rows"]:
        assert row["spilled"] == 0, row
        assert row["occupancy"] >= (0.375 if row["options"] else 0.5), row


@pytest.mark.parametrize(
    ("registers", "shared", "warps", "blocks"),
    [(32, 0, 4, 16), (64, 0, 8, 4), (65, 0, 8, 3), (128, 0, 4, 4), (32, 100 << 10, 8, 1), (255, 0, 8, 1)],
)
def test_occupancy_by_hand(registers: int, shared: int, warps: int, blocks: int) -> None:
    assert kernels.blocks_at_once(registers, shared, warps, 80) == blocks


def test_the_page_has_this_table() -> None:
    assert kernels.table(RESULTS) in (ROOT / "docs" / "kernels.md").read_text(encoding="utf-8"), "--table prints it"


def test_the_errors_of_ten_thousand_calls_are_of_todays_source_and_no_larger_than_torchs() -> None:
    """They are found again by `make test-kernels`."""
    found = json.loads(errors.TARGET.read_text())
    assert found["source"] == kernels.source_hash(), "after a change: tests/kernels/cross_entropy/errors.py"
    assert found["calls"] == 10_000 and not found["worse"] and len(found["errors"]) == 6
    for each in found["errors"].values():
        assert each["rms"][0] <= each["rms"][1] and each["largest"][0] <= each["largest"][1]
    assert errors.table(found) in (ROOT / "docs" / "kernels.md").read_text(encoding="utf-8")


@pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton: make test-kernels")
@pytest.mark.parametrize("capability", kernels.SHARED)
def test_what_the_operator_launches_compiles(capability: int) -> None:
    """By the way that a launch takes on a GPU, up to the launch; and without a warning."""
    given = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    words = (sys.executable, "-W", "error::UserWarning", "-m", "tests.kernels.cross_entropy.launched", str(capability))
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, env=given)
    assert done.returncode == 0 and done.stdout.split() == ["36"], done.stderr
