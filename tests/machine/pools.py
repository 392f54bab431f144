"""Readings of pools that we do not have: two hosts with InfiniBand, as their ranks would tell them. Synthesised."""

from __future__ import annotations

from typing import Any

GIB = 2**30


def port(card: str = "mlx5_0", **of: Any) -> dict[str, Any]:
    return {
        "card": card,
        "port": "1",
        "state": "ACTIVE",
        "link_layer": "InfiniBand",
        "gigabits_per_second": 400.0,
        "lanes": 4,
        "errors": {},
        **of,
    }


def host(name: str, **of: Any) -> dict[str, Any]:
    """One rank's reading."""
    return {
        "host": name,
        "environment": {},
        "interface": "ens3",
        "interfaces": [
            {"name": "lo", "mtu": 65536, "device": False},
            {"name": "ens3", "mtu": 9000, "gigabits_per_second": 25.0, "device": True},
        ],
        "network": {"ports": [port(), port("mlx5_1")], "peer_memory_module": True, "kernel": "5.15.0"},
        "memory": {"shared_memory_bytes": 64 * GIB, "locked_bytes": "unlimited"},
        "gpus": 2,
        "acs": [],
        "versions": {"overdrive": "0.2.0", "torch": "2.13.0", "nvidia-nccl": "2.29.3", "driver": "590.44"},
        **of,
    }


def pool(*hosts: dict[str, Any], **of: Any) -> dict[str, Any]:
    """By default two sound hosts with two ranks each."""
    ranks = hosts or (host("a"), host("b"))
    return {"ranks": [each for each in ranks for _ in range(2)], "pairs": [], "link": None, **of}


def pairs(ranks: int, slow: tuple[tuple[int, int], ...] = ()) -> list[dict[str, Any]]:
    """Each two at 10 GB/s, and the slow ones at 2."""
    both = [(one, other) for one in range(ranks) for other in range(one + 1, ranks)]
    return [{"ranks": list(each), "bytes": 1 << 22, "bytes_per_second": 2e9 if each in slow else 1e10} for each in both]
