"""Replayed steps of a Keras program: one step from a saved state, in fp64 and as it is.

`worker.torch.replay` says why.

Three kinds of run see the same batches in the same order. The reference run, the program as it is, saves its state
before each chosen step. The target is the same program in Keras's floatx float64. It and each candidate load that
state, make their own step, and record gradients and changes: the target keeps them, a candidate reports its distance
from them.

A state can be loaded only where the program stands still. What one step came to is noted by operations within the
graph, so that it can be told of the first step of a call that makes many.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from overdrive.seams.hub import Seams
from overdrive.seams.keras.control import backend, compute_carefully
from overdrive.seams.keras.step_log import Application, Columns, StepLog, path_of, step_log_of, unwrapped
from overdrive.seams.step_counter import Iterations
from overdrive.worker.keras import ops
from overdrive.worker.thinning import thinned

_MOST_ELEMENTS = 1 << 20  # of a tensor that are kept, evenly spaced
Arrays = dict[str, np.ndarray[Any, Any]]


class Replay:
    """An observer; its kinds say what is done at the two ends of a chosen step."""

    def __init__(self, steps: Sequence[int], folder: Path) -> None:
        self.done: list[int] = []
        self.out_of_reach: list[int] = []  # in the midst of a call that makes many
        self._steps = set(steps)
        self._folder = folder
        self._step_log: StepLog | None = None
        self._ops: Any = None
        self._iterations = Iterations()
        self._boundary = False
        self._now = 0  # the chosen step in progress, 0 between them
        self._notes: Any = None  # what a step came to, by kind and name
        self._watched: dict[str, Any] = {}  # variables of the program whose change is looked at, likewise
        self._state: dict[str, Any] = {}  # variables of the program that make up its state, by name
        self._before: Arrays = {}

    def __call__(self, seams: Seams) -> None:
        seams.framework_ready.subscribe(lambda: self._ready(seams))
        seams.step_ends.subscribe(self._step_ends)
        seams.between_steps.subscribe(self._between_steps)

    def _ready(self, seams: Seams) -> None:
        if self._step_log is None and backend():
            self._step_log, self._ops = step_log_of(seams), ops()
            self._notes = self._ops.Notes()
            self._step_log.add_columns(Columns(0, self._fill, self._find, gradients=True))

    def begins(self, step: int) -> None:
        """The program stands just before a chosen step."""

    def ends(self, step: int, results: Arrays) -> None:
        """It has made that step; `results` are gradients and changes by kind and name."""

    def starts(self, values: Arrays) -> None:
        """The variables of an optimizer have these values before its first step."""

    # -- while the step is traced -----------------------------------------------------------------

    def _find(self, application: Application) -> None:
        first = not self._state
        self._collect(application)
        if first and self._step_log is not None:
            trained = {name: self._state[name] for name in self._names(application.variables)}
            with self._ops.outside():  # before the first step has run
                try:
                    self._step_log.settle()
                    self.starts({name: _kept(self._ops.array(variable)) for name, variable in trained.items()})
                except Exception:  # variables that this very graph makes have no value yet
                    self.starts({})

    def _collect(self, application: Application) -> None:
        """The program's variables, as far as they are there: an optimizer makes its own in its first step."""
        optimizer = unwrapped(application.optimizer)
        trained = list(application.variables)
        others = [each for model, _, _ in application.inputs for each in model.variables]
        for variable in [*trained, *others, *optimizer.variables]:
            if all(known is not variable for known in self._state.values()):
                self._state[_free(path_of(variable), self._state)] = variable
        frozen = [each for each in others if not each.trainable and _is_of_fractions(each)]
        kept = [each for each in optimizer.variables if len(each.shape) and _is_of_fractions(each)]
        for kind, variables in (("update", trained), ("buffer", frozen), ("state", kept)):
            for name, variable in zip(self._names(variables), variables, strict=True):
                self._watched[f"{kind} {name}"] = variable

    def _names(self, variables: Sequence[Any]) -> list[str]:
        names = {id(variable): name for name, variable in self._state.items()}
        return [names[id(variable)] for variable in variables]

    def _fill(self, application: Application) -> list[Any]:
        """After the application: keep what it came to, where the step is a chosen one."""
        assert self._step_log is not None
        place = self._step_log.place(application.optimizer)
        self._collect(application)
        if not self._notes.wanted(place):
            return []
        self._step_log.settle()
        names = self._names(application.variables)
        scale = getattr(application.optimizer, "dynamic_scale", None)
        values = {}
        for gradient, name in zip(application.gradients, names, strict=False):
            if gradient is not None:
                values[f"gradient {name}"] = self._ops.dense(gradient, scale)
        for key, variable in self._watched.items():
            values[key] = self._ops.value_of(variable)
        self._notes.note(place, values)
        return []

    # -- between steps ------------------------------------------------------------------------------

    def _step_ends(self, optimizer: Any) -> None:
        known = self._step_log.optimizers if self._step_log is not None else []
        self._boundary = False
        if any(each is optimizer for each in known):  # else of another framework
            self._boundary = self._iterations.over(optimizer, alone=len(known) < 2)

    def _between_steps(self) -> None:
        if not self._boundary or self._step_log is None:
            return
        step = self._iterations.clock.steps
        if self._now:
            now, self._now = self._now, 0
            self.ends(now, self._results())
            self.done.append(now)
        self.out_of_reach += sorted(each for each in self._steps if each <= step)
        self._steps = {each for each in self._steps if each > step}
        if step + 1 in self._steps:
            self._steps.discard(step + 1)
            self._now = step + 1
            self._step_log.settle()
            self.begins(step + 1)
            self._before = {key: self._ops.array(variable) for key, variable in self._watched.items()}
            self._notes.arm()

    def _results(self) -> Arrays:
        results = {}
        for key, value in self._notes.results().items():
            results[key] = _kept(value - self._before[key] if key in self._before else value)
        return results

    def report(self) -> dict[str, Any]:
        return {"states": self.done, "out_of_reach": self.out_of_reach}

    def _path(self, kind: str, step: int) -> Path:
        return self._folder / f"{kind}-{step}.npz"


