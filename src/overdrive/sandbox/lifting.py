"""Takes a copy-on-write view away, where a program turns out to need none."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

_PATIENCE = 10.0  # seconds for some dozens of mounts


@dataclass(frozen=True)
class Layer:
    """`folder`: of the user's; `written`: where what the process wrote to it is."""

    folder: str
    written: str


class Doorman:
    """A process in this one's mount namespace, which has kept the right to change it and does so once, when asked.

    A process of many threads cannot leave such a namespace, and one of a user's has given up that right. It ends with
    this process, and is no child of it: a program may wait for all of its own.
    """

    def __init__(self, take_away: Callable[[], None], layers: Sequence[Layer]) -> None:
        self._layers = layers
        self._here, there = socket.socketpair()
        self._here.settimeout(_PATIENCE)
        between = os.fork()
        if between == 0:
            try:
                if os.fork() == 0:
                    _wait_at(there, take_away)
            finally:
                os._exit(0)
        there.close()
        os.waitpid(between, 0)

    def ask(self) -> bool:
        """Whether this process now sees the real files; with what it had made in its view, if nobody else had."""
        folder = os.getcwd()
        with self._here:
            try:
                self._here.sendall(b"?")
                done = self._here.recv(1) == b"+"
            except OSError:
                done = False
        if done:
            for each in self._layers:
                with suppress(OSError):
                    _bring(each.written, each.folder)
            os.chdir(folder)  # a process stands in a folder, and not at a path
        return done


def _wait_at(door: socket.socket, take_away: Callable[[], None]) -> None:
    """Does not return."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # who asks may go on in spite of them
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):  # who reads what the program prints waits for the last that could write there
        os.dup2(nothing, standard)
    for other in map(int, os.listdir("/proc/self/fd")):
        if other > 2 and other != door.fileno():
            with suppress(OSError):  # that of the listing itself
                os.close(other)
    if door.recv(1):
        take_away()
        door.sendall(b"+")
    os._exit(0)


def _bring(written: str, folder: str) -> None:
    """Folders and files that are not there for real: removed ones are marks of the overlay, which are no files."""
    with os.scandir(written) as entries:
        for entry in entries:
            real = os.path.join(folder, entry.name)
            if entry.is_dir(follow_symlinks=False):
                if not os.path.lexists(real):
                    os.mkdir(real, stat.S_IMODE(entry.stat().st_mode))
                if os.path.isdir(real):
                    _bring(entry.path, real)
            elif (entry.is_file(follow_symlinks=False) or entry.is_symlink()) and not os.path.lexists(real):
                shutil.copy2(entry.path, real, follow_symlinks=False)
