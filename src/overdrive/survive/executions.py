"""Steps of Keras on TensorFlow, noted the first time, and left out when the program is made again.

A call of a train, test or predict function is one entry of the journal, with what it returned. When the run is made
again such a call takes as many batches from its iterator as the first time, so that data sets draw as ever, and returns
what it returned then. The first call of each function for each form of its data is made all the same, since that makes
variables, of layers, metrics and optimizers, and draws seeds. All else that runs in between is made, and what Python
takes out of variables there is answered from the journal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, ref

import tensorflow as tf

from overdrive.seams.keras.executions import OVER, Execution
from overdrive.seams.keras.internals import plain_eager
from overdrive.survive import answers, tensorflow_values
from overdrive.survive.journal import Entry
from overdrive.survive.journaled_run import next_entry
from overdrive.survive.unskippable import in_graphs, in_model

if TYPE_CHECKING:
    from overdrive.survive.journaled_run import JournaledRun

_MOST_PENDING = 64  # results that may still be on their device


class Executions:
    """
    Attributes:
        stale: a call was left out, or would have been: variables do not hold then what they held the first time.
    """

    def __init__(
        self, run: JournaledRun, stepped: Callable[[Any], None], variables_of_data: Callable[[], Iterable[Any]]
    ) -> None:
        """
        Args:
            stepped: is told of each call that trains, with its model.
            variables_of_data: those that functions of data sets use.
        """
        self._run, self._stepped, self._variables_of_data = run, stepped, variables_of_data
        self.stale = False
        self._told = answers.Told()
        self._forms: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()
        self._known: tuple[Any, Any] = None, None  # the function and (weakly) the iterator of the call before
        self._pending: list[tuple[Entry, Any]] = []

    def called(self, execution: Execution, call: Callable[[Any], Any], data: Any) -> Any:
        run = self._run
        if run.aside():
            run.by_thread()
            return call(data)
        if reason := in_model(execution.model):
            run.cannot_skip(reason)
            return call(data)
        if not isinstance(data, tf.data.Iterator):
            data = list(islice(data, execution.count))
        is_first = self._is_first(execution, data)
        result = self._again(execution, call, data, is_first) if run.replaying else self._made(execution, call, data)
        if not is_first:
            self.stale = True
        elif not run.replaying and (reason := in_graphs(execution.functions, self._variables_of_data())):
            run.cannot_skip(reason)
        if execution.kind == "train" and result is not OVER:
            self._stepped(execution.model)
        return result

    def read(self, subject: tuple[str, Any], call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Something that is computed from variables between two such calls."""
        run = self._run
        if not self.stale or run.aside():
            return call(*args, **kwargs)
        value = call(*args, **kwargs)
        if run.replaying:
            return tensorflow_values.given(self._next("read", f"what {subject[0]} tells")[1])
        if not plain_eager():
            run.cannot_skip("it takes gradients outside of Keras's own steps")
            return value
        try:
            run.journal.add("read", tensorflow_values.told(value, self._told))
        except tensorflow_values.CannotTell as error:
            run.cannot_skip(f"{subject[0]} that it calls returns a {error}")
        except answers.TooMuch as error:
            run.cannot_skip(str(error))
        return value

    def settle(self) -> None:
        """Have the journal hold what was returned.

        Raises:
            CannotTell, TooMuch: it cannot.
        """
        pending, self._pending = self._pending, []
        for entry, result in pending:
            entry[2] = tensorflow_values.told(result, self._told)

    # -- inside ---------------------------------------------------------------------------------

    def _is_first(self, execution: Execution, data: Any) -> bool:
        """Of this function with data of this form."""
        iterates = isinstance(data, tf.data.Iterator)
        made, iterator = self._known
        if iterates and made is execution.made and iterator() is data:
            return False
        self._known = (execution.made, ref(data)) if iterates else (None, None)
        form = str(data.element_spec) if iterates else _form_of(data)
        known = self._forms.setdefault(execution.made, set())
        is_first = form not in known
        known.add(form)
        return is_first

    def _made(self, execution: Execution, call: Callable[[Any], Any], data: Any) -> Any:
        result = self._alone(call, data)
        entry = self._run.journal.add("execution", execution.kind, None)
        if result is not OVER:
            self._pending.append((entry, result))
            if len(self._pending) >= _MOST_PENDING:
                try:
                    self.settle()
                except (tensorflow_values.CannotTell, answers.TooMuch) as error:
                    self._run.cannot_skip(told_of(error))
        return result

    def _alone(self, call: Callable[[Any], Any], data: Any) -> Any:
        self._run.inside = True
        try:
            return call(data)
        finally:
            self._run.inside = False

    def _again(self, execution: Execution, call: Callable[[Any], Any], data: Any, is_first: bool) -> Any:
        over = self._alone(call, data) is OVER if is_first else self._is_over(execution, data)
        _, kind, told = self._next("execution", f"a call of a {execution.kind} function")
        if kind != execution.kind or over is not (told is None):
            self._run.begin_anew(f"at step {self._run.steps}, its data are not those of the first time")
        return OVER if over else tensorflow_values.given(told)

    def _is_over(self, execution: Execution, data: Any) -> bool:
        """Takes what the call would have taken; whether there was nothing."""
        if not isinstance(data, tf.data.Iterator):
            return False
        return not sum(1 for _ in islice(data, execution.count))

    def _next(self, kind: str, told: str) -> Entry:
        return next_entry(self._run, kind, told, f"at step {self._run.steps}, ")


def told_of(error: Exception) -> str:
    """As a reason."""
    return str(error) if isinstance(error, answers.TooMuch) else f"its steps return a {error}"


def _form_of(batches: list[Any]) -> str:
    parts = tf.nest.flatten(batches)
    return str([(type(each).__name__, getattr(each, "shape", ""), str(getattr(each, "dtype", ""))) for each in parts])
