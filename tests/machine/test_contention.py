"""How long processes wait for a core: from recorded files, from none, and from a crowded core."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from overdrive.machine.contention import Load, LoadWatch

SPIN = "while True: pass"


def machine(root: Path, ran: float, waited: float, busy: float, throttled: float = 0.0, stolen: float = 0.0) -> None:
    """Files of a process 7 with a child 8, whose threads ran and waited so many seconds each."""
    for pid, children in ((7, "8 "), (8, "")):
        for thread in (pid, pid + 10):
            folder = root / f"proc/{pid}/task/{thread}"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "schedstat").write_text(f"{int(ran * 1e9)} {int(waited * 1e9)} 12\n")
            (folder / "children").write_text(children if thread == pid else "")
    a_second = os.sysconf("SC_CLK_TCK")
    columns = [busy * a_second, 0, 0, 999_999, 5, 0, 0, stolen * a_second, 0, 0]
    (root / "proc/stat").write_text("cpu  " + " ".join(str(int(each)) for each in columns) + "\ncpu0 1 2 3\n")
    (root / "proc/self").mkdir(exist_ok=True)
    (root / "proc/self/cgroup").write_text("0::/\n")
    group = root / "sys/fs/cgroup"
    group.mkdir(parents=True, exist_ok=True)
    (group / "cpu.stat").write_text(f"usage_usec 5\nnr_throttled 1\nthrottled_usec {int(throttled * 1e6)}\n")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_all_threads_of_all_children_are_added_up(tmp_path: Path, clock: list[float]) -> None:
    machine(tmp_path, 1.0, 1.0, 100.0)
    watch = LoadWatch([7], tmp_path)
    before = watch.read()
    clock[0] = 2.0
    machine(tmp_path, 1.25, 1.1, 104.0)
    load = watch.since(before)
    assert load.waited == pytest.approx(4 * 0.1 / 2) and load.others == pytest.approx((4 - 4 * 0.25) / 2, abs=0.01)


def test_a_tick_more_or_less_of_every_core_is_nobody_s(tmp_path: Path, clock: list[float]) -> None:
    machine(tmp_path, 1.0, 1.0, 100.0)
    watch = LoadWatch([7], tmp_path)
    before = watch.read()
    clock[0] = 0.1
    machine(tmp_path, 1.4, 1.0, 101.63)  # sixteen cores, all of them its own
    assert watch.since(before).others == 0.0


@pytest.mark.fault(22)
def test_throttling_and_what_the_host_takes_count_as_waiting(tmp_path: Path, clock: list[float]) -> None:
    machine(tmp_path, 1.0, 1.0, 100.0)
    watch = LoadWatch([7], tmp_path)
    before = watch.read()
    clock[0] = 1.0
    machine(tmp_path, 1.1, 1.01, 100.4, throttled=0.3, stolen=0.2)
    load = watch.since(before)
    assert load.waited == pytest.approx(0.3 + 0.2) and load.others == pytest.approx(0.0, abs=1e-9)


def test_where_files_are_missing_nothing_is_told(tmp_path: Path, clock: list[float]) -> None:
    watch = LoadWatch([7], tmp_path)
    before = watch.read()
    clock[0] = 1.0
    assert watch.since(before) == Load(None, None)
    machine(tmp_path, 1.0, 1.0, 100.0)
    (tmp_path / "proc/stat").unlink()
    before = watch.read()
    clock[0] = 2.0
    assert watch.since(before) == Load(0.0, None)


def test_a_process_that_is_over_is_no_error() -> None:
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    watch = LoadWatch([process.pid])
    before = watch.read()
    process.wait()
    assert watch.since(before).waited in (None, pytest.approx(0.0, abs=0.5))


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this kernel keeps no scheduler statistics")
@pytest.mark.fault(21)
def test_two_that_share_a_core_wait_for_each_other() -> None:
    core = min(os.sched_getaffinity(0))
    spinners = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(2)]
    try:
        for each in spinners:
            os.sched_setaffinity(each.pid, {core})
        watch = LoadWatch([spinners[0].pid])
        before = watch.read()
        time.sleep(0.5)
        load = watch.since(before)
    finally:
        for each in spinners:
            each.kill()
            each.wait()
    assert load.waited is not None and load.waited > 0.1
    assert load.others is None or load.others > 0.1
