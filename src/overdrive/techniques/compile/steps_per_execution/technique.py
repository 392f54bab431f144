"""Technique `steps_per_execution`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.techniques.technique import CannotInstall, Knob, Settings, Technique

if TYPE_CHECKING:
    from overdrive.seams.hub import Handle, Seams

_ON_TORCH = "Keras runs on PyTorch here, and allows one step in a call there"
_BATCH_HOOKS = ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end")
_KEPT = "_overdrive_grouped"  # of a model
_UNKNOWN = -2  # how `tf.data` tells that it does not know how many batches it has
_TEST_HOOKS = ("on_test_batch_begin", "on_test_batch_end")


class StepsPerExecution(Technique):
    """Runs several training steps of Keras's `fit` in one call of its compiled function.

    What it does: for the time of a `fit`, sets the model's `steps_per_execution`, so that a loop inside TensorFlow
    fetches batches and makes steps without returning to Python after each. On JAX the loop is Keras's own, in Python:
    what is saved is the calls of callbacks and the logs between two steps. The batches, their order and the number
    of steps stay: where the program gives `steps_per_epoch`, the loop's length is one that divides it; where the length
    of the data is not known beforehand (TFRecord files, a filter, generators), each epoch's last steps go one by one.

    When it helps: small models, whose step takes no longer than the Python around it: 1.72 times (1.64 to 1.81)
    for examples/mnist_keras.py on two cores of an AMD EPYC with avx512, batch 64. On slower, busy cores (AMD EPYC,
    avx2) it took 1.12 times less processor time a step (1.11 to 1.13) with 32 steps.

    When it hurts: it gains nothing for large models. The progress bar moves less often. Left alone: a `fit` with
    callbacks that act on each batch, since they would be called for every 32nd; models that run eagerly; a program
    that sets `steps_per_execution` itself; PyTorch, where Keras allows one step in a call; `steps_per_epoch` with a
    `tf.data` of unknown length that is not repeated, and on JAX all data of unknown length.

    What it watches: model and callbacks, at each `fit`; from the first one that does not allow it on it goes one step
    at a time. What a callback asks in the midst of a `fit` (`evaluate`, `predict`) is answered one batch at a time.
    What would escape: while a `fit` is under way, a callback that is given a method for batches, or one that is added
    to the others; and, where two fits allow other numbers of steps, what the program has changed of a compiled model
    without compiling it again (`trainable`), which Keras does not see until it traces the step anew. And random numbers
    that an evaluation within `fit` draws, where its data have no known length: TensorFlow draws one time more there.

    Contract: exact. The same graph of a step, in a loop. It falls to rounding where TensorFlow optimises the
    graph in the loop otherwise.

    Source: https://keras.io/api/models/model_training_apis/
    """

    name = "steps_per_execution"
    frameworks = ("keras",)
    contract = Contract.EXACT
    fallback_contract = Contract.ROUNDING
    targets = ("data", "forward", "backward", "optimizer", "other")
    expected_saving = 0.3
    order = 4
    knobs = (Knob("steps", 32, "steps in one call", low=2, high=4096),)

    def applies(self, facts: Facts) -> str | None:
        if facts.backend == "torch":
            return _ON_TORCH
        if not facts.fits:
            return "the program does not call fit()"
        if self.own(facts).get("steps", 1) > 1:
            return "the program sets steps_per_execution itself"
        return None

    def candidates(self, facts: Facts) -> Sequence[Settings]:
        return [{"steps": 32}, {"steps": 8}]

    def observe(self, seams: Seams) -> Callable[[], Mapping[str, Any]]:
        models: list[Any] = []

        def compiled(model: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            models.append(model)
            return call(*args, **kwargs)

        seams.model_compiled.subscribe(compiled)
        return lambda: {"steps": max((int(model.steps_per_execution) for model in models), default=1)}

    def install(self, seams: Seams, settings: Settings) -> Handle:
        executions = _Executions(int(settings["steps"]))
        seams.fit_called.subscribe(executions.fit)
        seams.evaluation_asked.subscribe(executions.evaluation)
        seams.data_opened.subscribe(executions.opened)
        seams.on_undo(executions.undo)
        return seams.handle()


@dataclass
class _Grouped:
    """A model's compiled functions of several steps, from one `fit` to the next. Kept by the model itself: they hold
    it, and whoever else held them would keep it alive."""

    steps: int
    train: Any
    test: Any
    single: Any  # the train function of one step, where one was needed


@dataclass
class _UnderWay:
    """A `fit` that makes several steps in a call. `test`, `single`: the model's own functions, of one step."""

    model: Any
    test: Any
    single: Any = None
    grouped: Any = None  # the train function, where something else stands in its place
    opened: bool = False  # whether its data are
    close: Callable[[], None] = lambda: None  # what was set for this `fit` alone


