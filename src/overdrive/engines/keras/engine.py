"""Calls of a Keras model made by an engine of another library, built from the graph of that very call.

The variables that the graph reads are looked at before each call. What the library made of it is kept for later runs,
by the graph, what it reads, the versions of the libraries and what it is calibrated by.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from overdrive.engines.kept import KeptEngines
from overdrive.engines.keras.given import NUMERIC, Given
from overdrive.engines.keras.graph import casts_fractions, traced
from overdrive.engines.keras.model import Agrees, Made
from overdrive.engines.keras.values import Values
from overdrive.engines.runtime import Array, Engine, NoEngine, OfTensorFlow, said_nowhere
from overdrive.seams.keras.answers import CALL, PREDICT
from overdrive.seams.keras.control import threads
from overdrive.seams.keras.internals import array_of
from overdrive.seams.points import reason_of


class Engines:
    """Builds them, by one library."""

    kinds: Sequence[str] = (CALL, PREDICT)
    one_at_a_time = True
    as_tensorflow = False

    def __init__(self, runtime: OfTensorFlow) -> None:
        self._runtime = runtime
        self._kept = KeptEngines()

    @property
    def calibrating(self) -> int:
        return self._runtime.calibrating

    @property
    def narrow(self) -> bool:
        return self._runtime.narrow

    def takes(self, given: Given) -> bool:
        return given.numeric

    def made(self, model: Any, given: Given, examples: Sequence[Sequence[Array]], agrees: Agrees) -> Made | None:
        try:
            graph = _Graph.of(traced(model, given))
            key = self._key(graph, given, examples)
            if parts := self._kept.take(key):
                with contextlib.suppress(Exception), said_nowhere():
                    found = self._engine(graph, self._runtime.loaded(parts))
                    if agrees(found):
                        return found
                self._kept.remove(key)
            with said_nowhere():
                converted = self._runtime.of_tensorflow(graph.function, graph.inputs, examples)
                built = self._engine(graph, converted)
            if not agrees(built):
                return None
            with contextlib.suppress(Exception), said_nowhere():  # one that cannot be written down answers all the same
                self._kept.keep(key, self._runtime.saved(converted))
            return built
        except NoEngine:
            raise
        except Exception as error:  # of the library's: it takes no such model
            raise NoEngine(f"{self._runtime.title} takes no such model ({reason_of(error)[:200]})") from None

    def _engine(self, graph: _Graph, converted: Any) -> _Engine:
        given, made = self._runtime.places(converted, graph.inputs, graph.outputs)
        engine = self._runtime.engine(converted, threads())
        return _Engine(engine, given, made, graph.types, graph.values, graph.places_of_fractions)

    def _key(self, graph: _Graph, given: Given, examples: Sequence[Sequence[Array]]) -> str:
        of_libraries = (self._runtime.title, self._runtime.versions, tf.__version__, keras.__version__)
        definition = graph.function.graph.as_graph_def().SerializeToString(deterministic=True)
        digest = hashlib.sha256(repr((of_libraries, given.key, graph.outputs)).encode())
        digest.update(hashlib.sha256(definition).digest())
        calibrated_by = [each for call in examples for each in call] if self._runtime.calibrating else []
        for array in [*graph.read, *calibrated_by]:
            digest.update(repr((array.dtype.str, array.shape)).encode())
            digest.update(array.tobytes())
        return digest.hexdigest()


@dataclass(frozen=True)
class _Graph:
    """A call's, with all that it reads."""

    function: Any
    inputs: Sequence[str]
    outputs: Sequence[str]
    types: Sequence[Any]  # of its outputs, as NumPy has them
    values: Values
    read: Sequence[Array]  # what its variables held, and its constants
    places_of_fractions: bool

    @classmethod
    def of(cls, function: Any) -> _Graph:
        """
        Raises:
            NoEngine: it gives or reads what no engine does.
        """
        outputs = function.outputs
        if not outputs or any(each.dtype.name not in NUMERIC for each in outputs):
            raise NoEngine("it returns what no engine gives")
        variables, constants = [], []
        known = {id(each.handle): each for each in function.graph.variables}
        captures = [outside for outside, _ in function.graph.captures]
        for each in captures:
            if id(each) in known:
                variables.append(known[id(each)])
            elif each.dtype.name in NUMERIC:
                constants.append(array_of(each))
            else:
                raise NoEngine(f"it reads a {each.dtype.name} that is no variable")
        count = len(function.inputs) - len(captures)
        values = Values(variables)
        return cls(
            function,
            inputs=[each.op.name for each in function.inputs[:count]],
            outputs=[each.name for each in outputs],
            types=[each.dtype.as_numpy_dtype for each in outputs],
            values=values,
            read=[*values.arrays(), *constants],
            places_of_fractions=casts_fractions(function),
        )


@dataclass(frozen=True)
class _Engine:
    engine: Engine
    given: Sequence[int]  # which leaf each of its inputs is
    made: Sequence[int]  # where each leaf of the answer is among its results
    types: Sequence[Any]
    values: Values
    places_of_fractions: bool

    def run(self, given: Given) -> list[Any]:
        arrays = given.arrays()
        results = self.engine([arrays[place] for place in self.given])
        found = [results[place].astype(kind, copy=False) for place, kind in zip(self.made, self.types, strict=True)]
        return [tf.convert_to_tensor(each) for each in found]

    def changed(self) -> bool:
        return self.values.changed()
