"""What goes between ranks: fits, bandwidths, what a host tells, what the command refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from overdrive.cli.pool import examine
from overdrive.core.json_data import to_json
from overdrive.core.link import Link
from overdrive.insight.requirements.ranks import CannotForetell, ranks_of
from overdrive.machine.acs import redirecting_bridges
from overdrive.machine.pool.curve import BUS, ByMemory, Measured, OverLink, fit, points_of
from overdrive.machine.pool.link import link
from overdrive.machine.pool.reading import interfaces
from tests.conftest import Run
from tests.machine.pools import host

SIZES = [1 << power for power in range(10, 28, 2)]


def test_a_fit_finds_latency_and_bandwidth_again() -> None:
    found = fit({size: 20e-6 + size / 5e9 for size in SIZES})
    assert found.latency_seconds == pytest.approx(20e-6) and found.bytes_per_second == pytest.approx(5e9)
    assert found.worst_error == pytest.approx(0, abs=1e-9)


def test_a_fit_has_no_negative_latency_and_no_negative_slope() -> None:
    assert fit({1000: 1e-6, 4000: 8e-6, 16000: 64e-6}).latency_seconds == 0
    assert fit({1000: 3e-6, 4000: 2e-6, 16000: 1e-6}).bytes_per_second is None


@pytest.mark.parametrize(
    ("operation", "factor"), [("all_reduce", 1.5), ("all_gather", 0.75), ("reduce_scatter", 0.75), ("broadcast", 1)]
)
def test_bus_bandwidth_is_that_of_nccl_tests(operation: str, factor: float) -> None:
    (row,) = points_of(operation, 4, {1 << 20: 1e-3})
    assert row.algorithm_bytes_per_second == (1 << 20) / 1e-3
    assert row.bus_bytes_per_second == pytest.approx(factor * (1 << 20) / 1e-3)


def test_the_share_of_a_link_is_that_of_the_slowest_host() -> None:
    ib = link([host("a"), host("b")], "nccl", 70e9)
    assert ib and ib["gigabits_per_second"] == 800 and ib["share"] == pytest.approx(0.7)
    told = [host("a"), host("b", environment={"NCCL_IB_DISABLE": "1"})]
    sockets = link(told, "nccl", 2.5e9)
    assert sockets and sockets["what"] == "ens3 of b" and sockets["share"] == pytest.approx(0.8)
    assert (
        link([host("a"), host("a")], "nccl", 1e9) is None
        and link([host("a"), host("b", interface="")], "gloo", 1) is None
    )


def test_interfaces_as_the_kernel_tells_them(tmp_path: Path) -> None:
    for name, files in {
        "eth0": {"mtu": "9000", "speed": "100000", "operstate": "up", "device/vendor": "x"},
        "lo": {"mtu": "65536", "operstate": "unknown"},
        "eth1": {"mtu": "1500", "speed": "-1", "operstate": "down", "device/vendor": "x"},
        "bond0": {"mtu": "9000", "speed": "50000", "operstate": "up", "lower_eno1": ""},
        "eno1": {"mtu": "9000", "speed": "25000", "operstate": "up", "device/vendor": "x", "master": ""},
    }.items():
        for file, told in files.items():
            path = tmp_path / "sys/class/net" / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(told + "\n")
    assert interfaces(tmp_path) == [
        {"name": "bond0", "mtu": 9000, "gigabits_per_second": 50.0, "device": True},
        {"name": "eth0", "mtu": 9000, "gigabits_per_second": 100.0, "device": True},
        {"name": "lo", "mtu": 65536, "device": False},
    ]


def config(control: int) -> bytes:
    """A bridge's, with another capability before that of ACS."""
    space = bytearray(4096)
    space[0x100:0x104] = (0x0001 | 1 << 16 | 0x148 << 20).to_bytes(4, "little")
    space[0x148:0x14C] = (0x000D | 1 << 16).to_bytes(4, "little")
    space[0x14E:0x150] = control.to_bytes(2, "little")
    return bytes(space)


def test_bridges_that_send_all_to_the_processor(tmp_path: Path) -> None:
    for name, kind, space in (
        ("0000:01:00.0", "0x060400", config(0x1D)),
        ("0000:02:00.0", "0x060400", config(0)),
        ("0000:03:00.0", "0x030200", config(0x1D)),
    ):
        place = tmp_path / "sys/bus/pci/devices" / name
        place.mkdir(parents=True)
        (place / "class").write_text(kind + "\n")
        (place / "config").write_bytes(space)
    assert redirecting_bridges(tmp_path) == ["0000:01:00.0"]
    for each in tmp_path.rglob("config"):
        each.write_bytes(each.read_bytes()[:64])  # what others than root may read
    assert redirecting_bridges(tmp_path) is None


def test_what_does_not_go_together_is_said(overdrive: Run, tmp_path: Path) -> None:
    for words, said in (
        (("--pool", "train.py"), "run it alone"),
        (("--ranks", "2"), "--ranks is for --pool"),
        (("--pool", "--link", "10Gbit,50us"), "run it alone"),
        (("--for", "--link", "10Gbit,50us", "train.py"), "--link is what connects --ranks, with --for SCRIPT"),
        (("--for", "--ranks", "2", "--link", "10Gbit", "train.py"), "'10Gbit' names no latency"),
    ):
        told = overdrive("doctor", *words, cwd=tmp_path)
        assert told.returncode == 2 and said in told.stderr