class _Executions:
    def __init__(self, steps: int) -> None:
        self._wanted = steps
        self._models: WeakSet[Any] = WeakSet()  # that have grouped functions
        self._under_way: dict[int, _UnderWay] = {}  # by the model's id
        self._used = False

    def fit(self, model: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        import keras

        given = inspect.signature(keras.Model.fit).bind(model, *args, **kwargs).arguments
        kept = vars(model).pop(_KEPT, None)
        ours = kept is not None and model.train_function is kept.train  # else compiled anew since then
        steps = self._wanted
        reason = _obstacle(model) or _hooked(given.get("callbacks"))
        if reason is None:
            steps = _divisor(steps, given)
            reason = "no number of steps divides the program's steps_per_epoch" if steps < 2 else _unknown(model, given)
        if reason:
            if ours:
                model.train_function = None
            if not self._used:
                raise CannotInstall(reason)
            return call(*args, **kwargs)
        self._used = True
        under_way = self._under_way[id(model)] = _UnderWay(model, model.test_function)
        if kept is not None and ours and kept.steps == steps:
            model.test_function, under_way.single = kept.test, kept.single
        else:
            model.train_function = model.test_function = None
        model.steps_per_execution = steps
        try:
            return call(*args, **kwargs)
        finally:
            under_way.close()
            # `evaluate` and `train_on_batch` go one step at a time, as written.
            if under_way.grouped is not None:
                model.train_function = under_way.grouped
            vars(model)[_KEPT] = _Grouped(steps, model.train_function, model.test_function, under_way.single)
            self._models.add(model)
            model.steps_per_execution = 1
            model.test_function = under_way.test
            del self._under_way[id(model)]

    def opened(self, epochs: Any) -> None:
        """`epochs`: Keras's iterator over them. The first that a `fit` opens are those of training."""
        under_way = next(reversed(self._under_way.values()), None)
        if under_way is None or under_way.opened:
            return
        under_way.opened = True
        import keras

        unknown = epochs.steps_per_epoch is None and epochs._num_batches is None
        if unknown and keras.backend.backend() == "tensorflow":
            from overdrive.techniques.compile.steps_per_execution.passes import Passes

            model = under_way.model
            model.make_train_function()
            under_way.grouped = model.train_function
            passes = Passes(model, epochs, under_way.grouped, functools.partial(_single, under_way))
            model.train_function, under_way.close = passes.train, passes.close

    def evaluation(self, model: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """`evaluate` or `predict` of a callback while `fit` is under way: one step at a time, as written. Grouped, more
        batches than the program asks for would be looked at, or fewer than there are."""
        under_way = self._under_way.get(id(model))
        if under_way is None:
            return call(*args, **kwargs)
        steps, test = model.steps_per_execution, model.test_function
        model.steps_per_execution, model.test_function = 1, under_way.test
        try:
            return call(*args, **kwargs)
        finally:
            under_way.test = model.test_function
            model.steps_per_execution, model.test_function = steps, test

    def undo(self) -> None:
        for model in list(self._models):
            kept = vars(model).pop(_KEPT, None)
            if kept is not None and model.train_function is kept.train:
                model.train_function = None  # made again when it is needed
        self._models.clear()


def _single(under_way: _UnderWay, iterator: Any) -> Any:
    """One step. How many a function makes is asked when it is traced."""
    model = under_way.model
    steps, model.steps_per_execution = model.steps_per_execution, 1
    try:
        if under_way.single is None:
            standing = model.train_function
            model.make_train_function(force=True)
            under_way.single, model.train_function = model.train_function, standing
        return under_way.single(iterator)
    finally:
        model.steps_per_execution = steps


def _obstacle(model: Any) -> str | None:
    import keras

    if keras.backend.backend() == "torch":
        return _ON_TORCH
    if model.steps_per_execution != 1:
        return "the program sets steps_per_execution itself"
    if model.run_eagerly:
        return "the model runs eagerly"
    if not type(model).make_train_function.__module__.startswith("keras."):
        return "the model makes its train function itself"
    return None


def _divisor(wanted: int, given: Mapping[str, Any]) -> int:
    """The largest number of steps, up to `wanted`, after which `fit` stops exactly where it would have stopped."""
    limits = [int(given[name]) for name in ("steps_per_epoch", "validation_steps") if given.get(name)]
    limits.append(_most_steps())  # for both
    return next(steps for steps in range(wanted, 0, -1) if all(limit % steps == 0 for limit in limits))


def _most_steps() -> int:
    """Of an epoch, in debugging runs; else 0."""
    import keras

    return int(getattr(keras.config, "max_steps_per_epoch", lambda: None)() or 0)


def _unknown(model: Any, given: Mapping[str, Any]) -> str | None:
    """The reason, where the data may end in the midst of a call and what follows hangs on where."""
    import keras

    data: Any = given.get("x")
    cut = bool(given.get("steps_per_epoch") or _most_steps())
    followed = keras.backend.backend() == "tensorflow" and model.distribute_strategy.num_replicas_in_sync == 1
    if hasattr(data, "cardinality"):
        ends = int(data.cardinality()) == _UNKNOWN and (cut or not followed)
    else:
        ends = not (cut or followed) and not _has_length(data)
    return "how many batches the data has is not known beforehand" if ends else None


def _has_length(data: Any) -> bool:
    try:
        len(data)
    except TypeError:
        return False
    return True


def _hooked(callbacks: Any) -> str | None:
    """The first callback that acts on batches, as a reason; None where they all act on epochs."""
    for each in _flat(callbacks):
        if not _by_epoch(each) and (name := _hook(each)):
            return f"the callback {type(each).__name__} acts on batches ({name})"
    return None


def _flat(callbacks: Any) -> Iterable[Any]:
    if callbacks is None:
        return []
    return getattr(callbacks, "callbacks", callbacks if isinstance(callbacks, (list, tuple)) else [callbacks])


def _by_epoch(callback: Any) -> bool:
    """Keras's own callbacks whose methods for batches do nothing that is seen, as they are set."""
    from keras import callbacks as known

    if type(callback) in (known.ModelCheckpoint, known.BackupAndRestore):
        return bool(callback.save_freq == "epoch")
    return type(callback) in (known.ProgbarLogger, known.History)


def _hook(callback: Any) -> str | None:
    from keras.callbacks import Callback

    for name in (*_BATCH_HOOKS, *_TEST_HOOKS):
        method = getattr(callback, name, None)
        if method is not None and getattr(method, "__func__", method) is not getattr(Callback, name):
            return name
    return None
