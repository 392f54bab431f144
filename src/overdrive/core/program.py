"""The program that the user runs: a script or a module with its arguments."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_MOST_SOURCES = 5000  # enough for any project, and over in 0.1 s where a script lies in a folder of everything
# Names in a folder below the script's: with more it holds data, as folders in it do. `transformers.models` has 400.
_MOST_BESIDE = 500
_MOST_SEEN = 100_000  # names below the script's folder


class ProgramError(Exception):
    """The program cannot be started; the message is one sentence for people."""


@dataclass(frozen=True)
class Program:
    """What follows `python` on a command line: `SCRIPT ARGS…` or `-m MODULE ARGS…`."""

    target: str
    arguments: tuple[str, ...] = ()
    module: bool = False
    stdin: str = ""  # the file that a trial has as its standard input; "": an empty one

    @classmethod
    def parse(cls, words: Sequence[str]) -> Program:
        """
        Raises:
            ProgramError: no program is named, or the script is not there.
        """
        if not words:
            raise ProgramError("No program named: give a script after the options (train.py), or -m MODULE.")
        if words[0] == "-m":
            if len(words) < 2:
                raise ProgramError("-m needs the name of a module after it.")
            return cls(words[1], tuple(words[2:]), module=True)
        if words[0].startswith("-"):
            raise ProgramError(f"Unknown option {words[0]}: Overdrive's options stand before the script.")
        script = Path(words[0])
        if script.is_dir():
            runs = (
                f": `-m {script}` runs it" if (script / "__main__.py").exists() and script.name == str(script) else ""
            )
            raise ProgramError(f"{words[0]} is a folder, not a script{runs}.")
        if not script.exists():
            if script.is_symlink():
                raise ProgramError(f"{words[0]} is a link to {os.readlink(script)}, which is not there.")
            raise ProgramError(f"There is no script {words[0]}{_closest(script)}.")
        if not os.access(script, os.R_OK):
            raise ProgramError(f"Cannot read {words[0]}: you have no permission to.")
        return cls(words[0], tuple(words[1:]))

    @property
    def stem(self) -> str:
        return self.target.replace(".", "_") if self.module else Path(self.target).stem

    @property
    def name(self) -> str:
        """The script's file name or the module's name: what a plan was found for."""
        return self.target if self.module else Path(self.target).name

    def beside(self, ending: str) -> Path:
        """Where what is made of it lies unless the user says otherwise: beside the script, or in the current folder."""
        folder = Path() if self.module else Path(self.target).parent
        return folder / f"{self.stem}{ending}"

    def plan_path(self) -> Path:
        return self.beside(".overdrive.toml")

    def command(self) -> str:
        """Its words as a shell takes them: what is shown can be typed."""
        return shlex.join((("-m",) if self.module else ()) + (self.target, *self.arguments))

    def identity(self) -> str:
        """A hash of the program: its words, the folder it runs in, its script's text, its neighbours' sizes and times.

        What was measured of a program is no longer true once a module beside it was edited.
        """
        digest = hashlib.sha256()
        text = b"" if self.module else Path(self.target).read_bytes()
        folder = Path() if self.module else Path(self.target).parent
        neighbours = repr(list(itertools.islice(_sources(folder), _MOST_SOURCES)))
        words = (str(Path.cwd()), self.target, neighbours, *self.arguments)
        text += Path(self.stdin).read_bytes() if self.stdin else b""
        for part in (text, *(os.fsencode(word) for word in words)):
            digest.update(len(part).to_bytes(8, "big") + part)
        return digest.hexdigest()


def _closest(script: Path) -> str:
    """Scripts in the same folder that may have been meant, to stand after its name."""
    import difflib

    try:
        names = [each for each in os.listdir(script.parent) if each.endswith(".py")]
    except OSError:
        return f": there is no folder {script.parent}"
    close = difflib.get_close_matches(script.name, names, n=3, cutoff=0.5)
    return f" (closest: {', '.join(str(script.with_name(each)) for each in close)})" if close else ""


def _sources(folder: Path) -> Iterator[tuple[str, int, int]]:
    """Those that may be the program's modules, in its folder and below, by their sizes and times; the shallow first."""
    left, waiting = _MOST_SEEN, [os.fspath(folder)]
    for place in waiting:
        own = place is waiting[0]
        with contextlib.suppress(OSError), os.scandir(place) as entries:
            found = sorted(itertools.islice(entries, None if own else left), key=lambda entry: entry.name)
            for entry in found:
                if entry.is_dir(follow_symlinks=False):
                    module = not entry.name.startswith((".", "__")) and entry.name != "site-packages"
                    if module and (own or len(found) <= _MOST_BESIDE):
                        waiting.append(entry.path)
                elif entry.name.endswith(".py"):
                    with contextlib.suppress(OSError):  # a link to nowhere, as an editor's lock (.#train.py) is
                        status = entry.stat()
                        yield entry.path, status.st_size, status.st_mtime_ns
            left -= 0 if own else len(found)
            if left <= 0:
                return