class Reference(Replay):
    """The program as it is. Its targets are another run's."""

    def starts(self, values: Arrays) -> None:
        _save(self._path("initial", 1), values)

    _thinned = False

    def begins(self, step: int) -> None:
        state = {name: self._ops.array(each) for name, each in self._state.items()}
        if not self.done:
            coming = thinned({step, *self._steps}, sum(each.nbytes for each in state.values()), self._folder) - {step}
            self._thinned, self._steps = coming < self._steps, coming
        _save(self._path("state", step), state)

    def report(self) -> dict[str, Any]:
        return {**super().report(), "thinned": self._thinned, "needs": "targets"}


class _Loading(Replay):
    def __init__(self, steps: Sequence[int], folder: Path) -> None:
        super().__init__([step for step in steps if self._known(folder, step)], folder)

    @staticmethod
    def _known(folder: Path, step: int) -> bool:
        return (folder / f"state-{step}.npz").exists()

    def begins(self, step: int) -> None:
        for name, value in _load(self._path("state", step)).items():
            variable = self._state.get(name)
            if variable is not None and tuple(variable.shape) == value.shape:
                self._ops.assign(variable, value)


class Targets(_Loading):
    """The program in fp64. Random numbers are drawn in fp32, as it draws them, and widened."""

    _wide = False

    def __call__(self, seams: Seams) -> None:
        super().__call__(seams)
        seams.framework_ready.subscribe(lambda: self._widen(seams))

    def _widen(self, seams: Seams) -> None:
        if not self._wide and backend():
            self._wide = True
            _compute_in_double(seams)

    def ends(self, step: int, results: Arrays) -> None:
        _save(self._path("targets", step), results)


class CarefulTargets(Targets):
    """The program in its own precision, on one thread, with deterministic operations."""

    def __call__(self, seams: Seams) -> None:
        Replay.__call__(self, seams)
        compute_carefully()
        seams.framework_ready.subscribe(compute_carefully)


class Candidate(_Loading):
    """The program as it is, or under a plan."""

    def __init__(self, steps: Sequence[int], folder: Path) -> None:
        super().__init__(steps, folder)
        self._rows: list[dict[str, Any]] = []

    @staticmethod
    def _known(folder: Path, step: int) -> bool:
        return (folder / f"target-{step}.npz").exists()

    def starts(self, values: Arrays) -> None:
        """What a run begins with is nowhere else compared: every chosen step begins with the reference run's values."""
        expected = _load(self._path("initial", 1))
        for name in sorted(values.keys() & expected.keys()):
            self._note(1, "initial value", name, values[name], expected[name])

    def ends(self, step: int, results: Arrays) -> None:
        target = _load(self._path("targets", step))
        for key in sorted(target.keys() | results.keys()):
            kind, name = key.split(" ", 1)
            self._note(step, kind, name, results.get(key), target.get(key))

    def _note(self, step: int, kind: str, name: str, found: Any, expected: Any) -> None:
        row: dict[str, Any] = {"step": step, "kind": kind, "tensor": name, "error": None, "size": 0, "count": 0}
        if found is not None and expected is not None and found.shape == expected.shape:
            row |= {"error": _rms(found - expected), "size": _rms(expected), "count": expected.size}
        self._rows.append(row)

    def report(self) -> dict[str, Any]:
        return {**super().report(), "rows": self._rows, "other_inputs": []}


