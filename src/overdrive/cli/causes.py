"""Why a program failed in a trial, where its error tells, and what to type then."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from overdrive.cli.misplaced import Misplaced
from overdrive.core.installing import CLONE, pip_install

_MISSING = re.compile(r"No module named '([\w.]+)'")
_NO_INPUT = "EOF when reading a line"  # of input(); a file that was cut off is an EOFError, too
_FRAMEWORKS = ("torch", "torchvision", "tensorflow", "keras", "jax", "lightning", "transformers")  # named as installed
_LONGEST = 20.0  # seconds that another Python may take to say whether it has a module


def cause(failure: str, found: Misplaced | None = None, stdin: str | None = None) -> str:
    """A sentence or two, or "".

    Args:
        failure: what is known of it, as text.
        found: options of ours that the script was given.
        stdin: the file that trials have as their standard input.
    """
    if missing := _MISSING.search(failure):
        return wrong_environment(missing[1].partition(".")[0])
    if _NO_INPUT in failure:
        if stdin:
            return f"It asks for more lines than {stdin} has."
        return "Trials have no standard input: give them a file as theirs with --stdin FILE."
    if found and ("exit code 2" in failure or _named(found, failure)):
        return found.sentence()
    return ""


def _named(found: Misplaced, failure: str) -> bool:
    """Whether the program's error is about an option of ours, as that of a parser which raises one is."""
    return any(word.startswith("-") and word.partition("=")[0] in failure for word in found.given.split())


def wrong_environment(module: str) -> str:
    """Which Python this is that lacks the module, and what to type."""
    if told := in_another_environment(module):
        return told
    install = f" `{pip_install(module)}` installs it." if module in _FRAMEWORKS else ""
    return _here(module) + install


def in_another_environment(module: str) -> str:
    """As `wrong_environment`, but "" unless the shell's own `python` has the module."""
    other = _python_on_path()
    return f"{_here(module)} {other} has it: {_install(other)}." if other and _has(other, module) else ""


def _here(module: str) -> str:
    return f"This Python is {sys.executable} ({sys.version.split()[0]}), and {module} is not installed there."


def _python_on_path() -> str | None:
    """The `python` of the shell, where that is another environment."""
    for name in ("python", "python3"):
        path = shutil.which(name)
        if path and Path(path).parent != Path(sys.executable).parent:
            return path
    return None


def _has(python: str, module: str) -> bool:
    # Not from the folder that this command happens to be in: a module of the program's own is in no environment.
    code = "import sys; sys.path[:] = [each for each in sys.path if each]; import importlib.util; "
    code += f"sys.exit(importlib.util.find_spec({module!r}) is None)"
    try:
        done = subprocess.run([python, "-c", code], stdin=subprocess.DEVNULL, capture_output=True, timeout=_LONGEST)
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0


def _install(python: str) -> str:
    """How Overdrive gets there: from the clone that this one runs from, if it does."""
    if (CLONE / "pyproject.toml").is_file():
        return f"`{python} -m pip install -e {CLONE}` puts Overdrive beside it"
    return "install Overdrive there, as it was installed here"
