"""A search goes on with runs of the same program: its files of settings, its modules and its variables count."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from overdrive.core.metric import Metric
from overdrive.core.program import Program
from overdrive.search.conduct import SearchRequest, _chosen, _journal
from overdrive.search.domain import Wish
from overdrive.search.goal import Goal
from overdrive.search.listing import listing
from tests.warm_trials import WarmPool

pytest.importorskip("torch")

PROGRAM = """
lr = 0.1
import json, os, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "package"))
import its_own_model
with open("settings.yaml") as file:
    settings = file.read()
for name in ("named.json", "data.json"):
    with open(name) as file:
        file.read()
with open("made.yaml", "w") as file:
    file.write("of a run")
epochs = int(os.environ.get("EPOCHS", "5"))
"""


def test_a_search_goes_on_only_where_all_that_the_program_reads_is_as_it_was(
    script: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = script(PROGRAM)
    monkeypatch.chdir(path.parent)
    package = path.parent.parent / "package"
    package.mkdir()
    beside = ("settings.yaml", "named.json", "data.json", package / "its_own_model.py", "results.yaml", "made.yaml")
    for each in beside:
        Path(each).write_text("a = 1\n")
    program = Program(str(path), ("--config=named.json",))
    request = SearchRequest(program, (Wish("lr"),), Metric("Accuracy"), Goal(True), 60.0)

    def journal() -> str:
        with WarmPool() as pool:
            found = listing(pool, program)
        return _journal(request, found, _chosen(found, request.wishes, False, request.metric)[1], ()).name

    first = journal()
    for each in ("data.json", "results.yaml", "made.yaml"):  # data, and what runs write
        os.utime(each, (0, 0))
    assert journal() == first
    named = {first}
    for each in ("settings.yaml", "named.json", package / "its_own_model.py"):
        os.utime(each, (0, 0))
        named.add(journal())
    monkeypatch.setenv("EPOCHS", "50")
    named.add(journal())
    assert len(named) == 5
