"""Threads, cores and pages: each technique does what its card says, where the system has it, and leaves no trace."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from overdrive.core.facts import Facts, LoaderFacts
from overdrive.machine.numa import allowed_cores, nodes, one_a_core
from overdrive.techniques.catalogue import catalogue, environment_for
from overdrive.techniques.host import affinity, hugepages, threads
from overdrive.worker.session import Session

CPU = Facts(cores=8, threads=8)
needs_two_cores = pytest.mark.skipif(len(allowed_cores()) < 2, reason="needs two cores that it may choose from")


def machine(root: Path, by_node: dict[int, str], siblings: dict[int, str]) -> Path:
    """A sysfs of a machine with these nodes and hyper-threads."""
    for number, cores in by_node.items():
        place = root / f"sys/devices/system/node/node{number}"
        place.mkdir(parents=True)
        (place / "cpulist").write_text(cores + "\n")
    for core, text in siblings.items():
        place = root / f"sys/devices/system/cpu/cpu{core}/topology"
        place.mkdir(parents=True)
        (place / "thread_siblings_list").write_text(text + "\n")
    return root


def test_cores_are_told_by_node_and_by_physical_core(tmp_path: Path) -> None:
    root = machine(tmp_path, {0: "0-2,8-10", 1: "3-5,11"}, {0: "0,8", 8: "0,8", 1: "1,9", 9: "1,9"})
    allowed = frozenset({0, 1, 3, 8, 9})
    assert nodes(root, allowed) == [{0, 1, 8, 9}, {3}]
    assert one_a_core(frozenset({0, 1, 8, 9}), root) == {0, 1}
    assert nodes(tmp_path / "nothing", allowed) == [allowed]


class WhereItRuns(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(sorted(os.sched_getaffinity(0)))


def one_of_two(monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """This process' first two cores as if each were a memory node of its own."""
    first, second = sorted(allowed_cores())[:2]
    monkeypatch.setattr(affinity, "nodes", lambda: [frozenset({first}), frozenset({second})])
    return first, second


@needs_two_cores
def test_cores_that_the_program_chooses_later_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    before = allowed_cores()
    first, _ = one_of_two(monkeypatch)
    try:
        with Session([("affinity", {"node": 1})]):
            os.sched_setaffinity(0, {first})
            batch = next(iter(DataLoader(WhereItRuns(), batch_size=2, num_workers=1)))
            assert allowed_cores() == {first} == set(batch.flatten().tolist())
        assert allowed_cores() == {first}  # in a notebook the program goes on
    finally:
        os.sched_setaffinity(0, before)


@needs_two_cores
def test_the_process_stays_on_its_node_and_workers_on_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    before = allowed_cores()
    first, second = one_of_two(monkeypatch)
    with Session([("affinity", {"node": 1})]) as session:
        assert allowed_cores() == {second}
        threads = [os.sched_getaffinity(int(each)) for each in os.listdir("/proc/self/task")]
        assert all(each == {second} for each in threads)
        batch = next(iter(DataLoader(WhereItRuns(), batch_size=2, num_workers=1)))
        assert set(batch.flatten().tolist()) == before - {second} and first in before - {second}
        assert allowed_cores() == {second} and not session.seams.left_out
        assert next(iter(DataLoader(WhereItRuns(), batch_size=2))).flatten().tolist() == [second, second]
    assert allowed_cores() == before


@needs_two_cores
def test_each_process_of_a_job_takes_a_node_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    one_of_two(monkeypatch)
    second = sorted(allowed_cores())[1]
    monkeypatch.setenv("LOCAL_RANK", "3")
    with Session([("affinity", {"node": 0})]):
        assert allowed_cores() == {second}


def test_affinity_is_left_out_where_there_is_nothing_to_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(affinity, "nodes", lambda: [allowed_cores()])
    monkeypatch.setattr(affinity, "one_a_core", lambda cores: cores)
    assert "nothing to choose" in (catalogue()["affinity"].applies(CPU) or "")
    for settings, reason in (({"node": 0}, "these cores only"), ({"node": 5}, "no memory node 5")):
        with Session([("affinity", settings)]) as session:
            assert reason in session.seams.left_out["affinity"]


def test_affinity_offers_each_node_and_one_thread_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(affinity, "nodes", lambda: [frozenset({0, 1, 4, 5}), frozenset({2, 3, 6, 7})])
    monkeypatch.setattr(affinity, "one_a_core", lambda cores: frozenset(each for each in cores if each < 4))
    assert catalogue()["affinity"].applies(CPU) is None
    assert catalogue()["affinity"].candidates(CPU) == [
        {"node": 0, "hyper_threads": True},
        {"node": 0, "hyper_threads": False},
        {"node": 1, "hyper_threads": True},
    ]


