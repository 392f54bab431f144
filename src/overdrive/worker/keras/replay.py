"""How a Keras program's steps are followed, saved and loaded (see `worker.replay`).

Keras cannot take a step in fp64 in passing: another run of the program with floatx float64 computes the targets. All
runs see the same batches in the same order. A state can be loaded only where the program stands still. What one step
came to is noted by operations within the graph, so that it can be told of the first step of a call that makes many.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from overdrive.seams.hub import Seams
from overdrive.seams.keras.control import backend
from overdrive.seams.keras.fp64 import compute_in_double
from overdrive.seams.keras.step_log import Application, Columns, StepLog, path_of, step_log_of, unwrapped
from overdrive.seams.step_counter import Iterations
from overdrive.worker.digests import spacing
from overdrive.worker.keras import ops
from overdrive.worker.replay import MOST_ELEMENTS, Arrays, Replay, load_arrays, save_arrays


class KerasSteps:
    """See `worker.replay.Steps`. The program as it is."""

    needs = "targets"
    open_ended = False

    def __init__(self) -> None:
        self._replay: Replay | None = None
        self._step_log: StepLog | None = None
        self._ops: Any = None
        self._iterations = Iterations()
        self._boundary = False
        self._notes: Any = None  # what a step came to, by kind and name
        self._watched: dict[str, Any] = {}  # variables of the program whose change is looked at, likewise
        self._state: dict[str, Any] = {}  # variables of the program that make up its state, by name

    def watch(self, seams: Seams, replay: Replay) -> None:
        self._replay = replay
        seams.framework_ready.subscribe(lambda: self._ready(seams))
        seams.step_ends.subscribe(self._step_ends)
        seams.between_steps.subscribe(self._between_steps)

    def _ready(self, seams: Seams) -> None:
        if self._step_log is None and backend():
            self._step_log, self._ops = step_log_of(seams), ops()
            self._notes = self._ops.Notes()
            self._step_log.add_columns(Columns(0, self._fill, self._find, gradients=True))

    def settle(self) -> None:
        assert self._step_log is not None
        self._step_log.settle()

    def size(self) -> int:
        return sum(each.nbytes for each in self._values_of(self._state).values())

    def save(self, path: Path) -> None:
        save_arrays(path, self._values_of(self._state))

    def load(self, path: Path) -> None:
        for name, value in load_arrays(path).items():
            variable = self._state.get(name)
            if variable is not None and tuple(variable.shape) == value.shape:
                self._ops.assign(variable, value)

    def disturb(self, share: float, seed: int) -> None:
        chance = np.random.default_rng(seed)
        for key, variable in self._watched.items():
            if key.startswith("update "):
                value = self._ops.array(variable)
                noise = chance.standard_normal(value.shape).astype(np.float32)
                self._ops.assign(variable, (value * (1 + share * noise)).astype(value.dtype))

    def values(self) -> Arrays:
        return {key: _kept(value) for key, value in self._values_of(self._watched).items()}

    def begin(self) -> None:
        self._notes.arm()

    def results(self) -> Arrays:
        return {key: _kept(value) for key, value in self._notes.results().items()}

    def inputs(self) -> list[float]:
        return []  # digest logs compare batches

    def end(self) -> None:
        pass

    def _values_of(self, variables: dict[str, Any]) -> Arrays:
        return {name: self._ops.array(variable) for name, variable in variables.items()}

    # -- while the step is traced -----------------------------------------------------------------

    def _find(self, application: Application) -> None:
        first = not self._state
        self._collect(application)
        if first and self._replay is not None:
            trained = {name: self._state[name] for name in self._names(application.variables)}
            with self._ops.outside():  # before the first step has run
                try:
                    self.settle()
                    values = {name: _kept(value) for name, value in self._values_of(trained).items()}
                except Exception:  # variables that this very graph makes have no value yet
                    values = {}
                self._replay.starts(values)

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
        self._boundary = False
        if self._step_log is not None and any(each is optimizer for each in self._step_log.optimizers):
            self._boundary = self._iterations.over(
                optimizer, alone=self._step_log.known < 2
            )  # else another framework's

    def _between_steps(self) -> None:
        if self._boundary and self._replay is not None:
            self._replay.stands(self._iterations.clock.steps)


class StepsInDouble(KerasSteps):
    """Steps in fp64. Random numbers are drawn in fp32, as the program draws them, and widened."""

    _wide = False

    def watch(self, seams: Seams, replay: Replay) -> None:
        super().watch(seams, replay)
        seams.framework_ready.subscribe(lambda: self._widen(seams))

    def _widen(self, seams: Seams) -> None:
        if not self._wide and backend():
            self._wide = True
            compute_in_double(seams)


def steps_for(role: str) -> KerasSteps:
    return StepsInDouble() if role == "targets" else KerasSteps()


def _is_of_fractions(variable: Any) -> bool:
    return "float" in str(variable.dtype)


def _free(name: str, taken: dict[str, Any]) -> str:
    number = sum(each == name or each.startswith(f"{name} #") for each in taken)
    return f"{name} #{number + 1}" if number else name


def _kept(value: Any) -> Any:
    """Its values in fp64, flat; evenly spaced ones where there are very many."""
    flat = np.asarray(value).reshape(-1)
    return flat[:: spacing(flat.size, MOST_ELEMENTS)].astype(np.float64)
