"""State replay: one step from a saved state, in fp64 and as it is.

A free-running comparison is no test (one thread more or less moved a parameter's error 1,700-fold by step 50). So the
reference run, the original program, saves its state before each chosen step. The same step in fp64 gives the target:
gradients, changes, results of evaluations. A candidate is the program as it is, or under a plan. Before each chosen
step it loads the saved state, takes its own step on the same batch with the same random numbers, and reports how far
its results lie from the target.

Here is what all frameworks share. How a state is saved and loaded, and how a step is followed, is a `Steps` of the
framework's own (`worker.torch.replay`, `worker.keras.replay`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeAlias

import numpy as np

from overdrive.evidence.replayed import measured
from overdrive.seams.hub import Seams
from overdrive.worker.thinning import thinned

# A target of a large tensor is kept for this many evenly spaced elements: a wrong formula shows in all.
MOST_ELEMENTS = 1 << 20
# Relative, at random: what the less careful of legal kernels come to (evidence/rounding.py has the figures).
DISTURBANCE = 2.0**-17
# In a tensor's name, before the number of the call within its step that it came of, where that is not the first.
CALL = ", call "
_SKETCHES = 1e-5  # what is computed in fp64 on its way to the model differs by less than this from fp32
Arrays: TypeAlias = dict[str, np.ndarray[Any, Any]]


class Steps(Protocol):
    """A program's state between two steps, and what a step came to. Arrays are flat and in fp64, thinned if large."""

    needs: str  # the role of the run that computes the targets, where the reference run does not
    open_ended: bool  # a step goes on until the next one begins, or the run is over

    def watch(self, seams: Seams, replay: Replay) -> None:
        """Subscribe, and tell the replay of the program's start and of each place where it can be saved and loaded."""

    def settle(self) -> None:
        """Find the state: it is about to be saved, loaded or looked at."""

    def size(self) -> int:
        """Bytes of a saved state."""

    def save(self, path: Path) -> None: ...
    def load(self, path: Path) -> None: ...

    def disturb(self, share: float, seed: int) -> None:
        """Change all parameters at random, by this share of themselves."""

    def values(self) -> Arrays:
        """All that a step changes, by kind and name: `update conv1.weight`, `buffer norm.running_mean`."""

    def begin(self) -> None:
        """Note what the next step comes to."""

    def results(self) -> Arrays:
        """`values` after the step, and what else was noted of it: gradients and results of evaluations."""

    def inputs(self) -> list[float]:
        """A sketch of what the model was given in it."""

    def end(self) -> None:
        """The step is over: let go of what was noted."""


class Replay:
    """An observer; its subclasses are the roles of `core.trial_spec.ReplayRole`."""

    def __init__(self, program: Steps, steps: Sequence[int], folder: Path) -> None:
        self.now = 0  # the chosen step in progress, 0 between them
        self.coming = set(steps)
        self.rare: Collection[int] = ()  # of the chosen ones (see `ReplayRole`)
        self.careful: Callable[[], None] | None = None  # has the framework compute as exactly as its precision allows
        self._program = program
        self._folder = folder
        self._done: list[int] = []
        self._out_of_reach: list[int] = []  # the program did not stand still before them
        self._before: Arrays = {}

    def __call__(self, seams: Seams) -> None:
        self._program.watch(seams, self)
        if self.careful is not None:
            self.careful()
            seams.framework_ready.subscribe(self.careful)  # of Keras's backend more may be there by then

    def starts(self, values: Arrays) -> None:
        """The program's parameters have these values before the first step."""

    def stands(self, step: int, complete: bool = True) -> None:
        """The program stands still and has made so many steps. `complete`: the chosen one came to a clear end."""
        self.ends(complete)
        self._out_of_reach += sorted(each for each in self.coming if each <= step)
        self.coming = {each for each in self.coming if each > step}
        if step + 1 in self.coming:
            self.coming.discard(step + 1)
            self.now = step + 1
            self._program.settle()
            self._prepare(self.now)
            self._before = self._program.values()
            self._program.begin()

    def ends(self, complete: bool = True) -> None:
        """The chosen step in progress is over, if there is one."""
        step, self.now = self.now, 0
        if not step:
            return
        before, self._before = self._before, {}
        results = {
            key: value - before[key] if key in before else value  # not there before: a first momentum, say
            for key, value in self._program.results().items()
        }
        inputs = self._program.inputs()
        self._program.end()
        if complete:
            self._finish(step, results, inputs)
            self._done.append(step)

    def goes_on(self, call: int) -> None:
        """Within the chosen step in progress comes another call (from 2), that depends on what it is given."""
        self._hand_over(self._path(f"call-{call}", self.now))

    def _prepare(self, step: int) -> None:
        """A chosen step begins."""
        self._hand_over(self._path("state", step))

    def _hand_over(self, path: Path) -> None:
        """Save or load what a chosen step, or a further call in it, begins with."""

    def _finish(self, step: int, results: Arrays, inputs: list[float]) -> None:
        """Keep or compare what a chosen step came to."""

    def report(self) -> dict[str, Any]:
        if self._program.open_ended:
            self.ends()
        return {"states": self._done, "out_of_reach": self._out_of_reach}

    def _path(self, kind: str, step: int) -> Path:
        return self._folder / f"{kind}-{step}"

    def _save_target(self, step: int, results: Arrays, inputs: list[float]) -> None:
        save_arrays(self._path("target", step), {"inputs": np.array(inputs), **results})