def test_rings_over_a_link() -> None:
    """Of 4 ranks, 1 GB at 1 GB/s: 6 messages of a quarter each for the sum, 3 for what is put together."""
    link = OverLink(Link(1e9, 0.01, ""))
    assert link.seconds("all_reduce", 10**9, 4) == pytest.approx(6 * 0.01 + 1.5)
    assert link.seconds("all_gather", 10**9, 4) == pytest.approx(3 * 0.01 + 0.75)
    assert link.seconds("point_to_point", 10**9, 2) == pytest.approx(0.01 + 1.0)
    assert link.busy == 0


def test_by_memory_what_is_gathered_is_copied_and_what_is_summed_is_read() -> None:
    """1 GB at 1 GB/s, 0.1 s an exchange: two ranks read each other's sum at once, more of them in two steps."""
    others = Measured(4, {"broadcast": {1000: 2.0, 2000: 3.0}}, busy=0.5)
    memory = ByMemory(others, 0.1, 1e9)
    assert memory.seconds("all_gather", 10**9, 4) == pytest.approx(0.1 + 1.25)
    assert memory.seconds("all_reduce", 10**9, 2) == pytest.approx(0.2 + 1.0)
    assert memory.seconds("all_reduce", 10**9, 4) == pytest.approx(0.3 + 2.0)
    assert memory.seconds("broadcast", 1000, 4) == 2.0 and memory.busy == 1


def test_between_two_measured_sizes_time_grows_on_a_line() -> None:
    measured = Measured(4, {"all_reduce": {1000: 1.0, 2000: 3.0, 4000: 4.0}}, busy=0.5)
    seconds = [measured.seconds("all_reduce", size, 4) for size in (1, 1000, 1500, 2000, 3000)]
    assert seconds == pytest.approx([1.0, 1.0, 2.0, 3.0, 3.5])
    # Two ranks put as many bytes on a link as four do with two thirds of them.
    assert measured.seconds("all_reduce", 3000, 2) == pytest.approx(3.0)


def test_beyond_the_largest_it_goes_on_at_the_rate_of_all() -> None:
    line = {size: 1.0 + size / 1000 for size in (1000, 2000, 4000)}
    assert Measured(2, {"broadcast": line}, busy=0.0).seconds("broadcast", 10**6, 2) == pytest.approx(1001.0)
    falls = {1000: 2.0, 2000: 1.0}
    assert Measured(2, {"broadcast": falls}, busy=0.0).seconds("broadcast", 10**6, 2) == 1.0, "no time below that"


def test_a_smaller_exchange_that_took_longer_was_disturbed() -> None:
    measured = Measured(2, {"broadcast": {1000: 1.0, 2000: 9.0, 3000: 2.0, 4000: 3.0}}, busy=0.0)
    assert [measured.seconds("broadcast", size, 2) for size in (500, 1000, 1500, 2000, 3500)] == [1, 1, 1.5, 2, 2.5]


def test_the_file_of_a_pool_is_a_network(tmp_path: Path, overdrive: Run) -> None:
    times = {operation: {1000: 1.0, 2000: 3.0} for operation in BUS}
    found = {
        "ranks": [host("a"), host("b")],
        "pairs": [],
        "backend": "gloo",
        "busy": 0.4,
        "seconds": {name: sorted(each.items()) for name, each in times.items()},
    }
    text = json.dumps(to_json(examine(found)))
    kept = Measured.kept(text, "pool.json")
    assert (kept.ranks, kept.busy, kept.times) == (2, 0.4, times)
    assert kept.seconds("all_gather", 1500, 2) == pytest.approx(2.0) and kept.by_memory() is kept
    shared = {"exchange": 0.1, "bytes_per_second": 1e6}
    of_one_host = Measured.kept(json.dumps(to_json(examine({**found, "memory": shared}))), "pool.json")
    assert of_one_host.by_memory() == ByMemory(of_one_host, 0.1, 1e6)
    there = ranks_of(2, kept, quick=True)
    assert there.name == "2 machines as this one, over the network of pool.json" and not there.together
    with pytest.raises(CannotForetell, match=r"pool\.json was measured among 2 ranks"):
        ranks_of(4, kept, quick=True)
    (tmp_path / "pool.json").write_text(text)
    (tmp_path / "other.json").write_text("{}")
    for words, said in (
        (("--ranks", "2", "--link", "none.json"), "none.json cannot be read"),
        (("--ranks", "2", "--link", "other.json"), "other.json is no pool"),
        (("--ranks", "8..16", "--link", "pool.json"), "are more than were measured"),
    ):
        told = overdrive("doctor", "--for", *words, "train.py", cwd=tmp_path)
        assert told.returncode == 2 and said in told.stderr, told.stderr
    for words, said in (
        (("--ranks", "2", "--pool", "none.json"), "none.json cannot be read"),
        (("--ranks", "2", "--pool", "other.json"), "other.json is no pool"),
        (("--pool", "pool.json"), "--pool is of what goes between --ranks"),
    ):
        told = overdrive("tune", *words, "train.py", cwd=tmp_path)
        assert told.returncode == 2 and said in told.stderr, told.stderr
