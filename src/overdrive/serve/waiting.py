"""Requests that wait for the model, answered one batch after the other by a thread for each of its instances."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from overdrive.serve.model import Answer, Arrays, ServedModel

STOPPING = "the server is stopping"
_LAST = 10.0  # seconds for a call of the model that is under way at the end


class Refused(Exception):
    """Not answered, and why: for whoever asked. It may be asked again."""


@dataclass(eq=False)
class _Waiting:
    inputs: Arrays
    rows: int
    kind: tuple[Any, ...]
    came: float = field(default_factory=time.monotonic)
    answer: Future[Arrays] = field(default_factory=Future)


class WaitingRequests:
    """
    Args:
        most: rows that are answered together; 1: each request by itself.
        linger: seconds that a request waits for others at most, while nothing else keeps it.
        limit: requests that wait.
        told: is called with (requests, rows, seconds) of each batch.
    """

    def __init__(
        self,
        model: ServedModel,
        limit: int,
        most: int = 1,
        linger: float = 0.0,
        told: Callable[[int, int, float], None] = lambda requests, rows, seconds: None,
    ) -> None:
        self._model, self._limit, self._most, self._linger, self._told = model, limit, most, linger, told
        self._waiting: deque[_Waiting] = deque()
        self._changed = threading.Condition()
        self._stopping = self._ended = False
        self._began: dict[int, float] = {}  # time.monotonic() of the call that each thread is at
        self._threads = [
            threading.Thread(target=self._work, args=(answer,), name="overdrive serve", daemon=True)
            for answer in (model.answer, *model.others)
        ]
        for each in self._threads:
            each.start()

    def __len__(self) -> int:
        return len(self._waiting)

    def ask(self, inputs: Arrays) -> Future[Arrays]:
        """
        Raises:
            Refused: too many wait, or nothing is answered any more.
        """
        one = _Waiting(inputs, self._model.rows(inputs), self._model.kind(inputs))
        with self._changed:
            if self._ended:
                raise Refused(STOPPING)
            if len(self._waiting) >= self._limit:
                raise Refused(f"{self._limit:,} requests wait already: ask again later")
            self._waiting.append(one)
            self._changed.notify_all()  # one that waits for others to come would keep a single notice to itself
        return one.answer

    def longest(self) -> float:
        """Seconds of the call that has been under way the longest; 0 where none is."""
        now = time.monotonic()
        return max((now - began for began in list(self._began.values())), default=0.0)

    @property
    def stopping(self) -> bool:
        return self._ended or self._stopping

    def stop(self) -> None:
        """Nothing waits for others any more. Called by a signal's handler: takes no lock."""
        self._stopping = True

    def refuse(self) -> None:
        """Nothing is answered any more but what the model has been given."""
        with self._changed:
            self._ended = True
            while self._waiting:
                answer = self._waiting.popleft().answer
                if answer.set_running_or_notify_cancel():
                    answer.set_exception(Refused(STOPPING))
            self._changed.notify_all()

    def end(self) -> None:
        """The same; returns once the model has given its last answer, unless that takes long."""
        self.refuse()
        until = time.monotonic() + _LAST
        for each in self._threads:
            each.join(max(0.0, until - time.monotonic()))

    def _work(self, answer: Answer) -> None:
        me = threading.get_ident()
        while batch := self._next():
            began = self._began[me] = time.monotonic()
            _answer(answer, batch)
            del self._began[me]
            self._told(len(batch), sum(each.rows for each in batch), time.monotonic() - began)

    def _next(self) -> list[_Waiting]:
        """Those to be answered together; none at the end."""
        with self._changed:
            while True:
                batch = self._first_batch()
                left = self._left(batch)
                if left == 0.0:
                    for each in batch:
                        self._waiting.remove(each)
                    if asked := [each for each in batch if each.answer.set_running_or_notify_cancel()]:
                        return asked
                elif self._ended:
                    return []
                else:
                    self._changed.wait(left)

    def _first_batch(self) -> list[_Waiting]:
        """Whoever came first, and others that can be answered with it."""
        batch: list[_Waiting] = []
        rows = 0
        for each in self._waiting:
            if not batch or (each.kind == batch[0].kind and rows + each.rows <= self._most):
                batch.append(each)
                rows += each.rows
        return batch

    def _left(self, batch: list[_Waiting]) -> float | None:
        """Seconds that it may wait for others; None where nothing waits."""
        if not batch:
            return None
        if self._stopping or sum(each.rows for each in batch) >= self._most:
            return 0.0
        return max(0.0, batch[0].came + self._linger - time.monotonic())


def _answer(answer: Answer, batch: list[_Waiting]) -> None:
    try:
        found = answer(together([each.inputs for each in batch]))
        answers = [found] if len(batch) == 1 else apart(found, [each.rows for each in batch])
    except Exception as error:
        if len(batch) > 1:  # which one it is, and that it is not the others' fault, shows each by itself
            for each in batch:
                _answer(answer, [each])
        else:
            batch[0].answer.set_exception(error)
        return
    for each, own in zip(batch, answers, strict=True):
        each.answer.set_result(own)


def together(inputs: list[Arrays]) -> Arrays:
    if len(inputs) == 1:
        return inputs[0]
    return {name: np.concatenate([each[name] for each in inputs]) for name in inputs[0]}


def apart(outputs: Arrays, rows: list[int]) -> list[Arrays]:
    """
    Raises:
        ValueError: the outputs do not have as many rows.
    """
    if any(len(each) != sum(rows) for each in outputs.values()):
        raise ValueError("the model answers another number of rows than it is given")
    ends = np.cumsum(rows)
    return [
        {name: each[end - count : end] for name, each in outputs.items()} for end, count in zip(ends, rows, strict=True)
    ]
