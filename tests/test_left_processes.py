"""What is left by tests is found, whoever's child it is by then; what comes to its end by itself is not."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests import left_processes

LEAVES = """
import subprocess, sys
words = [sys.executable, "-c", "import time; time.sleep(SECONDS)", "overdrive"]
print(subprocess.Popen(words, stdout=subprocess.DEVNULL).pid)
"""


@pytest.mark.parametrize(("seconds", "patience"), [("600", 0.0), ("1", 30.0)], ids=["it stays", "it ends"])
def test_an_orphan_is_found_once_it_has_had_its_time(
    seconds: str, patience: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(left_processes.STARTED_BY, "to be as before after this")
    mark = left_processes.begin()
    process = subprocess.run(
        [sys.executable, "-c", LEAVES.replace("SECONDS", seconds)], stdout=subprocess.PIPE, text=True
    ).stdout.strip()
    found = left_processes.left(mark, patience)
    assert [each.partition(":")[0] for each in found] == ([process] if seconds == "600" else [])
    assert left_processes.left(mark, 30.0) == []
    assert left_processes.left("another session", 0.0) == []
