"""Freed memory goes back to the system, in a process that was started with what the technique asks for."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from overdrive.core.facts import Facts
from overdrive.techniques.catalogue import catalogue, conflict

PROGRAM = """
import numpy, psutil
first = numpy.ones(300_000)
del first  # from here on glibc keeps blocks of this size, unless it was told otherwise
held = [numpy.ones(250_000) for _ in range(100)]
full = psutil.Process().memory_info().rss
del held[::2]
print(full - psutil.Process().memory_info().rss)
"""


def given_back(environment: dict[str, str]) -> int:
    """Bytes of the 100 MB that the program frees."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it speaks to glibc's malloc")
def test_freed_memory_goes_back_to_the_system() -> None:
    assert given_back({}) < 10e6
    assert given_back(catalogue()["malloc_trim"].environment({})) > 90e6


def test_it_is_left_out_where_malloc_is_not_glibcs_or_set_already(monkeypatch: pytest.MonkeyPatch) -> None:
    trim = catalogue()["malloc_trim"]
    assert "main memory" in (trim.applies(Facts(device="cuda")) or "")
    monkeypatch.setattr(platform, "libc_ver", lambda: ("musl", "1.2"))
    assert "glibc" in (trim.applies(Facts()) or "")
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.36"))
    for name in ("LD_PRELOAD", "MALLOC_TRIM_THRESHOLD_"):
        with monkeypatch.context() as context:
            context.setenv(name, "1")
            assert trim.applies(Facts()) == f"{name} is set already"
    assert trim.applies(Facts()) is None


def test_to_keep_freed_memory_and_to_give_it_back_are_not_in_one_plan() -> None:
    assert conflict("malloc_trim", ["allocator"]) == "allocator"
    assert conflict("allocator", ["malloc_trim"]) == "malloc_trim"