class Reference(Replay):
    """The original program. Its own steps are the targets where its framework can take them in fp64 in passing."""

    _thinned = False

    def starts(self, values: Arrays) -> None:
        save_arrays(self._path("initial", 1), values)

    def _prepare(self, step: int) -> None:
        if not self._done and not self._thinned:
            coming = thinned({step, *self.coming}, self._program.size(), self._folder, self.rare) - {step}
            self._thinned, self.coming = coming < self.coming, coming
        super()._prepare(step)

    def _hand_over(self, path: Path) -> None:
        self._program.save(path)

    def _finish(self, step: int, results: Arrays, inputs: list[float]) -> None:
        if not self._program.needs:
            self._save_target(step, results, inputs)

    def report(self) -> dict[str, Any]:
        return {**super().report(), "thinned": self._thinned, "needs": self._program.needs}


class Targets(Replay):
    """The original program once more, in fp64: from the states of the reference run, it computes the targets."""

    _wanted: ClassVar[str] = "state"

    def __init__(self, program: Steps, steps: Sequence[int], folder: Path) -> None:
        super().__init__(program, steps, folder)
        self.coming = {step for step in steps if self._path(self._wanted, step).exists()}

    def _hand_over(self, path: Path) -> None:
        if path.exists():  # else the reference run made no such call: then the inputs tell that they are others
            self._program.load(path)

    def _finish(self, step: int, results: Arrays, inputs: list[float]) -> None:
        self._save_target(step, results, inputs)


class ReplayedCandidate(Targets):
    """The program as it is, or under a plan."""

    _wanted = "target"

    def __init__(self, program: Steps, steps: Sequence[int], folder: Path) -> None:
        super().__init__(program, steps, folder)
        self._rows: list[dict[str, Any]] = []
        self._other_inputs: list[int] = []

    def starts(self, values: Arrays) -> None:
        """What a run begins with is nowhere else compared: every chosen step begins with the reference run's values."""
        path = self._path("initial", 1)
        expected = load_arrays(path) if path.exists() else {}
        for name in values if expected else ():
            self._note(1, "initial value", name, values[name], expected.get(name))

    def _finish(self, step: int, results: Arrays, inputs: list[float]) -> None:
        target = load_arrays(self._path("target", step))
        if not _alike(target.pop("inputs").tolist(), inputs):
            self._other_inputs.append(step)
        for key in sorted(target.keys() | results.keys()):
            kind, name = key.split(" ", 1)
            self._note(step, kind, name, results.get(key), target.get(key))

    def _note(self, step: int, kind: str, name: str, found: Any, expected: Any) -> None:
        row: dict[str, Any] = {"step": step, "kind": kind, "tensor": name, "error": None, "size": 0, "count": 0}
        if found is not None and expected is not None and found.shape == expected.shape:
            row |= measured(found, expected)
        self._rows.append(row)

    def report(self) -> dict[str, Any]:
        return {**super().report(), "rows": self._rows, "other_inputs": self._other_inputs}


class Disturbed(ReplayedCandidate):
    """The program as it is, from states whose parameters are a little off: how sensitive its steps are."""

    def _hand_over(self, path: Path) -> None:
        super()._hand_over(path)
        self._program.disturb(DISTURBANCE, self.now)


ROLES: Mapping[str, type[Replay]] = {
    "reference": Reference,
    "careful reference": Reference,
    "answers": Reference,
    "targets": Targets,
    "careful targets": Targets,
    "candidate": ReplayedCandidate,
    "disturbed": Disturbed,
}


def _alike(one: Sequence[float], other: Sequence[float]) -> bool:
    return len(one) == len(other) and all(abs(a - b) < _SKETCHES for a, b in zip(one, other, strict=True))


def save_arrays(path: Path, arrays: Arrays) -> None:
    """As numbers and a list of names: nothing in it is code."""
    kept: dict[str, Any] = {"names": np.frombuffer(json.dumps(list(arrays)).encode(), np.uint8)}
    for number, array in enumerate(arrays.values()):
        kept[str(number)] = array.astype(np.float32) if "bfloat16" in str(array.dtype) else array
    with path.open("wb") as file:
        np.savez(file, **kept)


def load_arrays(path: Path) -> Arrays:
    with np.load(path, allow_pickle=False) as kept:
        names = json.loads(kept["names"].tobytes())
        return {name: kept[str(number)] for number, name in enumerate(names)}
