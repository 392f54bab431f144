"""Why steps of a Keras model cannot be left out: what they do besides changing variables is in no snapshot."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from overdrive.seams.keras.internals import graphs_of, keeps_state, operators_in

# Operators that have state, by how their names begin, whose state is in variables alone, or which only tell something.
_IN_VARIABLES = (
    "ReadVariable", "Assign", "ResourceApply", "ResourceSparseApply", "ResourceGather", "ResourceScatter",
    "ResourceStridedSliceAssign", "VarHandleOp", "VarIsInitialized", "VariableShape", "DisableCopyOnRead",
    "PartitionedCall", "StatefulPartitionedCall", "While", "If", "Case", "XlaLaunch", "Placeholder",
    "IteratorGetNext", "Optional", "Assert", "Print", "LookupTableFind", "LookupTableSize", "HashTable",
    "Stateless", "CheckNumerics", "TensorList", "EmptyTensorList", "Stack", "Timestamp",
)  # fmt: skip
_DRAWS = ("Random", "Truncated", "Parameterized", "Multinomial", "Stateful", "Rng", "StochasticUniform")
_OF_PYTHON = ("PyFunc", "EagerPyFunc", "PyFuncStateless")


def in_model(model: Any) -> str:
    """ "" where nothing is known against it."""
    if model.run_eagerly:
        return "its model runs eagerly (run_eagerly=True)"
    if model.distribute_strategy is not tf.distribute.get_strategy() or tf.distribute.has_strategy():
        return "its model is trained under a strategy of tf.distribute"
    return ""


def in_graphs(functions: Iterable[Any], of_data: Iterable[Any]) -> str:
    """Looks at what one call has traced.

    Args:
        functions: TensorFlow's, that were called.
        of_data: variables that functions of data sets use.
    """
    used = {id(each): each for each in of_data}
    for function in functions:
        for graph in graphs_of(function):
            for operator, name in operators_in(graph).items():
                if keeps_state(operator) and not operator.startswith(_IN_VARIABLES):
                    return _reason(operator, name)
            for variable in graph.variables:
                if id(variable) in used:
                    return f"its data are computed with {variable.name}, which its steps use, too"
    return ""


def _reason(operator: str, name: str) -> str:
    if operator in _OF_PYTHON:
        return f"its steps call a function of Python ({name})"
    if operator.startswith(_DRAWS):
        return (
            f"its steps draw random numbers whose state is in no variable ({name}); keras.random with a SeedGenerator "
            "keeps it in one"
        )
    return f"its steps do more than to change variables ({name}, {operator})"
