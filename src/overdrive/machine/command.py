"""Asks another program, with a time limit; gives None where it does not answer."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence

_WAIT_SECONDS = 15.0  # a driver that is starting up takes several; a broken one never answers

_HERE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def start_of(module: str) -> str:
    """Code that calls `main` of this module in a child process, which imports nothing from the folder that the user
    happens to be in."""
    own = "import sys; sys.path[:] = [each for each in sys.path if each] + sys.argv[1:];"
    return f"{own}from {module} import main; main()"


def in_python(start: str) -> list[str]:
    """The command that runs such code: it finds this very Overdrive."""
    return [sys.executable, "-c", start, _HERE]


def ask(words: Sequence[str], wait: float | None = None, environment: Mapping[str, str] | None = None) -> str | None:
    """What the command prints; None where there is no such command, it fails, or takes longer than `wait` seconds."""
    command = shutil.which(words[0])
    if command is None:
        return None
    try:
        process = subprocess.Popen(
            [command, *words[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=None if environment is None else dict(environment),
            text=True,
        )
    except OSError:
        return None
    try:
        answer, _ = process.communicate(timeout=_WAIT_SECONDS if wait is None else wait)
    except subprocess.TimeoutExpired:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # stuck in a broken driver, it cannot be killed
            process.communicate(timeout=1.0)
        return None
    except UnicodeDecodeError:
        return None
    return answer if process.returncode == 0 else None
