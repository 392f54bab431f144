"""What is done after the command line has been read, with none of its reader's frames below it."""

from __future__ import annotations

from collections.abc import Callable


class Later(SystemExit):
    """What is to be done when the line has been read: a program that is run then has none of the reader's frames
    below it, of which there are eight.

    Args:
        act: returns the exit code.
    """

    def __init__(self, act: Callable[[], int]) -> None:
        super().__init__()
        self.act = act
