"""A process that is to end with the one that started it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

CHILD = """
import signal, time
from overdrive.machine.parent import end_with_parent
end_with_parent(signal.SIGKILL)
print("there", flush=True)
time.sleep(60)
"""
PARENT = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
os._exit(0)
"""


def test_it_is_gone_with_the_one_that_started_it() -> None:
    child = subprocess.run([sys.executable, "-c", PARENT, CHILD], capture_output=True, text=True).stdout.strip()
    for _ in range(200):
        state = Path("/proc", child, "stat")
        if not state.exists() or state.read_text().rsplit(")", 1)[1].split()[0] == "Z":
            return
        time.sleep(0.05)
    raise AssertionError("it lives on")
