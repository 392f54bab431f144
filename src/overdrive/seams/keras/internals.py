"""What only private names of Keras and TensorFlow tell. Other rooms ask here, so that a new version breaks one file."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from overdrive.seams.keras.step_log import unwrapped


def trained_variables(optimizers: Iterable[Any]) -> list[Any]:
    return [variable for optimizer in optimizers for variable in unwrapped(optimizer)._trainable_variables]


def layers_of(models: Iterable[Any]) -> list[Any]:
    """Of all depths, each model itself first."""
    return [layer for model in models for layer in model._flatten_layers()]


def layers_in(layer: Any, recursive: bool = True) -> list[Any]:
    """Of all depths, or those that it holds itself."""
    return list(layer._flatten_layers(include_self=False, recursive=recursive))


def own_layers(module: Any) -> list[Any] | None:
    """Those that a layer of Keras on PyTorch has for its own; None where it is no layer."""
    return getattr(module, "_layers", None)


def training_told(layer: Any) -> Any:
    """Whether the call under way is told to train; None where it is not told."""
    return layer._get_call_context().get_value("training")


@contextlib.contextmanager
def called_again(layer: Any, training: bool) -> Iterator[None]:
    """Within it, the layer is called as from outside, told to train or not."""
    layer._get_call_context().set_value("training", training)
    try:
        yield
    finally:
        layer._maybe_reset_call_context()


def is_of_fit(given: Mapping[str, Any]) -> bool:
    """Whether an `evaluate` with these arguments is called by `fit`, for the validation data that it was given."""
    return bool(given.get("_use_cached_eval_dataset"))


def mask_of(tensor: Any) -> Any:
    return getattr(tensor, "_keras_mask", None)


def masked(tensor: Any, mask: Any) -> Any:
    """The same tensor, with that mask."""
    tensor._keras_mask = mask
    return tensor


def maker_of(tensor: Any) -> Any:
    """The layer or operation that a symbolic tensor comes from."""
    return tensor._keras_history.operation


def plain_eager() -> bool:
    """Whether what TensorFlow runs now runs eagerly, and no gradient of it is recorded."""
    from tensorflow.python.eager import context, record

    return bool(context.executing_eagerly()) and not record.could_possibly_record()


def copy_of_function(function: Any) -> Any:
    """A `tf.function` of the same Python function with the same settings, of which nothing has been traced yet."""
    return function._clone(None)


def batches_of(adapter: Any) -> tuple[Any, int] | None:
    """What an adapter of arrays gives to TensorFlow, in Keras's own conversion, and how many samples are a batch; None
    where they are shuffled, or of a kind that is no plain array."""
    import keras
    import numpy as np
    from keras.src.trainers.data_adapters import array_slicing

    inputs = adapter._inputs
    if adapter._shuffle or not adapter._num_samples:
        return None
    if isinstance(inputs, tuple) and len(inputs) == 1 and isinstance(inputs[0], (list, tuple)):
        inputs = (tuple(inputs[0]),)  # as Keras has it made for `tf.data`
    found = array_slicing.convert_to_sliceable(inputs, target_backend="tensorflow")
    plain = (np.ndarray, sys.modules["tensorflow"].Tensor)
    if any(not isinstance(each, plain) or each.dtype == object for each in keras.tree.flatten(found)):
        return None
    return found, int(adapter._batch_size)


def are_arrays(data: Any) -> bool:
    """Whether `fit` cuts these into batches itself: inputs, labels and weights of samples."""
    from keras.src.trainers.data_adapters.array_data_adapter import can_convert_arrays

    return data[0] is not None and bool(can_convert_arrays(data))


def batches_again(data: Any) -> Iterator[Any]:
    """What an iterator over epochs on TensorFlow gives its steps, from the beginning; nothing where the program's own
    iterator is used up."""
    data.data_adapter.on_epoch_begin()
    try:
        yield from data._get_iterator()
    finally:
        data.data_adapter.on_epoch_end()


def data_sets_behind(dataset: Any) -> list[Any]:
    """A `tf.data.Dataset`, and those that it is made of, the nearest first; none of what is no such thing."""
    found: list[Any] = []
    waiting = [dataset]
    while waiting:
        each = waiting.pop(0)
        if hasattr(each, "_inputs"):
            found.append(each)
            waiting += each._inputs()
    return found


def renew_functions() -> None:
    """Have TensorFlow set up the program's graphs anew at their next call, as they are.

    TensorFlow 2.21 does not heed the level asked for ("host_tracer_level expects an i value"), and leaves out operators
    that it has come to know as cheap, by a running mean of what their runs took: after some 90 runs of a small model
    nothing of an optimizer is told. A graph that is set up anew knows nothing of its operators yet. What differs in the
    configuration by which functions are told apart is a number that nothing heeds.
    """
    with contextlib.suppress(ImportError, AttributeError):  # of a TensorFlow to come
        from tensorflow.python.eager import context

        now = context.context()
        config = sys.modules["tensorflow"].compat.v1.ConfigProto.FromString(
            now.function_call_options.config_proto_serialized
        )
        config.experimental.session_metadata.version += 1
        now.function_call_options = context.FunctionCallOptions(now.function_call_options.executor_type, config)


def array_of(tensor: Any) -> Any:
    """What an eager tensor in the main memory holds, as an array that shares it."""
    return tensor._numpy()


def value_of(variable: Any) -> Any:
    """What a variable of TensorFlow holds. While the tensor is held, nobody writes to its memory: TensorFlow gives the
    variable other memory first, so that it holds what it held as long as this has the same place.

    A variable that was once written to in single rows is copied each time.
    """
    return sys.modules["tensorflow"].raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)


def is_of_itself(variable: Any) -> bool:
    """Whether a variable of TensorFlow that was just made holds memory: it is no view of another one's, after a write,
    nor one of a graph that is not run eagerly."""
    from tensorflow.python.ops import resource_variable_ops

    if isinstance(variable, resource_variable_ops._UnreadVariable):
        return False
    return hasattr(variable.handle, "_numpy_internal")


def graphs_of(function: Any) -> list[Any]:
    """That TensorFlow has made of a `tf.function` so far."""
    return [each.graph for each in function._list_all_concrete_functions()]


def operators_in(graph: Any) -> dict[str, str]:
    """By the name of each operator in it and in the functions that it calls, the name of one node."""
    told = graph.as_graph_def()
    inner = {each.signature.name for each in told.library.function}
    nodes = [*told.node, *(node for each in told.library.function for node in each.node_def)]
    return {node.op: node.name for node in nodes if node.op not in inner}


def keeps_state(operator: str) -> bool:
    """Whether an operator of TensorFlow does more than to compute with what it is given."""
    from tensorflow.python.framework import op_def_registry

    told = op_def_registry.get(operator)
    return told is None or bool(told.is_stateful)


def variables_in(dataset: Any) -> list[Any]:
    """That the functions of a `tf.data.Dataset` use, and those of what it is made of."""
    functions = [each for source in data_sets_behind(dataset) for each in source._functions()]
    return [variable for each in functions for variable in each.function.graph.variables]


def seeds_of_operators() -> Any:
    """The state of the generator that gives eager operators their seeds; None where the program has set no seed."""
    from tensorflow.python.eager import context

    generator = getattr(context.context(), "_rng", None)
    return None if generator is None else generator.getstate()
