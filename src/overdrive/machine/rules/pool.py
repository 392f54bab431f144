"""Findings about a pool of ranks: what each of them told of its host, beside what was measured among them."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from overdrive.core.units import listed
from overdrive.machine.rules import memory, network
from overdrive.machine.rules.finding import Basis, Finding, Rule, Severity, Sure, Survey, finding
from overdrive.machine.rules.variables import is_on

_ENVIRONMENT = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"
_TROUBLE = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html"
_SHARE = 0.8  # of a link's rate: what collectives reach where nothing is wrong
_LAME = 0.7  # of the usual bandwidth between two ranks
_FAST = 10.0  # Gb/s from which small packets cost a core
_SMALL, _JUMBO = 1500, 9000  # bytes of a packet
_SAME_NEEDED = ("torch", "nvidia-nccl", "overdrive")


def _hosts(pool: Survey) -> dict[str, Mapping[str, Any]]:
    """One rank's reading of each host."""
    found: dict[str, Mapping[str, Any]] = {}
    for each in pool["ranks"]:
        found.setdefault(each["host"], each)
    return found


def _active(reading: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [port for port in reading["network"].get("ports", []) if port["state"] == "ACTIVE"]


def _used(reading: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The interface that ranks of this host talk over."""
    return next((each for each in reading["interfaces"] if each["name"] == reading["interface"]), None)


def _sockets_by(reading: Mapping[str, Any]) -> list[str]:
    """The variables by which NCCL uses sockets, though InfiniBand or RoCE may be there."""
    ways = (("NCCL_IB_DISABLE", is_on), ("NCCL_NET", lambda value: value.lower() == "socket"))
    return [name for name, said in ways if said(reading["environment"].get(name, ""))]


def sockets(pool: Survey) -> Iterator[Finding]:
    for name in ("NCCL_IB_DISABLE", "NCCL_NET"):
        hosts = [host for host, each in _hosts(pool).items() if _active(each) and name in _sockets_by(each)]
        if hosts:
            yield finding(
                "pool_sockets",
                (Severity.WRONG, Basis.CITED, Sure.CERTAIN),
                f"InfiniBand or RoCE is there on {listed(hosts)}, and {name} has NCCL use sockets.",
                "Machines talk over TCP, at a fraction of the ports' rate.",
                "Take the variable away on all ranks.",
                f"unset {name}",
                _ENVIRONMENT,
            )


def _goes_by_verbs(reading: Mapping[str, Any]) -> bool:
    """Whether NCCL sends over InfiniBand or RoCE from here, and over the interface just finds the others."""
    return bool(_active(reading)) and not _sockets_by(reading)


def interface(pool: Survey) -> Iterator[Finding]:
    hosts = _hosts(pool)
    for host, reading in hosts.items() if len(hosts) > 1 else ():
        used, name = _used(reading), reading["interface"]
        best = max(
            (each for each in reading["interfaces"] if each["device"]),
            key=lambda each: each.get("gigabits_per_second", 0),
            default=None,
        )
        rate = used.get("gigabits_per_second", 0) if used else 0
        if best is None or best is used or not name:
            continue
        could = best.get("gigabits_per_second", 0)
        if used is None:
            what = f"{host} is to talk over {name}, which it does not have."
        elif not used["device"]:
            what = f"{host} talks over {name}, which is no network card; {best['name']} is one."
        elif could > rate > 0 and not (pool.get("backend") == "nccl" and _goes_by_verbs(reading)):
            what = f"{host} talks over {name} ({rate:g} Gb/s), and {best['name']} has {could:g} Gb/s."
        else:
            continue
        yield finding(
            "pool_interface",
            (Severity.WRONG, Basis.COMPUTED, Sure.LIKELY),
            what,
            "Ranks do not find each other, or wait for the slower way.",
            "Name the interface on all ranks.",
            f"export NCCL_SOCKET_IFNAME={best['name']} GLOO_SOCKET_IFNAME={best['name']}",
            _ENVIRONMENT,
        )


def mtu(pool: Survey) -> Iterator[Finding]:
    hosts = _hosts(pool)
    used = {
        host: found for host, each in hosts.items() if (found := _used(each)) and found["device"] and "mtu" in found
    }
    sizes = {host: int(found["mtu"]) for host, found in used.items()}
    if len(hosts) < 2 or not sizes:
        return
    if len(set(sizes.values())) > 1:
        small, large = min(sizes, key=lambda host: sizes[host]), max(sizes.values())
        yield finding(
            "pool_mtu_differs",
            (Severity.WRONG, Basis.CITED, Sure.LIKELY),
            f"Hosts have packets of other sizes (MTU): {', '.join(f'{each} {size}' for each, size in sizes.items())}.",
            "Large packets are lost on the way, and a collective stands still, or crawls.",
            "Give all hosts, and the switch between them, the same.",
            f"sudo ip link set dev {used[small]['name']} mtu {large}  # on {small}",
        )
        return
    host, found = next(iter(used.items()))
    if found.get("gigabits_per_second", 0) >= _FAST and sizes[host] <= _SMALL:
        yield finding(
            "pool_mtu_small",
            (Severity.ADVICE, Basis.CITED, Sure.POSSIBLE),
            f"{found['name']} has {found['gigabits_per_second']:g} Gb/s, and packets of {sizes[host]} bytes.",
            "A core is busy with packets before the link is full, where sockets are used.",
            "Larger packets on all hosts and the switch, if it lets them through.",
            f"sudo ip link set dev {found['name']} mtu {_JUMBO}",
        )


def lame_pair(pool: Survey) -> Iterator[Finding]:
    """One rank whose every link is slow, or one link of many; pairs within hosts and between them are two kinds."""
    hosts = [each["host"] for each in pool["ranks"]]
    for within in (True, False):
        pairs = [each for each in pool["pairs"] if (hosts[each["ranks"][0]] == hosts[each["ranks"][1]]) is within]
        usual = statistics.median_high(each["bytes_per_second"] for each in pairs) if len(pairs) > 2 else 0.0
        slow = [each for each in pairs if each["bytes_per_second"] < _LAME * usual]
        if slow:
            yield _lame(slow, usual, hosts)


def _lame(slow: Sequence[Mapping[str, Any]], usual: float, hosts: Sequence[str]) -> Finding:
    common = set.intersection(*(set(each["ranks"]) for each in slow)) if len(slow) > 1 else set()
    worst = min(slow, key=lambda each: each["bytes_per_second"])
    one, other = worst["ranks"]
    where = (
        f"rank {min(common)} ({hosts[min(common)]})"
        if common
        else f"ranks {one} ({hosts[one]}) and {other} ({hosts[other]})"
    )
    share = worst["bytes_per_second"] / usual
    return finding(
        "pool_slow_rail",
        (Severity.WRONG, Basis.MEASURED, Sure.LIKELY),
        f"Data between {'others and ' if common else ''}{where} goes at {share:.0%} of the usual speed of this pool.",
        "Collectives are as fast as their slowest link.",
        "Look at this host's cable, port and switch, and whether others use it; or leave it out.",
        "ibstat; ethtool INTERFACE | grep Speed",
    )


def unlike_ports(pool: Survey) -> Iterator[Finding]:
    """Beside `network.slow`, which compares the ports of one host."""
    rates = {
        host: min((port.get("gigabits_per_second") or 0 for port in ports), default=0)
        for host, each in _hosts(pool).items()
        if (ports := _active(each))
    }
    best = max(rates.values(), default=0)
    slow = [host for host, rate in rates.items() if 0 < rate < best]
    if slow:
        yield finding(
            "pool_slow_rail",
            (Severity.WRONG, Basis.COMPUTED, Sure.LIKELY),
            f"{listed(slow)} has a port with {rates[slow[0]]:g} Gb/s; the best hosts have {best:g} Gb/s.",
            f"{rates[slow[0]] / best:.0%} of the others' speed; collectives wait for the slowest.",
            "Seat or replace cable and transceiver, and look at the switch port's speed.",
            "ibstat",
        )


def access_control(pool: Survey) -> Iterator[Finding]:
    for host, each in _hosts(pool).items():
        if each.get("acs") and each["gpus"]:
            yield finding(
                "pool_acs",
                (Severity.WRONG, Basis.CITED, Sure.LIKELY),
                f"On {host} {len(each['acs'])} PCIe bridges have Access Control Services on ({each['acs'][0]}).",
                "What GPUs and network cards say to each other goes up to the processor and back.",
                "Switch it off: in the BIOS, or until the next start by this, for each bridge.",
                f"sudo setpci -s {each['acs'][0]} ECAP_ACS+0x6.w=0000",
                _TROUBLE,
            )


def versions(pool: Survey) -> Iterator[Finding]:
    hosts = _hosts(pool)
    for name in sorted({name for each in hosts.values() for name in each["versions"]}):
        found = {host: each["versions"].get(name, "none") for host, each in hosts.items()}
        if len(set(found.values())) < 2:
            continue
        needed = name in _SAME_NEEDED
        yield finding(
            "pool_versions",
            (Severity.WRONG if needed else Severity.ADVICE, Basis.CITED, Sure.LIKELY if needed else Sure.POSSIBLE),
            f"Hosts have other versions of {name}: {', '.join(f'{host} {each}' for host, each in found.items())}.",
            "Ranks that differ fail to connect, or compute other bits." if needed else "It may make ranks differ.",
            "Install the same everywhere.",
            f"pip install {name}=={next(iter(found.values()))}" if name == "torch" else "",
        )


def below_rate(pool: Survey) -> Iterator[Finding]:
    link = pool.get("link")
    if not link or link["share"] >= _SHARE:
        return
    yield finding(
        "pool_below_rate",
        (Severity.ADVICE, Basis.MEASURED, Sure.POSSIBLE),
        f"All-reduce reaches {link['share']:.0%} of the {link['gigabits_per_second']:g} Gb/s of {link['what']}.",
        f"{_SHARE:.0%} is usual where nothing is wrong.",
        "See over which way NCCL sends, and whether others use the network.",
        "NCCL_DEBUG=INFO torchrun ... 2>&1 | grep -E 'NET/|via'",
    )


def _of_each_host(rule: Rule) -> Rule:
    """A rule about one machine, asked of each host; hosts with the same finding are told in one."""

    def asked(pool: Survey) -> Iterator[Finding]:
        found: dict[Finding, list[str]] = {}
        for host, each in _hosts(pool).items():
            survey = {**each, "nvidia": {"gpus": [{}] * each["gpus"]}}
            for one in rule(survey):
                found.setdefault(one, []).append(host)
        for one, hosts in found.items():
            yield replace(one, what=f"On {listed(hosts)}: {one.what}")

    asked.__name__ = rule.__name__
    return asked


RULES: tuple[Rule, ...] = (
    *(sockets, interface, mtu, lame_pair, unlike_ports, access_control, versions, below_rate),
    *map(_of_each_host, (network.gpudirect, network.slow, network.down, memory.shared_memory, memory.locked)),
)
