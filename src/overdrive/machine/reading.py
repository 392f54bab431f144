"""Small files of /proc and /sys: their text and numbers, and nothing where there is no such file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path("/")


def text(path: Path | str, most: int = -1) -> str:
    """The file's text, or its first so many characters, stripped; "" where it is not there, or may not be read."""
    try:
        with open(path, errors="replace") as file:
            return file.read(most).strip()
    except (OSError, ValueError):  # a name with a null byte
        return ""


def number(path: Path) -> int | None:
    """The first whole number in the file, decimal or 0x…; None where there is none."""
    return first_number(text(path))


def first_number(words: str) -> int | None:
    found = re.search(r"-?(?:0x[0-9a-fA-F]+|\d+)", words)
    return int(found.group(), 0 if "x" in found.group() else 10) if found else None


def folders(path: Path) -> list[Path]:
    """What lies in a folder, by name; [] where there is no such folder, or it may not be read."""
    try:
        return sorted(path.iterdir())
    except OSError:
        return []


def table(path: Path) -> Iterator[tuple[str, str]]:
    """The lines "name: value" of a file."""
    for line in text(path).splitlines():
        name, colon, value = line.partition(":")
        if colon:
            yield name.strip(), value.strip()


def numbers_in(listed: str) -> frozenset[int]:
    """The numbers in a list such as "0-3,8,10-11"; empty where it is none."""
    found: set[int] = set()
    for part in filter(None, listed.strip().split(",")):
        first, _, last = part.partition("-")
        try:
            found.update(range(int(first), int(last or first) + 1))
        except ValueError:
            return frozenset()
    return frozenset(found)


def memory_node(device: Path) -> int | None:
    """The node of main memory that a device is near; -1 in the file: there is but one."""
    node = number(device / "numa_node")
    return None if node is None or node < 0 else node


def known(found: Mapping[str, object]) -> dict[str, object]:
    """The entries that could be found out."""
    return {name: value for name, value in found.items() if value is not None and value != ""}
