"""The states of all random generators that a program shares with its data set."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from overdrive.samples.layout import Unfit


@dataclass
class States:
    """Python's, numpy's and torch's global generators at one moment (about 30 µs to read)."""

    python: Any
    numpy: Any
    torch: Any
    cuda: list[Any]

    @classmethod
    def now(cls, with_cuda: bool = True) -> States:
        import torch

        numpy = sys.modules.get("numpy")
        cuda = with_cuda and bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]
        return cls(
            random.getstate(),
            numpy.random.get_state() if numpy else None,
            torch.get_rng_state(),
            torch.cuda.get_rng_state_all() if cuda else [],
        )

    def restore(self) -> None:
        import torch

        random.setstate(self.python)
        if self.numpy is not None:
            sys.modules["numpy"].random.set_state(self.numpy)
        torch.set_rng_state(self.torch)
        if self.cuda:
            torch.cuda.set_rng_state_all(self.cuda)

    def same(self, other: States) -> bool:
        return (
            self.python == other.python
            and _same_numpy(self.numpy, other.numpy)
            and bool((self.torch == other.torch).all())
            and len(self.cuda) == len(other.cuda)
            and all(bool((a == b).all()) for a, b in zip(self.cuda, other.cuda, strict=True))
        )


def _same_numpy(one: Any, other: Any) -> bool:
    if one is None or other is None:
        # numpy was imported by the fetch itself: it draws nothing by being imported.
        return True
    return bool(one[0] == other[0] and (one[1] == other[1]).all() and one[2:] == other[2:])


@contextmanager
def left_alone() -> Iterator[None]:
    """What is done inside must leave all states as they are; they are put back if it does not.

    Raises:
        Unfit: it drew.
    """
    before = States.now()
    try:
        yield
    finally:
        drew = not before.same(States.now())
        if drew:
            before.restore()
    if drew:
        raise Unfit("fetching a sample draws random numbers")


def reseed(seed: int) -> None:
    """Put all of them in another state. For forked children only: CUDA's are left alone."""
    import torch

    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)
