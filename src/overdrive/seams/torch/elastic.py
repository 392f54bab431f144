"""PyTorch's elastic agent, which starts processes, each in a group of its own, and ends them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

from overdrive.seams.patch import Patches


@contextmanager
def leaders_end_first() -> Iterator[None]:
    """What tells a process to end goes to that one alone. The agent tells its whole group: a loader's workers die
    first, and their death is an error in the middle of what the process has still to do. They are killed after it.
    """
    plain: Any = SubprocessHandler.close
    told: list[int] = []

    def close(handler: Any, death_sig: signal.Signals | None = None) -> None:
        number = death_sig or signal.SIGTERM
        if number == signal.SIGKILL:
            plain(handler, number)
        else:
            told.append(handler.proc.pid)
            handler.proc.send_signal(number)

    patches = Patches()
    patches.replace(SubprocessHandler, "close", close)
    try:
        yield
    finally:
        patches.restore()
        for group in told:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
