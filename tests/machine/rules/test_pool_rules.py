"""Findings about pools of ranks, on readings of pools that we do not have."""

from __future__ import annotations

from typing import Any

import pytest

from overdrive.machine.rules.apply import apply_rules
from overdrive.machine.rules.finding import Finding, Severity
from overdrive.machine.rules.pool import RULES
from tests.machine.pools import host, pairs, pool, port

MIB = 2**20
LO = {"name": "lo", "mtu": 65536, "device": False}
SLOW = {"name": "eno1", "mtu": 1500, "gigabits_per_second": 1.0, "device": True}
FAST = {"name": "ens3", "mtu": 9000, "gigabits_per_second": 25.0, "device": True}
DOCKER = {"name": "docker0", "mtu": 1500, "device": False}


def findings(told: dict[str, Any]) -> list[Finding]:
    found, failed = apply_rules(told, RULES)
    assert not failed
    return found


def test_nothing_is_wrong_with_a_sound_pool() -> None:
    assert (
        findings(pool(pairs=pairs(4), link={"share": 0.85, "what": "2 ports of a", "gigabits_per_second": 800})) == []
    )


@pytest.mark.parametrize(
    ("told", "rule", "said", "command"),
    [
        (pool(host("a", environment={"NCCL_IB_DISABLE": "1"}), host("b")),
         "pool_sockets", "there on a, and NCCL_IB_DISABLE", "unset NCCL_IB_DISABLE"),
        (pool(*(host(each, environment={"NCCL_NET": "Socket"}) for each in "ab")),
         "pool_sockets", "there on a and b, and NCCL_NET", "unset NCCL_NET"),
        (pool(host("a", interface="eno1", interfaces=[LO, SLOW, FAST]), host("b", interface="eno1", interfaces=[SLOW])),
         "pool_interface", "a talks over eno1 (1 Gb/s), and ens3 has 25 Gb/s", "NCCL_SOCKET_IFNAME=ens3"),
        (pool(host("a", interface="docker0", interfaces=[DOCKER, FAST]), host("b", interface="lo")),
         "pool_interface", "a talks over docker0, which is no network card", "GLOO_SOCKET_IFNAME=ens3"),
        (pool(host("a", interface="eth7"), host("b")),
         "pool_interface", "a is to talk over eth7, which it does not have", "NCCL_SOCKET_IFNAME=ens3"),
        (pool(host("a", interfaces=[{**FAST, "mtu": 1500}]), host("b")),
         "pool_mtu_differs", "a 1500, b 9000", "ip link set dev ens3 mtu 9000  # on a"),
        (pool(*(host(each, interfaces=[{**FAST, "mtu": 1500}]) for each in "ab")),
         "pool_mtu_small", "packets of 1500 bytes", "mtu 9000"),
        (pool(pairs=pairs(4, slow=((0, 3), (1, 3), (2, 3)))),
         "pool_slow_rail", "rank 3 (b) goes at 20%", "ibstat"),
        (pool(pairs=pairs(4, slow=((0, 2),))),
         "pool_slow_rail", "ranks 0 (a) and 2 (b) goes at 20%", "ibstat"),
        (pool(host("a"), host("b", network={"ports": [port(gigabits_per_second=200.0)], "peer_memory_module": True})),
         "pool_slow_rail", "b has a port with 200 Gb/s", "ibstat"),
        (pool(host("a", network={"ports": [port()], "peer_memory_module": False}), host("b")),
         "gpudirect", "On a: GPUs and network cards are there, but nvidia_peermem", "modprobe nvidia-peermem"),
        (pool(host("a", acs=["0000:80:01.0"]), host("b")),
         "pool_acs", "On a 1 PCIe bridge", "setpci -s 0000:80:01.0"),
        (pool(*(host(each, memory={"shared_memory_bytes": 64 * MIB}) for each in "ab")),
         "shared_memory", "On a and b: /dev/shm has 64 MiB", "--shm-size"),
        (pool(host("a", memory={"locked_bytes": 64 * 1024}), host("b")),
         "locked_memory", "On a: `ulimit -l`", "ulimit -l unlimited"),
        (pool(host("a"), host("b", versions={**host("b")["versions"], "torch": "2.12.1"})),
         "pool_versions", "torch: a 2.13.0, b 2.12.1", "pip install torch==2.13.0"),
        (pool(link={"share": 0.31, "what": "ens3 of a", "gigabits_per_second": 25.0}),
         "pool_below_rate", "31% of the 25 Gb/s of ens3 of a", "NCCL_DEBUG=INFO"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_found_and_nothing_else(told: dict[str, Any], rule: str, said: str, command: str) -> None:
    found = findings(told)
    assert {each.rule for each in found} == {rule}
    (mine, *_) = [each for each in found if each.rule == rule and said in each.what] or [None]
    assert mine, [each.what for each in found]
    assert command in mine.command and mine.fix


def test_another_driver_is_advice_and_another_nccl_is_wrong() -> None:
    versions = host("b")["versions"]
    of = {name: findings(pool(host("a"), host("b", versions={**versions, name: "1.0"}))) for name in versions}
    assert of["driver"][0].severity is Severity.ADVICE and of["nvidia-nccl"][0].severity is Severity.WRONG
    assert of["overdrive"][0].command == ""  # there is no such package to be had by name


def test_over_which_interface_ranks_meet_is_one_thing_and_over_which_they_send_another() -> None:
    """NCCL sends by InfiniBand, whatever the interface: that of the management is not wrong."""
    both = (host("a", interface="eno1", interfaces=[SLOW, FAST]), host("b", interface="eno1", interfaces=[SLOW, FAST]))
    assert "pool_interface" not in {each.rule for each in findings(pool(*both, backend="nccl"))}
    assert "pool_interface" in {each.rule for each in findings(pool(*both, backend="gloo"))}
    sockets = [
        host(each, interface="eno1", interfaces=[SLOW, FAST], environment={"NCCL_NET": "Socket"}) for each in "ab"
    ]
    assert "pool_interface" in {each.rule for each in findings(pool(*sockets, backend="nccl"))}
