"""A process that has imported PyTorch, from which trials that nobody times are forked: they start in half the time.

Started by a launcher as `python -m overdrive.worker.nursery SOCKET`. Each message on the socket brings the descriptors
of one trial; its process id, and when it is over its exit status, go to the last of them, four bytes each.

What has been imported is hidden from the program until it imports it itself: up to there all is as in a fresh process.
Only what reads the environment while it is imported has read it before, so that a program that sets variables before
`import torch` is not started so (`Facts.sets_environment`).
"""

from __future__ import annotations

import importlib
import os
import selectors
import signal
import socket
import struct
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from overdrive.worker.main import work

_FRAMEWORK = "torch"
DESCRIPTORS = 4  # commands, reports, output, status


class Hidden(MetaPathFinder, Loader):
    """Gives the framework, which is there already, to whoever imports it; until then nobody sees it."""

    def __init__(self) -> None:
        self._modules = {name: module for name, module in sys.modules.items() if name.split(".")[0] == _FRAMEWORK}
        self._spec = self._modules[_FRAMEWORK].__spec__
        for name in self._modules:
            del sys.modules[name]
        sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _FRAMEWORK or self._spec is None:
            return None
        spec = ModuleSpec(fullname, self, origin=self._spec.origin, is_package=True)
        spec.submodule_search_locations = self._spec.submodule_search_locations
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        sys.meta_path.remove(self)
        sys.modules.update(self._modules)
        return self._modules[_FRAMEWORK]

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec


class Nursery:
    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._children: dict[int, int] = {}  # process id: descriptor for its status
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._wake, False)

    def serve(self) -> tuple[int, int] | None:
        """Until the launcher is gone; in a process that was forked: its commands and reports."""
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # else nothing is written there
        with selectors.DefaultSelector() as selector:
            selector.register(self._requests, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            while True:
                ready = {key.fd for key, _ in selector.select()}
                if self._woken in ready:
                    os.read(self._woken, 4096)
                    self._bury()
                if self._requests.fileno() in ready:
                    word, descriptors, _, _ = socket.recv_fds(self._requests, 1, DESCRIPTORS)
                    if not word:
                        return None
                    if found := self._fork(descriptors):
                        return found

    def _fork(self, descriptors: Sequence[int]) -> tuple[int, int] | None:
        commands, reports, output, status = descriptors
        child = os.fork()
        if child:
            os.write(status, struct.pack("<i", child))
            self._children[child] = status
            for each in (commands, reports, output):
                os.close(each)
            return None
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for each in (1, 2):
            os.dup2(output, each)
        for each in (output, status, self._woken, self._wake, *self._children.values()):
            os.close(each)
        self._requests.close()
        return commands, reports

    def _bury(self) -> None:
        while self._children:
            child, status = os.waitpid(-1, os.WNOHANG)
            if not child:
                return
            descriptor = self._children.pop(child)
            with suppress(BrokenPipeError):
                os.write(descriptor, struct.pack("<i", os.waitstatus_to_exitcode(status)))
            os.close(descriptor)


def main(kind: type[Nursery] = Nursery) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it goes when its launcher does
    nursery = kind(socket.socket(fileno=int(sys.argv[1])))
    torch = importlib.import_module(_FRAMEWORK)
    if torch.cuda.is_initialized():  # by what it imports of its own accord: a GPU's driver does not outlive a fork
        return
    born = nursery.serve()
    if born is None:
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    Hidden()
    work(*(os.fdopen(each, mode) for each, mode in zip(born, ("rb", "wb"), strict=True)))  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
