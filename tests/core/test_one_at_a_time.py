"""What one process does at a time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from overdrive.core.one_at_a_time import one_at_a_time

HOLDS = """
import sys, time
from pathlib import Path
from overdrive.core.one_at_a_time import one_at_a_time
with one_at_a_time(Path(sys.argv[1]), "work") as other:
    print(other or "mine", flush=True)
    time.sleep(60)
"""


@pytest.mark.fault(15)
def test_who_comes_second_is_told_who_is_at_it_until_that_is_gone(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDS, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "mine\n"
            with one_at_a_time(tmp_path, "work") as other:
                assert other == f"process {process.pid}"
            with one_at_a_time(tmp_path, "other work") as other:
                assert other == ""
        finally:
            process.send_signal(signal.SIGKILL)
    with one_at_a_time(tmp_path, "work") as other:
        assert other == ""
        with one_at_a_time(tmp_path, "work") as again:
            assert again == f"process {os.getpid()}"
    with pytest.raises(KeyboardInterrupt), one_at_a_time(tmp_path, "work"):
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_where_there_is_no_place_for_a_lock_nobody_is_seen(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", Path("/proc/1/nowhere")):
        with one_at_a_time(folder, "work") as other, one_at_a_time(folder, "work") as again:
            assert (other, again) == ("", "")
