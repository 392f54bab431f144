"""What an error within an exchange means: that another rank is gone, or something of this rank's own."""

from __future__ import annotations

import json
import re
import time
from typing import TYPE_CHECKING, Any

import torch

from overdrive.machine.pool.shared_memory import ProcessEnded
from overdrive.ranks.monitor import TOLD

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_NOTES = 5.0  # seconds in which a rank that fails says so, and one that lives tells so several times
_LAST_NOTES = 0.5  # ... in which what a rank has said that is over has come: it says nothing more
_OWN: tuple[type[RuntimeError], ...] = (
    *(torch.OutOfMemoryError, NotImplementedError, RecursionError),
    *([torch.AcceleratorError] if hasattr(torch, "AcceleratorError") else []),
)
_OWN_WORDS = (
    "CUDA error",
    "can't allocate memory",
)  # of errors without a class of their own; the first in old versions
_FILE = re.compile(r"^\[\S*?\] ")  # of gloo's, where an error was found
_ADVICE = ". This is typically caused"  # of gloo's, from which on it is no reason
_UNANSWERED = "timed out"


def is_own(error: RuntimeError) -> bool:
    """Whether it would have come without other ranks: memory is short, or a kernel of the program's failed before."""
    return isinstance(error, _OWN) or any(words in str(error) for words in _OWN_WORDS)


def words_of(error: RuntimeError, rank: int, others: Sequence[int], store: Any, noted: Callable[[int], object]) -> str:
    """Why all end; empty where a rank that failed has said why, or does so in these seconds.

    Args:
        rank: this one, whose exchange failed.
        store: that all ranks have.
        noted: what a rank has said of its end, if it has.
    """
    first = _FILE.sub("", str(error).strip().split("\n", 1)[0]).partition(_ADVICE)[0]
    over = isinstance(error, ProcessEnded)
    until = time.monotonic() + (_LAST_NOTES if over else _NOTES)
    try:
        before = [_beat(store, other) for other in others]
        while time.monotonic() < until:
            if any(noted(other) for other in others) or store.check([TOLD]):
                return ""
            time.sleep(0.1)
        alive = not over and all(_beat(store, other) > beat >= 0 for other, beat in zip(others, before, strict=True))
    except RuntimeError:  # of the store: rank 0 had it, or the agent
        alive = False
    if alive:
        return f"the exchange between ranks failed on rank {rank}, and no other one is gone ({first})"
    if _UNANSWERED in first:  # by the system, for what it had sent: a process that is gone would have been missed
        return (
            f"rank {rank} reaches no other rank any more: the network between them stands still, or a host is down "
            f"({first})"
        )
    return f"another rank is gone, without a word; it was killed, perhaps for want of memory ({first})"


def _beat(store: Any, rank: int) -> int:
    """How often that rank has told that it lives; -1 where it never did."""
    key = f"beat/{rank}"
    return int(json.loads(store.get(key))["count"]) if store.check([key]) else -1
