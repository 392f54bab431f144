"""A kernel of ours for CPUs: which programs it is for; loaded when it is first called, and compared with torch before
it is used on a shape."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Generic, Protocol, TypeVar

from overdrive.core.facts import Facts
from overdrive.core.own_lock import OwnLock
from overdrive.techniques.technique import CannotInstall

MOST = 16  # shapes that are compared


def of_no_use(facts: Facts, nothing_to_do: str = "") -> str | None:
    """Why such a kernel cannot help this program, if so."""
    from overdrive.kernels.build import compiler

    if facts.device != "cpu":
        return f"the model is on the {facts.device}, and its kernel is for CPUs"
    if facts.own_compile:
        return "the program compiles its model itself"
    return nothing_to_do or (None if compiler() else "there is no C compiler on this machine")


class Kernel(Protocol):
    def differs(self, plain: Any) -> str | None: ...


K = TypeVar("K", bound=Kernel)


class Compared(Generic[K]):
    """
    Attributes:
        checked: the shapes, or what else tells two calls apart, that it was compared on.
    """

    def __init__(self, load: Callable[[], K]) -> None:
        """
        Args:
            load: waits for the compiler. Called once.
        """
        self.checked: set[Hashable] = set()
        self._load = load
        self._made: list[K] = []
        self._first = OwnLock()  # a program may call its model from several threads

    def get(self, plain: Any) -> K:
        """
        Args:
            plain: torch's function.

        Raises:
            CannotBuild: see `Building.load`.
            CannotInstall: it is not torch's function, on values that may come out in another way.
        """
        with self._first:
            if not self._made:
                self._made.append(self._load())
                if wrong := self._made[0].differs(plain):
                    raise CannotInstall(wrong)
        return self._made[0]

    def check(self, kind: Hashable, differs: Callable[[], str | None]) -> None:
        """Compare it on a call of this kind, if it is one of the first ones.

        Raises:
            CannotInstall: it came to something else.
        """
        if kind not in self.checked and len(self.checked) < MOST:
            if wrong := differs():
                raise CannotInstall(wrong)
            self.checked.add(kind)
