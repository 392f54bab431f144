"""Keras's blocks that are called again in the backward pass: which they are, and how.

Keras's own `RematScope` hands a layer's keyword arguments, `training` among them, to `tf.recompute_grad`, which takes
none in a graph: in `fit` it failed for every layer that has some (Keras 3.15.1). Here only tensors are handed on, and
the second call finds all variables as the first one found them and leaves them alone: Dropout draws the same numbers
again, BatchNormalization moves its means once.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf
from keras.src import backend
from tensorflow.python.framework.func_graph import FuncGraph

from overdrive.seams.keras.internals import called_again, layers_in, layers_of, mask_of, training_told

_UNKNOWN_SIZE = 8  # that stands for a size which is not known while a graph is traced
_VIEWS = ("Identity", "Reshape", "Squeeze", "ExpandDims", "StopGradient", "PreventGradient")
_NOT_COMPARED = ("Const", "Placeholder", "ReadVariableOp", *_VIEWS)  # the second call has what the first one read
_HARMLESS = ("VarHandleOp", "ReadVariableOp", "Placeholder", "NoOp", "Assert")  # TensorFlow calls them stateful


@dataclass(frozen=True)
class BlockMemory:
    """What one block keeps for the backward pass besides what it was given and returns, in bytes."""

    inside: int
    given: int
    returned: int


class Unsuitable(Exception):
    """A block cannot be called again; the message is the reason."""


def blocks(layer: Any) -> Iterator[Any]:
    """The parts of a model to look at: its layers, but the insides of models and of layers that hold like layers."""
    children = layers_in(layer, recursive=False)
    own = (type(child) for child in children if layers_in(child))
    kinds = Counter(kind for kind in own if not kind.__module__.startswith("keras."))
    if isinstance(layer, keras.Model) or any(count > 1 for count in kinds.values()):
        for child in children:
            yield from blocks(child)
    else:
        yield layer


class RecomputedBlock:
    """One block. `chosen(kept)` decides whether it is called again, when it is first traced in training."""

    def __init__(self, block: Any, chosen: Callable[[BlockMemory], bool], tell: Callable[[str], None]) -> None:
        self.block = block
        self._chosen = chosen
        self._tell = tell  # of the outcome: "" where it is called again, else why not
        self._plain = block.call
        self._decided: bool | None = None
        self._state: list[Any] = []  # variables that its call writes to
        self._resting = False

    def put_in(self) -> None:
        @functools.wraps(self._plain)
        def call(*args: Any, **kwargs: Any) -> Any:
            return self._call(*args, **kwargs)

        vars(self.block)["call"] = call

    def take_out(self) -> None:
        vars(self.block).pop("call", None)

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        if self._resting or tf.executing_eagerly() or backend.in_stateless_scope() or not _training(self.block, kwargs):
            return self._plain(*args, **kwargs)
        if self._decided is None:
            self._decided = self._decide(args, kwargs)
        if not self._decided or _symbolic(args, kwargs) or _masked((args, kwargs)):
            return self._plain(*args, **kwargs)
        return self._called_again(args, kwargs)

    def _decide(self, args: Any, kwargs: Any) -> bool:
        self._resting = True
        try:
            if not self._chosen(self._measured(args, kwargs)):
                raise Unsuitable("keeps little inside")
            self._resting = False
            self._rehearse(args, kwargs)
        except Exception as error:  # in a graph of its own, which nothing is left of
            self._tell(str(error) if isinstance(error, Unsuitable) else f"could not be tried ({type(error).__name__})")
            return False
        finally:
            self._resting = False
        self._tell("")
        return True

    def _measured(self, args: Any, kwargs: Any) -> BlockMemory:
        """
        Raises:
            Unsuitable: with the reason.
        """
        layers = layers_of([self.block])
        before = {id(layer): set(vars(layer)) for layer in layers}
        if any(layer.activity_regularizer is not None for layer in layers):
            raise Unsuitable("adds a loss")
        if _masked((args, kwargs)):
            raise Unsuitable("is given a mask along with its input")
        known = {id(variable): variable for variable in _variables()}
        with FuncGraph("overdrive_measured").as_default() as graph:
            args, kwargs, given = _placeholders(args, kwargs)
            with keras.StatelessScope(collect_losses=True) as scope, tf.GradientTape() as tape:
                tape.watch(given)
                result = self._plain(*args, **kwargs)
            returned = [each for each in tf.nest.flatten(result) if tf.is_tensor(each)]
            forward = graph.get_operations()
            if scope.losses:
                raise Unsuitable("adds a loss")
            if _masked(result):
                raise Unsuitable("gives a mask along with its result")
            if any(each.op_def.is_stateful and each.type not in _HARMLESS for each in forward if each.op_def):
                raise Unsuitable("draws random numbers or writes to variables outside of Keras")
            if any(set(vars(layer)) - before[id(layer)] for layer in layers):
                raise Unsuitable("keeps something on itself")
            tape.gradient(returned, [*given, *(each.value for each in self.block.trainable_variables)])
            backward = graph.get_operations()[len(forward) :]
        unseen = [number for number in scope.state_mapping if number not in known]
        if unseen:
            raise Unsuitable("writes to variables that could not be found")
        self._state = [known[number] for number in scope.state_mapping]
        return _kept(forward, backward, given, returned)

    def _rehearse(self, args: Any, kwargs: Any) -> None:
        """Both calls and the gradient, in a graph that is thrown away.

        Raises:
            Unsuitable: the second call is not what the first is.
        """
        with FuncGraph("overdrive_rehearsed").as_default() as graph:
            args, kwargs, given = _placeholders(args, kwargs)
            counts: list[Counter[str]] = []
            with keras.StatelessScope(), tf.GradientTape() as tape:
                tape.watch(given)
                result = self._called_again(args, kwargs, counts)
            variables = [each.value for each in self.block.trainable_variables]
            returned = [each for each in tf.nest.flatten(result) if tf.is_tensor(each)]
            tape.gradient(returned, [*given, *variables])
            del graph
        if len(counts) != 2 or counts[0] - counts[1]:
            raise Unsuitable("does other things when it is called again")

    def _called_again(self, args: Any, kwargs: Any, counts: list[Counter[str]] | None = None) -> Any:
        flat = tf.nest.flatten([args, kwargs])
        places = [place for place, each in enumerate(flat) if tf.is_tensor(each) and each.dtype.is_floating]
        state = [(variable, tf.identity(_value(variable))) for variable in self._state]
        training, scope = _training(self.block, kwargs), backend.get_autocast_scope()
        structure: list[Any] = []
        calls = 0

        def call(*tensors: Any) -> Any:
            nonlocal calls
            calls += 1
            for place, tensor in zip(places, tensors, strict=True):
                flat[place] = tensor
            again_args, again_kwargs = tf.nest.pack_sequence_as([args, kwargs], flat)
            before = len(tf.compat.v1.get_default_graph().get_operations())
            with ExitStack() as stack:
                if calls > 1:
                    stack.enter_context(keras.StatelessScope(state_mapping=state))
                    stack.enter_context(called_again(self.block, training))
                    if scope is not None:
                        stack.enter_context(backend.AutocastScope(scope.dtype))
                result = self._plain(*again_args, **again_kwargs)
            if counts is not None:
                made = tf.compat.v1.get_default_graph().get_operations()[before:]
                counts.append(Counter(each.type for each in made if each.type not in _NOT_COMPARED))
            structure[:] = [result]
            return tf.nest.flatten(result)

        made = keras.remat(call)(*(flat[place] for place in places))
        return tf.nest.pack_sequence_as(structure[0], made)


def _training(block: Any, kwargs: Any) -> bool:
    given = kwargs.get("training")
    return bool(training_told(block) if given is None else given)


def _symbolic(args: Any, kwargs: Any) -> bool:
    return any(isinstance(each, keras.KerasTensor) for each in tf.nest.flatten([args, kwargs]))


def _masked(things: Any) -> bool:
    return any(mask_of(each) is not None for each in tf.nest.flatten(things))


def _value(variable: Any) -> Any:
    return tf.convert_to_tensor(variable.value)


def _variables() -> Iterator[Any]:
    """All of Keras's that live."""
    import gc

    from keras.src.backend.common.variables import Variable

    return (each for each in gc.get_objects() if issubclass(type(each), Variable))


