"""What is exported of a Keras model that a program calls."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from overdrive.engines.keras.given import NUMERIC, Given
from overdrive.engines.keras.standing import frozen
from overdrive.engines.runtime import NoEngine, said_nowhere
from overdrive.seams.keras.answers import PREDICT
from overdrive.targets.child import naming
from overdrive.targets.child.keras.calls import CalledModel
from overdrive.targets.child.keras.model import KerasModel
from overdrive.targets.child.subject import Names, Subject

_BY_ITSELF = re.compile(r"(keras_tensor|input_layer|input)(_\d+)?")  # names that Keras gives


def subject_of(called: CalledModel, name: str) -> Subject:
    """
    Raises:
        NoEngine: no artefact can answer as it does.
    """
    notes = []
    if called.in_training:
        notes.append("the program trains the model and calls it nowhere else: its inputs here are those of `fit`")
    form, calls, counts = called.chosen()
    if form[0] == PREDICT:
        notes.append("the program's own times are those of its predict function with one batch, without all around it")
    given, model = calls[0].given, called.model
    before = frozen(model)
    result = _answer(model, given)
    leaves = keras.tree.flatten(result)
    for each in leaves:
        kind = keras.backend.standardize_dtype(each.dtype) if hasattr(each, "dtype") else type(each).__name__
        if not tf.is_tensor(each) or kind not in NUMERIC:
            raise NoEngine(f"it returns a {kind}")
    arrays = [call.arrays for call in calls]
    made = KerasModel(model, given, arrays)
    again = made.answers(arrays[0])
    if not all(map(np.array_equal, before, frozen(model))):
        raise NoEngine("it changes what it holds in its call, or draws random numbers")
    if not all(map(_same, again, leaves)):
        raise NoEngine("it draws random numbers in its call, and another engine's would be others")
    return Subject(
        name,
        made,
        arrays,
        counts,
        called.beyond_of(form),
        Counter(called.left),
        notes,
        Names(_input_names(model, given), _names(result, "output")),
        with_values=bool(given.kwargs.keys() - {"training"}),
    )


def _same(one: Any, tensor: Any) -> bool:
    return np.array_equal(one, np.asarray(tensor), equal_nan=one.dtype.kind == "f")


def _answer(model: Any, given: Given) -> Any:
    with said_nowhere():
        return given.result_of(model)


def _input_names(model: Any, given: Given) -> list[str]:
    """Those that the model's own inputs have, where the program gave them; else by their places."""
    args = given.arguments(given.leaves)
    first = args[0] if len(args) == 1 else args
    own = [each.name for each in getattr(model, "inputs", None) or ()]
    if len(own) == len(given.leaves) and not isinstance(first, dict) and not any(map(_BY_ITSELF.fullmatch, own)):
        return naming.distinct([naming.name([each], "input") for each in own])
    return _names(first, "input")


def _names(thing: Any, of: str) -> list[str]:
    found = keras.tree.flatten_with_path(thing)
    return naming.distinct([naming.name(list(map(str, path)), of) for path, _ in found])
