"""Numbers that programs print, of one process and of ranks."""

from __future__ import annotations

import math
import re
from pathlib import Path

from tests.conftest import Run

_NUMBER = re.compile(r"-?\d+\.?\d*(?:e[-+]?\d+)?|\bnan\b|\binf\b")


def difference(one: str, other: str, tolerance: float) -> str:
    """The first line that differs by more than that share of the number (or of one, where it is less); else empty.

    Of per cents, one is a hundred: where losses differ in the fourth digit, one answer of a hundred may be another.
    """
    lines, others = one.splitlines(), other.splitlines()
    if len(lines) != len(others):
        return f"{len(lines)} lines, and {len(others)}"
    for line, theirs in zip(lines, others, strict=True):
        if _NUMBER.sub("#", line) != _NUMBER.sub("#", theirs):
            return f"{line}\n{theirs}"
        for found, same in zip(_NUMBER.finditer(line), _NUMBER.finditer(theirs), strict=True):
            a, b = found.group(), same.group()
            least = tolerance * (100 if line[found.end() :].startswith("%") else 1)
            if not math.isclose(float(a), float(b), rel_tol=tolerance, abs_tol=least) and a != b:
                return f"{a} and {b}:\n{line}\n{theirs}"
    return ""


def same_on_ranks(path: Path, python: Run, overdrive: Run) -> str:
    """What was said on two ranks, where the numbers are those of one process."""
    one = python("train.py", cwd=path.parent)
    many = overdrive("run", "--ranks", "2", "train.py", cwd=path.parent, timeout=120)
    assert one.returncode == many.returncode == 0, many.stderr
    assert not difference(one.stdout, many.stdout, 1e-9), (one.stdout, many.stdout)
    return many.stderr