def test_as_many_threads_as_physical_cores_are_tried_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "one_a_core", lambda cores: frozenset(range(4)))
    assert [each["count"] for each in catalogue()["threads"].candidates(CPU)] == [4, 2, 1]  # eight are there already
    monkeypatch.setattr(threads, "one_a_core", lambda cores: frozenset())
    assert [each["count"] for each in catalogue()["threads"].candidates(CPU)] == [4, 1]


@pytest.mark.parametrize("own", [None, 3])
def test_a_number_of_threads_that_the_program_sets_stays_when_a_session_ends(own: int | None) -> None:
    number = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with Session([("threads", {"count": 1})]):
            assert torch.get_num_threads() == 1
            if own is not None:
                torch.set_num_threads(own)
        assert torch.get_num_threads() == (own or 2)
    finally:
        torch.set_num_threads(number)


HUGE = """
import torch
from overdrive.worker.session import Session
with Session([("hugepages", {"through": "THROUGH"})]) as session:
    kept = [torch.ones(8 << 20) for _ in range(2)]
rollup = open("/proc/self/smaps_rollup").read()
print(session.seams.left_out, next(int(line.split()[1]) for line in rollup.splitlines() if "AnonHuge" in line))
"""


@pytest.mark.parametrize("through", ["glibc", "torch"])
@pytest.mark.skipif(hugepages._kernel_says() is not None, reason="the kernel gives no huge pages on request")
def test_tensors_lie_on_huge_pages_only_with_the_technique(through: str) -> None:
    kib = {}
    for name, chosen in (("plain", []), ("huge", [("hugepages", {"through": through})])):
        environment = {**os.environ, **environment_for(chosen)}
        told = subprocess.run(
            [sys.executable, "-c", HUGE.replace("THROUGH", through)], env=environment, capture_output=True, text=True
        ).stdout
        assert ("before the process starts" in told) is (name == "plain")
        kib[name] = int(told.split()[-1])
    assert kib["plain"] < 16 << 10 < kib["huge"]  # of 64 MiB


def test_huge_pages_are_left_to_the_user_and_the_kernel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    technique = catalogue()["hugepages"]
    monkeypatch.setattr(hugepages, "_has_tunable", lambda: True)
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.check=0")
    wanted = technique.environment({"through": "glibc"})
    assert wanted == {"GLIBC_TUNABLES": "glibc.malloc.check=0:glibc.malloc.hugetlb=1"}
    monkeypatch.setenv(*wanted.popitem())
    assert technique.environment({"through": "glibc"}) == {"GLIBC_TUNABLES": os.environ["GLIBC_TUNABLES"]}
    assert technique.candidates(CPU) == [{"through": "torch"}]
    modes = tmp_path / "enabled"
    monkeypatch.setattr(hugepages, "_MODE", modes)
    for text, reason in (
        ("always madvise [never]", "switched off"),
        ("[always] madvise never", "already"),
        ("always [madvise] never", None),
    ):
        modes.write_text(text)
        told = technique.applies(CPU)
        assert (told is None) if reason is None else (told is not None and reason in told)
    modes.unlink()
    assert "no transparent huge pages" in (technique.applies(CPU) or "")


def test_waiting_threads_obey_the_policy(tmp_path: Path) -> None:
    technique = catalogue()["waiting"]
    environment = {**os.environ, **technique.environment({"policy": "passive"}), "OMP_DISPLAY_ENV": "verbose"}
    done = subprocess.run([sys.executable, "-c", "import torch"], env=environment, capture_output=True, text=True)
    assert "OMP_WAIT_POLICY = 'PASSIVE'" in done.stderr and "GOMP_SPINCOUNT = '0'" in done.stderr
    assert technique.applies(Facts(threads=1)) and technique.applies(CPU) is None
    with_workers = Facts(threads=8, loaders=(LoaderFacts(32, 2, True, 1000, 0.01),))
    assert technique.candidates(CPU)[0] != technique.candidates(with_workers)[0]


INTEROP = """
import torch
from overdrive.worker.session import Session
before = torch.get_num_interop_threads()
seen = []
for count in (before + 3, before + 3, before + 4):
    with Session([("interop", {"count": count})]) as session:
        seen.append((torch.get_num_interop_threads() - before, sorted(session.seams.left_out)))
print(seen)
"""


def test_interop_threads_are_set_once_in_a_process() -> None:
    told = subprocess.run([sys.executable, "-c", INTEROP], capture_output=True, text=True)
    assert told.stdout.strip() == "[(3, []), (3, []), (3, ['interop'])]", told.stderr


def test_interop_is_for_scripted_models_alone(monkeypatch: Any) -> None:
    technique = catalogue()["interop"]
    assert technique.applies(Facts(own={"interop": {"scripted": False}})) and technique.applies(CPU) is None