def _compute_in_double(seams: Seams) -> None:
    import keras
    from keras.src.trainers.data_adapters import array_slicing

    from overdrive.seams.patch import Patches

    before = keras.config.floatx(), keras.config.dtype_policy()
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    patches = Patches()
    restore_width = ops().widen(patches)
    draws = importlib.import_module(f"keras.src.backend.{backend()}.random")
    for name in ("normal", "uniform", "truncated_normal"):
        patches.replace(draws, name, _drawn_narrow(getattr(draws, name)))
    patches.replace(draws, "dropout", _dropout(draws.dropout))
    convert = array_slicing.convert_to_sliceable

    def convert_to_sliceable(arrays: Any, *args: Any, **kwargs: Any) -> Any:
        """Data of fp64 reaches the program rounded to fp32, and so it must reach its target."""
        return convert(keras.tree.map_structure(_rounded, arrays), *args, **kwargs)

    patches.replace(array_slicing, "convert_to_sliceable", convert_to_sliceable)

    def undo() -> None:
        patches.restore()
        restore_width()
        keras.config.set_floatx(before[0])
        keras.config.set_dtype_policy(before[1])

    seams.on_undo(undo)


def _rounded(value: Any) -> Any:
    return value.astype(np.float32) if isinstance(value, np.ndarray) and value.dtype == np.float64 else value


def _drawn_narrow(draw: Callable[..., Any]) -> Callable[..., Any]:
    def drawn(shape: Any, *args: Any, dtype: Any = None, **kwargs: Any) -> Any:
        import keras

        wide = dtype is None or dtype == "float64"
        return (
            keras.ops.cast(draw(shape, *args, dtype="float32", **kwargs), "float64")
            if wide
            else draw(shape, *args, dtype=dtype, **kwargs)
        )

    return drawn


def _dropout(draw: Callable[..., Any]) -> Callable[..., Any]:
    def dropout(inputs: Any, rate: float, noise_shape: Any = None, seed: Any = None) -> Any:
        import keras

        if not 0 < rate < 1 or keras.backend.standardize_dtype(inputs.dtype) != "float64":
            return draw(inputs, rate, noise_shape, seed)
        kept = draw(keras.ops.ones_like(inputs, "float32"), rate, noise_shape, seed) > 0
        return keras.ops.where(kept, inputs / (1 - rate), keras.ops.zeros_like(inputs))

    return dropout


def _is_of_fractions(variable: Any) -> bool:
    return "float" in str(variable.dtype)


def _free(name: str, taken: dict[str, Any]) -> str:
    number = sum(each == name or each.startswith(f"{name} #") for each in taken)
    return f"{name} #{number + 1}" if number else name


def _kept(value: Any) -> Any:
    """Its values in fp64, flat; evenly spaced ones where there are very many."""
    flat = np.asarray(value).reshape(-1)
    return flat[:: -(-flat.size // _MOST_ELEMENTS) or 1].astype(np.float64)


def _rms(value: Any) -> float | None:
    """Root mean square; None where it is not finite."""
    found = float(np.sqrt(np.mean(np.square(value)))) if value.size else 0.0
    return found if np.isfinite(found) else None


def _save(path: Path, arrays: Arrays) -> None:
    """As numbers and a list of names: nothing in it is code."""
    kept: dict[str, Any] = {"names": np.frombuffer(json.dumps(list(arrays)).encode(), np.uint8)}
    for number, array in enumerate(arrays.values()):
        kept[str(number)] = array.astype(np.float32) if "bfloat16" in str(array.dtype) else array
    np.savez(path, **kept)


def _load(path: Path) -> Arrays:
    with np.load(path, allow_pickle=False) as kept:
        names = json.loads(kept["names"].tobytes())
        return {name: kept[str(number)] for number, name in enumerate(names)}
