"""What stands where the script should, and is none: told before anything is started, with what to type."""

from __future__ import annotations

import importlib.machinery
import os
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import PurePath

_PYTHON = re.compile(r"python[\d.]*$")
_LAUNCHERS = ("torchrun", "accelerate", "mpirun", "horovodrun", "deepspeed")
_LAUNCHING_MODULES = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")
_RANKS = {"run": "--ranks N ", "tune": "--ranks N ", "submit": "--ranks-per-node N "}  # by the commands that start some


def no_script(name: str, words: Sequence[str]) -> str:
    """One sentence; "" where the words may well be a program, or are refused elsewhere.

    Args:
        name: of the command that was given them.
    """
    if not words:
        return ""
    if words[0] == "-m":
        return _no_module(name, words)
    word, command = words[0], f"overdrive {name}"
    kind = PurePath(word).suffix.lower()
    if kind == ".ipynb":
        return f"{word} is a notebook: `jupyter nbconvert --to script {shlex.quote(word)}` makes a script of it."
    if kind == ".toml":
        meant = ["overdrive", "run", "--plan", word, *(words[1:] or ["SCRIPT"])]
        shows = f"`overdrive report {shlex.quote(word)}` shows what a plan holds"
        return f"{word} is no script: {f'did you mean `{shlex.join(meant)}`?' if name == 'run' else f'{shows}.'}"
    if kind == ".json":
        return f"{word} is no script: `overdrive report {shlex.quote(word)}` shows a result that was written as JSON."
    if kind in (".sh", ".sbatch", ".slurm"):
        return f"{word} is a shell script: write `{command} train.py` in it, where it says `python train.py`."
    if kind in (".pyz", ".zip", ".pyc"):
        return f"{word} holds no script as text, which Overdrive reads: name the script itself, or -m MODULE."
    if _is_launcher(word):
        return _no_launcher(name, word)
    if os.path.exists(word):
        return ""
    if _PYTHON.match(PurePath(word).name) and len(words) > 1:
        rest = _without_flags(words[1:])
        return f"Leave out {word}, which is there already: `{shlex.join(['overdrive', name, *rest])}`."
    return ""


def _is_launcher(word: str) -> bool:
    """By its name, where no file here has it; or by its path, as `$(which torchrun)` gives it."""
    name = PurePath(word).name
    if name not in _LAUNCHERS:
        return False
    return not os.path.exists(word) or os.path.dirname(word) in (os.path.dirname(sys.executable), *os.get_exec_path())


def _no_launcher(name: str, launcher: str) -> str:
    own = _RANKS.get(name, "")
    why = "Overdrive starts the ranks itself" if own else "Name the script itself"
    return f"{why}: `overdrive {name} {own}SCRIPT` in place of {launcher}."


def _without_flags(words: Sequence[str]) -> Sequence[str]:
    """Without the flags of Python itself before its program."""
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] not in ("-m", "-c", "-"):
        at += 2 if words[at] in ("-W", "-X") else 1
    return words[at:]


def _no_module(name: str, words: Sequence[str]) -> str:
    """Nothing is imported to find out: of `-m a.b.c`, whether there is an `a`."""
    if len(words) < 2:
        return ""
    module = words[1]
    if module.endswith(".py"):
        return f"-m takes a module's name, not a file's: `{shlex.join(['overdrive', name, *words[1:]])}`."
    if module in _LAUNCHING_MODULES:
        return _no_launcher(name, f"-m {module}")
    top = module.partition(".")[0]
    if top in sys.builtin_module_names or not top.isidentifier() or _is_found(top):
        return ""
    return f"There is no module {top}, neither in the folder {os.getcwd()} nor in this Python, {sys.executable}."


def _is_found(top: str) -> bool:
    try:
        here = importlib.machinery.PathFinder.find_spec(top, [os.getcwd()])
        return here is not None or any(finder.find_spec(top, None) for finder in sys.meta_path)
    except (ImportError, ValueError, AttributeError):
        return True  # a finder that cannot be asked
