"""What a walk gathers on its way: a hash, reasons why it does not tell all, and what is to be watched from now on."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from overdrive.changes.files import Files
from overdrive.changes.generators import frozen, state_of
from overdrive.changes.watch import Watch


class Walk(ABC):
    def __init__(self, files: Files) -> None:
        self.hash = hashlib.blake2b(digest_size=32)
        self.hidden: str | None = None
        self.hidden_here: str | None = None
        self.watch = Watch()
        self.views: list[Any] = []  # memory that arrays and tensors are views of
        self.of_gradients = False  # there is a tensor of which gradients are taken
        self.written_file = False
        self.files = files

    @abstractmethod
    def visit(self, thing: Any) -> None:
        """Of anything: all that it is made of."""

    def each(self, *parts: Any) -> None:
        for part in parts:
            self.visit(part)

    def emit(self, kind: str, content: str | bytes = b"") -> None:
        data = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
        self.hash.update(f"{kind}:{len(data)}:".encode())
        self.hash.update(data)

    def hide(self, reason: str, here: bool = True) -> None:
        self.hidden = self.hidden or reason
        if here:
            self.hidden_here = self.hidden_here or reason
        self.emit("hidden", reason)

    def state(self, take: Callable[[], Any]) -> None:
        """What can be asked for at any time, and compared."""
        self.emit("state", repr(take()))
        self.watch.state(take)

    def generator(self, generator: Any) -> None:
        self.emit("generator", repr(frozen(state_of(generator))))
        self.watch.state(lambda: frozen(state_of(generator)))
