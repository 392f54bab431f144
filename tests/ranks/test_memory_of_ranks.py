"""What a rank holds: as much as was foretold, and a model that one process has no memory for."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.conftest import Run
from tests.ranks.comparing import difference

HERE = Path(__file__).parent
PEAKS = Path("/proc/self/clear_refs")
TIMES = 1.8  # of the limit is what the model needs
LAYOUTS = ["zero1=2", "shard=2", "tensor=2", "pipeline=2"]
LAYOUTS_OF_FOUR = ["zero1=4", "shard=4", "tensor=4", "pipeline=4", "data=2,pipeline=2"]
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(not os.access(PEAKS, os.W_OK), reason=f"what a process holds at most is reset in {PEAKS}"),
]


@pytest.fixture(autouse=True)
def memory_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the C library, so that the peak is what is needed."""
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "65536")
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "65536")


_foretold: dict[tuple[str, int], dict[str, int]] = {}


def foretold(python: Run, name: str, ranks: int, folder: Path) -> dict[str, int]:
    """Bytes a rank, by layout. On one core, where no steps are foretold: each layout's take a quarter of a minute."""
    if (name, ranks) not in _foretold:
        file = folder / "needs.json"
        words = ("-m", "overdrive", "doctor", "--for", "--ranks", str(ranks), "--json", str(file))
        one_core = {min(os.sched_getaffinity(0))}
        told = python(
            *words, "memory_programs.py", name, cwd=HERE, preexec_fn=lambda: os.sched_setaffinity(0, one_core)
        )
        assert told.returncode == 0, told.stderr
        found = json.loads(file.read_text())["layouts"]
        _foretold[name, ranks] = {each["layout"]: each["bytes"] for each in found}
    return _foretold[name, ranks]


@pytest.mark.parametrize("name", ["mlp", "gpt"])
@pytest.mark.parametrize("layout", LAYOUTS + LAYOUTS_OF_FOUR)
def test_what_a_rank_holds_is_what_was_foretold(
    name: str, layout: str, python: Run, overdrive: Run, tmp_path: Path
) -> None:
    ranks = 4 if layout in LAYOUTS_OF_FOUR else 2
    expected = foretold(python, name, ranks, tmp_path)[layout]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        told.bind(f"\0overdrive-test-{os.getpid()}")
        told.settimeout(1)
        words = ("memory_programs.py", name, "warm", f"at=overdrive-test-{os.getpid()}")
        many = overdrive("run", "--ranks", str(ranks), "--layout", layout, *words, cwd=HERE, timeout=900)
        assert many.returncode == 0, many.stderr
        held = [int(told.recv(64)) for _ in range(ranks)]
    print(f"{name} {layout}: {[each / 1e6 for each in held]} MB, foretold {expected / 1e6}")
    assert max(held) == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("hooked", [[], ["hooked"]])
def test_a_model_that_needs_1_8_times_a_limit_runs_on_two_ranks(hooked: list[str], python: Run, overdrive: Run) -> None:
    """Its call is divided, for which it is tried without memory for it in fp64; and where it carries hooks, whole."""
    words = ("memory_programs.py", "mlp", "warm", *hooked)
    needs = int(python(*words, cwd=HERE).stdout)
    limit = f"limit={round(needs / TIMES)}"
    one = python(*words, limit, cwd=HERE)
    assert one.returncode == 1 and "can't allocate memory" in one.stderr, one
    many = overdrive("run", "--ranks", "2", "--layout", "shard=2", *words, limit, cwd=HERE)
    assert many.returncode == 0 and ("called whole" in many.stderr) == bool(hooked), many.stderr
    free = python(*words, "limit=0", cwd=HERE)
    assert free.stdout.count("loss") == 10 and not difference(free.stdout, many.stdout, 1e-5)
