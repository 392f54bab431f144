"""Whether a fetch in the program's own process says something: prints, logs or warns."""

from __future__ import annotations

import os
import sys
from types import CodeType
from typing import Any

_SAYS = frozenset(("print", "write", "writelines", "warn", "warn_explicit"))  # all end in one of these functions of C
# Names without which code cannot get there. A data set that has none of them is not listened to.
_NAMES = frozenset(
    ("print", "pprint", "stdout", "stderr", "write", "writelines", "echo", "warn", "warn_explicit", "warning", "info")
) | frozenset(("debug", "error", "critical", "exception", "log", "print_exc", "print_exception", "secho"))


def may_speak(code: CodeType) -> bool:
    return not _NAMES.isdisjoint(code.co_names)


class Spoken:
    """Listens inside its `with` blocks, by a profile function: a fetch takes up to three times as long.

    Args:
        needed: whether the data set's code may speak at all.

    Attributes:
        heard: whether something was said, or that could not be seen.
    """

    def __init__(self, needed: bool) -> None:
        self._needed = needed
        self.heard = False

    def __enter__(self) -> Spoken:
        if self._needed and sys.getprofile() is None:
            sys.setprofile(self._hear)
        elif self._needed:
            self.heard = True
        return self

    def __exit__(self, *_: object) -> None:
        if self._needed and sys.getprofile() == self._hear:
            sys.setprofile(None)

    def _hear(self, frame: object, event: str, argument: Any) -> None:
        # What is written to a descriptor, by `os.write`, is not told from what goes elsewhere.
        if event == "c_call" and argument.__name__ in _SAYS and argument is not os.write:
            self.heard = True
