"""The program that the user runs: a script or a module with its arguments."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


class ProgramError(Exception):
    """The program cannot be started; the message is one sentence for people."""


@dataclass(frozen=True)
class Program:
    """What follows `python` on a command line: `SCRIPT ARGS…` or `-m MODULE ARGS…`."""

    target: str
    arguments: tuple[str, ...] = ()
    module: bool = False

    @classmethod
    def parse(cls, words: Sequence[str]) -> Program:
        """
        Raises:
            ProgramError: no program is named, or the script is not there.
        """
        if not words:
            raise ProgramError("No program named: give a SCRIPT, or -m MODULE, after the options.")
        if words[0] == "-m":
            if len(words) < 2:
                raise ProgramError("-m needs the name of a module after it.")
            return cls(words[1], tuple(words[2:]), module=True)
        if words[0].startswith("-"):
            raise ProgramError(f"Unknown option {words[0]}: Overdrive's options stand before the script.")
        script = Path(words[0])
        if script.is_dir():
            raise ProgramError(f"{words[0]} is a folder, not a script.")
        if not script.exists():
            raise ProgramError(f"There is no script {words[0]}.")
        return cls(words[0], tuple(words[1:]))

    @property
    def stem(self) -> str:
        return self.target.replace(".", "_") if self.module else Path(self.target).stem

    @property
    def name(self) -> str:
        """The script's file name or the module's name: what a plan was found for."""
        return self.target if self.module else Path(self.target).name

    def plan_path(self) -> Path:
        """Where its plan lies unless the user says otherwise: beside the script, or in the current folder."""
        folder = Path() if self.module else Path(self.target).parent
        return folder / f"{self.stem}.overdrive.toml"

    def command(self) -> str:
        words = (("-m",) if self.module else ()) + (self.target, *self.arguments)
        return " ".join(words)

    def identity(self) -> str:
        """A hash of the script's text, its arguments and the folder it runs in."""
        digest = hashlib.sha256()
        text = b"" if self.module else Path(self.target).read_bytes()
        for part in (self.target.encode(), text, *(word.encode() for word in self.arguments)):
            digest.update(len(part).to_bytes(8, "big") + part)
        digest.update(str(Path.cwd()).encode())
        return digest.hexdigest()
