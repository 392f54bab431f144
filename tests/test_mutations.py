"""Whatever is read back from a disk, with random changes: read or refused in one sentence, never run."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from overdrive.cli.report import CannotReport, result_in
from overdrive.core.ledger import Ledger
from overdrive.core.plan import Plan, PlanError
from overdrive.report.html import page
from overdrive.survive import snapshot
from overdrive.survive.journal import Damaged, Journal
from tests.core.plan.test_plan import CATALOGUE, FULL
from tests.mutations import mutations
from tests.report.sample import result

pytest.importorskip("torch")

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1800)]
COUNT = 10_000


def some(count: int) -> pytest.MarkDecorator:
    """So many changes in `make test-long`; COUNT in `make test-faults`."""
    return pytest.mark.parametrize("count", [pytest.param(count, marks=pytest.mark.long), COUNT])


@pytest.fixture(autouse=True)
def nothing_is_run() -> Any:
    """Fails where what is read starts a program, imports by name or unpickles."""
    seen: list[str] = []
    listening = True

    def hear(event: str, args: tuple[Any, ...]) -> None:
        if listening and event in ("subprocess.Popen", "os.system", "os.exec", "pickle.find_class", "os.posix_spawn"):
            seen.append(event)

    sys.addaudithook(hear)
    yield
    listening = False
    assert not seen


@some(2000)
@pytest.mark.fault(24, "changed", "more-changes")
def test_plans(tmp_path: Path, count: int) -> None:
    path, refused = tmp_path / "plan.toml", 0
    for data in mutations(FULL.dumps().encode(), count, seed=11):
        path.write_bytes(data)
        try:
            Plan.read(path, CATALOGUE)
        except PlanError as error:
            refused += 1
            assert "\n" not in str(error)
    assert refused > count / 2


@some(3000)
@pytest.mark.fault(12, "changed", "more-changes")
def test_snapshots(tmp_path: Path, count: int) -> None:
    path = snapshot.path_of(tmp_path, 1)
    snapshot.write(path, {"step": 1, "facts": [1.5, "a"]}, [np.arange(500, dtype=np.uint8)])
    whole = path.read_bytes()
    for data in mutations(whole, count, seed=12):
        path.write_bytes(data)
        try:
            snapshot.read(path)
        except Damaged as error:
            assert data != whole and "\n" not in str(error)
        else:
            assert data == whole


@pytest.mark.fault("more-changes")
def test_journals(tmp_path: Path) -> None:
    written = Journal(tmp_path / "journal")
    for step in range(40):
        written.add("value", step, step / 3, [step, "text"])
    length, digest = written.flush()
    whole = (tmp_path / "journal").read_bytes()
    for data in mutations(whole, COUNT, seed=13):
        (tmp_path / "journal").write_bytes(data)
        again = Journal(tmp_path / "journal")
        try:
            again.read(length, digest)
        except Damaged as error:
            assert data[:length] != whole and "\n" not in str(error)
        else:
            assert data[:length] == whole and len(again.to_come) == 40


@some(300)
@pytest.mark.fault(14, "changed", "more-changes")
def test_ledgers(tmp_path: Path, count: int) -> None:
    path = tmp_path / "own" / "ledger.sqlite"
    rows = {f"row {row}": {"row": row, "text": "x" * 50} for row in range(50)}
    with Ledger.open(path) as ledger:
        for name, row in rows.items():
            ledger.remember("tune", "duel", name, row)
    whole = path.read_bytes()
    for data in mutations(whole, count, seed=14):
        for leftover in path.parent.iterdir():
            leftover.unlink()
        path.write_bytes(data)
        with Ledger.open(path) as ledger:
            recalled = ledger.recall("tune", "duel")
            assert recalled.items() <= rows.items() and (len(recalled) == len(rows) or ledger.notice)
            ledger.remember("another", "duel", "a", {"value": 2})
            assert ledger.recall("another", "duel") == {"a": {"value": 2}}


@pytest.mark.fault("more-changes")
def test_results_and_reports(tmp_path: Path) -> None:
    """What `tune --json` wrote, read for the terminal and as a page."""
    path = tmp_path / "tune.json"
    for number, data in enumerate(mutations(json.dumps(result()).encode(), COUNT, seed=15)):
        path.write_bytes(data)
        try:
            found = result_in(path)
        except CannotReport as error:
            assert "\n" not in str(error)
        else:
            if number % 100 == 0:
                assert "<script>alert" not in page(found)


@pytest.fixture(params=[False, True], ids=["cache", "shard"])
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Callable[[], Any], Path, Any]:
    """How a table is opened that a run has kept, or that `overdrive pack` has written; its place, and its samples."""
    import torch

    from overdrive.datacache.store import Store
    from overdrive.forks.layout import layout_of

    batch = {"x": torch.arange(60, dtype=torch.float32).reshape(10, 6), "y": torch.arange(10)}
    store = Store(tmp_path / "samples")
    partial = store.partial("key", layout_of(batch), 10)
    assert partial is not None and partial.table.write(np.arange(10), batch) and partial.finish([], 1.0)
    packed = Store(tmp_path / "samples", packed=request.param)
    return lambda: packed.open("key"), tmp_path / "samples" / "key", batch


@pytest.mark.fault("more-changes")
def test_tables_of_samples(stored: tuple[Callable[[], Any], Path, Any], tmp_path: Path) -> None:
    import torch

    opened, place, batch = stored
    shutil.copytree(place, tmp_path / "whole")
    names = sorted(file.name for file in place.iterdir())
    for name in names:
        whole = (tmp_path / "whole" / name).read_bytes()
        for data in mutations(whole, COUNT // len(names) + 1, seed=16):
            if not place.exists():
                shutil.copytree(tmp_path / "whole", place)
            (place / name).write_bytes(data)
            table = opened()
            if table is not None:
                found = table.gather(np.arange(10))
                assert torch.equal(found["x"], batch["x"]) and torch.equal(found["y"], batch["y"]), name
                del table, found
            if place.exists():
                (place / name).write_bytes(whole)
    assert not [file for file in tmp_path.iterdir() if file.name not in ("samples", "whole")]


@pytest.mark.fault("more-changes")
def test_journals_of_searches(tmp_path: Path) -> None:
    """Optuna's journal is read by Optuna: what it says of a damaged one is told in one sentence."""
    pytest.importorskip("optuna")
    from overdrive.search.engine import Damaged as DamagedSearch
    from overdrive.search.engine import Engine
    from tests.search.simulated import PARAMETERS, Simulated, domain_of, searched

    program = Simulated(lambda values, chance: 90 + float(values["lr"]), 0)
    searched(program, tmp_path / "journal", budget=12.0)
    whole = (tmp_path / "journal").read_bytes()
    domains = {each.name: domain_of(each) for each in PARAMETERS}
    damaged = 0
    for data in mutations(whole, COUNT // 10, seed=17):
        (tmp_path / "journal").write_bytes(data)
        try:
            Engine(tmp_path / "journal", domains, 0).close()
        except DamagedSearch as error:
            damaged += 1
            assert "\n" not in str(error)
    assert damaged > COUNT / 50


@pytest.mark.fault("more-changes")
def test_pages_of_searches_are_inert(tmp_path: Path) -> None:
    from rich.console import Console

    from overdrive.cli.report_search import is_search, shown
    from tests.report.test_search import result as searched

    pages = 0
    for data in mutations(searched().dumps().encode(), COUNT // 10, seed=19):
        try:
            told = json.loads(data)
            if not is_search(told):
                continue
            html, _ = shown(told, Console())
        except (ValueError, RecursionError):  # no JSON, or not what a search writes, which is told
            continue
        pages += 1
        assert "<script>alert" not in html
    assert pages > COUNT / 200
