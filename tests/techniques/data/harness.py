"""What the tests of the data techniques share: a program's epochs with and without a technique, seen in every bit."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from overdrive.datacache import manager
from overdrive.worker.session import Session


def seed() -> None:
    random.seed(5)
    np.random.seed(6)
    torch.manual_seed(7)


def states(loader: Any = None) -> list[Any]:
    """Of all global generators, and of the loader's own."""
    own = getattr(loader, "generator", None)
    numpy = [part.tolist() if isinstance(part, np.ndarray) else part for part in np.random.get_state()]
    return [random.getstate(), numpy, torch.get_rng_state().tolist(), own.get_state().tolist() if own else None]


def leaves(batch: Any) -> Iterator[Any]:
    """All that can be seen of a batch, its containers too."""
    if isinstance(batch, torch.Tensor):
        yield (type(batch), batch.dtype, tuple(batch.shape), batch.stride(), batch.is_inference())
        yield batch.contiguous().numpy().tobytes()
    elif isinstance(batch, np.ndarray):
        yield (batch.dtype, batch.shape, batch.tobytes())
    elif isinstance(batch, dict):
        yield list(batch)
        for value in batch.values():
            yield from leaves(value)
    elif isinstance(batch, (list, tuple)):
        yield type(batch)
        for value in batch:
            yield from leaves(value)
    else:
        yield batch


def own_draws() -> list[float]:
    """Draws of the program's own, between two batches."""
    return [torch.rand(1).item(), random.random(), np.random.rand()]


def epochs(loader: Any, count: int = 3) -> list[Any]:
    """Everything that can be seen of some epochs, with draws of the program's own between the batches."""
    seen: list[Any] = []
    for _ in range(count):
        iterator = iter(loader)
        seen.append(states(loader))
        for batch in iterator:
            seen += [list(leaves(batch)), own_draws()]
        seen.append(states(loader))
    return seen


class Run:
    """A session with some techniques, and why they were left out, if they were."""

    def __init__(self, name: str, *others: str, **settings: float) -> None:
        self.left_out: list[tuple[str, str]] = []
        self.name = name
        chosen: list[Any] = [(name, settings), *((other, {}) for other in others)]
        self.session = Session(chosen, on_left_out=lambda *why: self.left_out.append(why))

    def __enter__(self) -> Any:
        gc.collect()  # loaders of earlier tests are other loaders of this program
        self.session.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.ends()
        self.session.__exit__(None, None, None)

    def ends(self) -> None:
        """The last look at the technique before it is undone."""

    @property
    def handle(self) -> Any:
        """Of the first of them."""
        return self.session.handles[self.name]

    @property
    def manager(self) -> Any:
        """Of the samples that the session keeps; None where no technique has asked for it."""
        return manager._managers.get(self.session.seams)

    @property
    def reason(self) -> str:
        assert self.left_out, "the loader was not refused"
        return self.left_out[0][1]


def epochs_with_errors(loader: Any, told: Callable[[Exception], str] = repr, count: int = 3) -> list[Any]:
    """All batches and what was raised in their places, and the random state after each epoch."""
    seen: list[Any] = []
    for _ in range(count):
        iterator = iter(loader)
        while True:
            try:
                seen.append(list(leaves(next(iterator))))
            except StopIteration:
                break
            except (OSError, ValueError) as error:
                seen.append(told(error))
        seen.append(torch.get_rng_state().tolist())
    return seen


def both(make: Callable[[], Any], go: Callable[[Any], Any], run: Run) -> tuple[Any, Any, Any]:
    """What `go` sees of the loader without the run, and in it; and the run."""
    seed()
    plain = go(make())
    seed()
    with run:
        ours = go(make())
    return plain, ours, run
