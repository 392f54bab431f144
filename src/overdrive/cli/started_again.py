"""This very command, started again: with variables that it takes from its start, or once for each rank."""

from __future__ import annotations

import os
import posix
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

from overdrive.cli.line import fail
from overdrive.cli.misplaced import STARTED_AGAIN, options_of, takes_a_word
from overdrive.core.settings import Chosen
from overdrive.core.streams import flush
from overdrive.ranks.membership import Membership, NotARank
from overdrive.techniques.catalogue import environment_for
from overdrive.worker.saying import say

if TYPE_CHECKING:
    from overdrive.ranks.agent import GroupEnd


def prepare_environment(techniques: list[Chosen]) -> None:
    """Start this very command again with the variables that must be there before the process starts."""
    needed = environment_for(techniques)
    missing = {name: value for name, value in needed.items() if os.environ.get(name) != value}
    if not os.environ.pop(STARTED_AGAIN, None) and missing:
        start_again({**missing, STARTED_AGAIN: "1"})


def hash_alike() -> None:
    """The order of a set may decide what a program does: start this command again, with the hashes of all ranks."""
    if os.environ.get("PYTHONHASHSEED", "random") == "random":
        start_again({"PYTHONHASHSEED": "0"})


def start_again(variables: Mapping[str, str], words: Sequence[str] | None = None) -> NoReturn:
    """In this process's place, with these variables. `words`: of the command; None: its own."""
    flush()
    command = [sys.executable, *_interpreter_flags(), "-m", "overdrive", *(sys.argv[1:] if words is None else words)]
    os.execve(sys.executable, command, {**os.environ, **variables})


@dataclass(frozen=True)
class Start:
    """How this command was started: the program may change its variables, its folder and `sys.argv`."""

    environment: Mapping[str, str]
    folder: str
    words: Sequence[str]

    @classmethod
    def now(cls) -> Start:
        return cls(dict(os.environ), os.getcwd(), sys.argv[1:])

    def again(
        self,
        variables: Mapping[str, str],
        without: Sequence[str] = ("--fresh",),
        besides: Sequence[str] = (),
    ) -> NoReturn:
        """In this process's place, with these variables besides.

        Args:
            without: options of ours that it goes without.
            besides: that it has instead.
        """
        posix.chdir(self.folder)  # that of `os` goes into a copy while a run is made again
        os.environ.clear()
        os.environ.update(self.environment)
        command, *rest = _without(without, self.words)
        start_again(variables, [command, *besides, *rest])


def _without(options: Sequence[str], words: Sequence[str]) -> list[str]:
    """A command's words; the options of its program, which may have the same names, stay."""
    command = import_module(f"overdrive.cli.{words[0]}").command  # as the group finds it by its name
    valued = {name for name, option in options_of(command).items() if takes_a_word(option)}
    kept, left = list(words[:1]), list(words[1:])
    while left and left[0].startswith("-") and left[0] not in ("-", "--", "-m"):
        size = 2 if left[0] in valued else 1
        if left[0].split("=")[0] not in options:
            kept += left[:size]
        del left[:size]
    return [*kept, *left]


def _interpreter_flags() -> list[str]:
    import subprocess

    return subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined, no-any-return]


def start_ranks(ranks: int, on: str | None = None) -> int:
    """Start this very command once for each rank.

    Args:
        on: "ray", or None for this machine.
    """
    if on == "ray":
        from overdrive.ranks.on_ray import CannotUseRay
        from overdrive.ranks.on_ray import start_ranks as start_on_ray

        try:
            return start_on_ray(ranks, *words_of_ranks(ranks, options=("--ranks", "--on")), say).code
        except CannotUseRay as error:
            fail(str(error))
    end = group_of(ranks)
    if end.stopped_by:  # so that the shell sees how it ended
        signal.signal(end.stopped_by, signal.SIG_DFL)
        os.kill(os.getpid(), end.stopped_by)
    return end.code


def group_of(ranks: int, **how: Any) -> GroupEnd:
    """Start this very command once for each rank of this machine, and wait for their end; `how` is the agent's."""
    from overdrive.ranks.agent import start_ranks as start

    try:
        return start(ranks, *words_of_ranks(ranks), **how)
    except ModuleNotFoundError as error:  # it is PyTorch's agent, and this may be an environment of Keras alone
        from overdrive.cli.causes import wrong_environment

        fail(wrong_environment((error.name or "torch").partition(".")[0]), 1)


def words_of_ranks(ranks: int, options: Sequence[str] = ("--ranks",)) -> tuple[list[str], list[str]]:
    """This very command as each of so many ranks is started by it, and Python's flags.

    Args:
        options: that ranks go without.
    """
    command, *rest = _without(options, sys.argv[1:])
    # Of a project whose file says another number, each rank would read that.
    return ["overdrive", command, f"--ranks={ranks}", *rest], _interpreter_flags()


def membership_in(ranks: int | None) -> Membership | None:
    """Which rank this process is, of whoever started it. `ranks`: that the command line asks for."""
    try:
        membership = Membership.of(os.environ)
    except NotARank as error:
        fail(str(error))
    if membership and ranks not in (None, membership.size):
        fail(f"This is rank {membership.rank} of {membership.size} already, started by a launcher: leave out --ranks.")
    return membership
