"""What a program's Keras models on TensorFlow are given: calls that answer, and the data of `evaluate` and `fit`.

A step of these two is a graph, in which the batch is taken from the data as well: no input of theirs is in Python's
hands. So the data are read once more, when the program is over: those of the last evaluation, or of the training where
nothing else is called.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from overdrive.seams.keras.control import backend
from overdrive.targets.child.kept import KeptCalls

if TYPE_CHECKING:
    from overdrive.seams.hub import Seams
    from overdrive.targets.child.keras.calls import CalledModel


class Noted(Protocol):
    def __call__(self, model: Any, make: Callable[[Any], KeptCalls], calls: int = 1) -> KeptCalls | None:
        """The program has called this model so often; what is kept of it, where it is the one to be exported."""


@dataclass
class _Asked:
    """A `fit`, `evaluate` or `predict` that is under way. `opened`: Keras's iterators over data, in order."""

    model: Any
    opened: list[Any] = field(default_factory=list)
    answered: bool = False  # its batches were seen


class KerasWatch:
    def __init__(self, noted: Noted, rows: int = 0) -> None:
        """`rows`: of data, which are read at least where there are as many; 0: a few batches."""
        self._noted = noted
        self._rows = rows
        self._under_way: list[_Asked] = []
        self._first_trained: _Asked | None = None  # held while no model has answered or was evaluated
        self._chosen: CalledModel | None = None  # that is to be exported, once it was seen
        self._over = False

    def listen(self, seams: Seams) -> None:
        seams.answer_called.subscribe(self._answered)
        seams.fit_called.subscribe(self._fit)
        seams.evaluation_asked.subscribe(self._asked)
        seams.data_opened.subscribe(self._opened)

    def end(self) -> None:
        """The program is over: what is called from now on is none of its calls."""
        if self._over:
            return
        self._over = True
        if (first := self._first_trained) is not None and (kept := self._kept(first.model, 0)):
            kept.trained_by(first.opened[0])
        if self._chosen:
            self._chosen.read()

    def _kept(self, model: Any, calls: int = 1) -> CalledModel | None:
        if backend() != "tensorflow":
            return None
        from overdrive.targets.child.keras.calls import CalledModel  # imports Keras, which is there by now

        kept = self._noted(model, lambda model: CalledModel(model, rows=self._rows), calls)
        if not isinstance(kept, CalledModel):
            return None
        self._chosen = kept
        return kept

    def _answered(self, subject: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        model, kind = subject
        if not self._over:
            self._first_trained = None
            for each in self._under_way:
                each.answered |= each.model is model
            if kept := self._kept(model):
                kept.note(kind, args, kwargs)
        return call(*args, **kwargs)

    def _opened(self, data: Any) -> None:
        if self._under_way:
            self._under_way[-1].opened.append(data)

    def _fit(self, model: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        asked, result = self._run(model, call, args, kwargs)
        if len(asked.opened) > 1:  # the data that it validates by
            self._was_evaluated(asked)
        elif asked.opened and self._chosen is None and self._first_trained in (None, asked):
            self._first_trained = asked
        return result

    def _asked(self, model: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        asked, result = self._run(model, call, args, kwargs)
        if asked.opened and not asked.answered:
            self._was_evaluated(asked)
        return result

    def _run(self, model: Any, call: Callable[..., Any], args: Any, kwargs: Any) -> tuple[_Asked, Any]:
        asked = _Asked(model)
        self._under_way.append(asked)
        try:
            return asked, call(*args, **kwargs)
        finally:
            self._under_way.remove(asked)

    def _was_evaluated(self, asked: _Asked) -> None:
        if not self._over:
            self._first_trained = None
            data = asked.opened[-1]
            if kept := self._kept(asked.model, data.num_batches or 1):
                kept.evaluated_by(data)