def _placeholders(args: Any, kwargs: Any) -> tuple[Any, Any, list[Any]]:
    """The same arguments in the graph that is being traced, with sizes that are all known."""
    given: list[Any] = []

    def stand_in(thing: Any) -> Any:
        if not tf.is_tensor(thing):
            return thing
        if thing.shape.rank is None:
            raise Unsuitable("is given a tensor of unknown shape")
        shape = [_UNKNOWN_SIZE if size is None else size for size in thing.shape]
        found = tf.compat.v1.placeholder(thing.dtype, shape)
        if thing.dtype.is_floating:
            given.append(found)
        return found

    args, kwargs = tf.nest.map_structure(stand_in, [args, kwargs])
    return args, kwargs, given


def _kept(
    forward: Sequence[Any], backward: Sequence[Any], given: Sequence[Any], returned: Sequence[Any]
) -> BlockMemory:
    made = {output.ref(): output for operation in forward for output in operation.outputs}
    outside = {_source(each).ref() for each in (*given, *returned)}
    used = {}
    for operation in backward:
        for each in operation.inputs:
            source = _source(each)
            known = source.ref() in made and source.ref() not in outside
            if known and source.op.type not in ("Const", "ReadVariableOp"):
                used[source.ref()] = _size(source)
    return BlockMemory(sum(used.values()), sum(map(_size, given)), sum(map(_size, returned)))


def _source(tensor: Any) -> Any:
    while tensor.op.type in _VIEWS and tensor.op.inputs:
        tensor = tensor.op.inputs[0]
    return tensor


def _size(tensor: Any) -> int:
    count = tensor.shape.num_elements()
    return int(count or 0) * int(tensor.dtype.size)
