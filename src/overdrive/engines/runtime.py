"""What a library has to offer to answer in a model's place."""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np

from overdrive.core.installing import package_of
from overdrive.model_state.quiet import quiet

Array = np.ndarray[Any, Any]
Place = tuple[int, int]  # an input, and a dimension of it
# Of one signature, or of several that differ in sizes: given its inputs, the results in order, in memory of their own.
# Called by one thread at a time.
Engine = Callable[[Sequence[Array]], Sequence[Array]]
PLAIN = (bool, int, float, str, type(None))  # values that an engine is built for, beside tensors


def plain_key(value: Any) -> Any:
    """Of a plain value: equal for those alone that are the same to a model. 0.0 and -0.0 are not, 1 and True neither;
    NaN is itself."""
    return type(value), float.hex(value) if isinstance(value, float) else value


class NoEngine(Exception):
    """There can be none for this model, or for these calls; the message is the reason, for people."""


class Runtime(Protocol):
    """A library, in one number format."""

    @property
    def title(self) -> str:
        """As people write it."""

    @property
    def calibrating(self) -> int:
        """Calls whose inputs an engine is built from, for the ranges of values in it; 0: those of one, for shapes."""

    @property
    def narrow(self) -> bool:
        """Whether it computes in fewer bits than the graph says: its answers are none that differ by rounding alone."""

    def missing(self) -> str | None:
        """What has to be installed, as the reason for people; None where all is there. Imports nothing."""

    @property
    def versions(self) -> str:
        """Of the libraries that a model is made by: others may make another one."""

    def converted(self, graph: Any, examples: Sequence[Sequence[Array]], places: Sequence[Place] = ()) -> Any:
        """The library's own model, for inputs of these shapes and types.

        Args:
            examples: what one call, or several, got.
            places: where sizes may be others.
        """

    def saved(self, model: Any) -> Mapping[str, bytes]:
        """The same as data, to be kept on disk: no code, and nothing that only this processor can use."""

    def loaded(self, parts: Mapping[str, bytes]) -> Any:
        """The model that was saved."""

    def engine(self, model: Any, threads: int) -> Engine:
        """What answers by it."""


def versions_of(modules: Sequence[str]) -> str:
    """Of the packages that bring these, which are installed."""
    return ", ".join(" ".join(package_of(each)) for each in modules)


class OfTensorFlow(Runtime, Protocol):
    """... that takes graphs of TensorFlow, too."""

    def of_tensorflow(self, function: Any, inputs: Sequence[str], examples: Sequence[Sequence[Array]]) -> Any:
        """The library's own model of a concrete function, with weights in memory of its own.

        Args:
            inputs: the names of its inputs, in the order in which the examples have them.

        Raises:
            NoEngine: it reads not all of them.
        """

    def places(self, model: Any, inputs: Sequence[str], outputs: Sequence[str]) -> tuple[list[int], list[int]]:
        """Which of these inputs each of the model's own is, and at which of its results each of these outputs is.

        Raises:
            NoEngine: they are not there.
        """


class _Unlogged:
    """Threads of which no logger hears, whichever it is: libraries have many, and make some meanwhile."""

    def __init__(self) -> None:
        self._threads: list[int] = []
        self._lock = threading.Lock()
        self._put_back: Callable[[], None] = lambda: None

    def enter(self, thread: int) -> None:
        with self._lock:
            if not self._threads:
                self._put_back = self._heard_by()
            self._threads.append(thread)

    def leave(self, thread: int) -> None:
        with self._lock:
            self._threads.remove(thread)
            if not self._threads:
                self._put_back()

    def _heard_by(self) -> Callable[[], None]:
        own = logging.Logger.handle

        def handle(logger: logging.Logger, record: logging.LogRecord) -> None:
            if threading.get_ident() not in self._threads:
                own(logger, record)

        def put_back() -> None:
            if logging.Logger.handle is handle:  # else somebody has replaced it meanwhile, and calls it
                logging.Logger.handle = own  # type: ignore[method-assign]

        logging.Logger.handle = handle  # type: ignore[assignment, method-assign]
        return put_back


_unlogged = _Unlogged()


@contextmanager
def unlogged() -> Iterator[None]:
    """What the libraries tell of their work in this thread is no line of the program's; other threads log as ever."""
    thread = threading.get_ident()
    _unlogged.enter(thread)
    try:
        yield
    finally:
        _unlogged.leave(thread)


@contextmanager
def said_nowhere() -> Iterator[None]:
    """What a library prints or warns of is no line of the program's."""
    with warnings.catch_warnings(), quiet():
        warnings.simplefilter("ignore")
        yield
