"""How the GPUs and network cards of a machine are joined: `nvidia-smi topo -m` and `nvidia-smi nvlink -s`."""

from __future__ import annotations

import re
from typing import Any

from overdrive.machine.command import Ask, ask

_LINK = re.compile(r"NV\d+|PIX|PXB|PHB|NODE|SYS|X")  # those after NVLinks from near to far; X is the device itself
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def topology(ask: Ask = ask) -> dict[str, Any] | None:
    """`gpus`: rows of the link between any two GPUs; `nics`: for each GPU, its link to each network card.

    `nvlinks`: for each GPU the active links, their GB/s each way, and how many are inactive.
    None where neither command answers.
    """
    matrix = ask(["nvidia-smi", "topo", "-m"])
    states = ask(["nvidia-smi", "nvlink", "-s"])
    if matrix is None and states is None:
        return None
    found = _matrix(_COLOUR.sub("", matrix or ""))
    found["nvlinks"] = _states(states or "")
    return found


def _matrix(text: str) -> dict[str, Any]:
    columns: list[str] = []
    rows: dict[str, list[str]] = {}
    for line in text.splitlines():
        words = line.split()
        if not words:
            if rows:
                break  # the legends follow
        elif not columns:
            if not words[0].startswith("GPU"):
                continue  # a warning before the table
            columns = [word for word in words if re.fullmatch(r"GPU\d+|NIC\d+|mlx\w+", word)]
        elif re.fullmatch(r"GPU\d+|NIC\d+|mlx\w+", words[0]):
            rows[words[0]] = [word for word in words[1:] if _LINK.fullmatch(word)][: len(columns)]
    gpus = [name for name in columns if name.startswith("GPU")]
    nics = [name for name in columns if not name.startswith("GPU")]
    whole = {name: dict(zip(columns, row, strict=False)) for name, row in rows.items() if len(row) == len(columns)}
    return {
        "gpus": [[whole[one].get(other, "") for other in gpus] for one in gpus if one in whole],
        "nics": [[whole[one].get(other, "") for other in nics] for one in gpus if one in whole],
        "nic_names": _legend(text) or nics,
    }


def _legend(text: str) -> list[str]:
    """What the columns NIC0, NIC1, … are called in /sys/class/infiniband."""
    return re.findall(r"^\s*NIC\d+:\s*(\S+)\s*$", text, re.MULTILINE)


def _states(text: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for line in text.splitlines():
        if line.startswith("GPU "):
            found.append({"active": 0, "inactive": 0, "gb_per_second": 0.0})
        elif found and (rate := re.search(r"Link \d+:\s*([\d.]+) GB/s", line)):
            found[-1]["active"] += 1
            found[-1]["gb_per_second"] += float(rate.group(1))
        elif found and re.search(r"Link \d+:\s*<?inactive>?", line, re.IGNORECASE):
            found[-1]["inactive"] += 1
    return [{**each, "gb_per_second": round(each["gb_per_second"], 1)} for each in found]
