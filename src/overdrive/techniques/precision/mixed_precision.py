"""Technique `mixed_precision`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from overdrive.core.contract import Contract
from overdrive.core.facts import FORMATS, Facts
from overdrive.techniques.precision import no_16_bit_units, types_of_16_bits
from overdrive.techniques.technique import CannotInstall, Knob, Settings, Technique

if TYPE_CHECKING:
    from overdrive.seams.hub import Handle, Seams


class MixedPrecision(Technique):
    """Has the layers of a compiled Keras model compute in 16 bits, with 32-bit weights.

    What it does: when the model is compiled, gives each of its layers the policy `mixed_bfloat16` or `mixed_float16`,
    but those that make its outputs, as Keras advises: loss, metrics and predictions stay in 32 bits. With fp16
    the optimizer is wrapped in Keras's `LossScaleOptimizer`, which scales the loss and skips steps with infinities.

    When it helps: hardware with 16-bit matrix units: GPUs since 2017, CPUs with avx512_bf16 or AMX.

    When it hurts: elsewhere it is slower. With Keras's policy for all layers a network fed with unnormalised data
    (0 to 255) stopped learning; with its outputs left in 32 bits, as here, it did not. Evaluation and prediction
    are in 16 bits inside, too, and a model that is saved keeps the policy. Left alone: models with a policy of
    their own, subclassed models (their output layers are not known), models that are trained without `compile`, and
    with fp16 those with a `train_step` of their own, whose gradients would be divided by a scale that no loss had.

    What it watches: the policies of all layers, at each `compile` of a model. What would escape: layers that are added
    after it, which stay in 32 bits, and code in a layer that looks at the type of its inputs.

    Contract: statistical. Products are rounded to 8 (bf16) or 11 (fp16) significant bits.

    Source: https://keras.io/api/mixed_precision/; Micikevicius et al., Mixed Precision Training, ICLR 2018
    """

    name = "mixed_precision"
    frameworks = ("keras",)
    contract = Contract.STATISTICAL
    targets = ("forward", "backward")
    expected_saving = 0.3
    order = 50
    knobs = (Knob("dtype", "bfloat16", "the 16-bit type", choices=("bfloat16", "float16")),)

    def applies(self, facts: Facts) -> str | None:
        if facts.own_autocast:
            return "the program has a mixed policy of its own"
        if not facts.modules:
            return "the program compiles no model"
        return no_16_bit_units(facts)

    def candidates(self, facts: Facts) -> Sequence[Settings]:
        return [{"dtype": each} for each in types_of_16_bits(facts)]

    def computes_in(self, settings: Settings) -> str:
        return FORMATS[str(settings["dtype"])]

    def install(self, seams: Seams, settings: Settings) -> Handle:
        policies = _Policies(f"mixed_{settings['dtype']}")
        seams.model_compiled.subscribe(policies.compile)
        seams.on_undo(policies.undo)
        return seams.handle()


class _Policies:
    def __init__(self, name: str) -> None:
        self._name = name
        self._before: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()  # by layer

    def compile(self, model: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        import keras

        from overdrive.seams.keras.internals import layers_in, layers_of

        known = {id(layer) for layer in self._before}
        layers = layers_in(model)
        if any(layer.dtype_policy.name != "float32" for layer in layers if id(layer) not in known):
            raise CannotInstall("the program has a policy of its own")
        outputs = {id(each) for each in layers_of(_output_layers(model))}
        if self._name == "mixed_float16":
            if not type(model).train_step.__module__.startswith("keras."):
                raise CannotInstall("its train_step is the program's own, which may not scale its loss")
            args, kwargs = (), _with_loss_scaling(model, args, kwargs)
        for layer in layers:
            if id(layer) not in outputs and layer not in self._before:
                self._before[layer] = layer.dtype_policy
                layer.dtype_policy = keras.dtype_policies.get(self._name)
        return call(*args, **kwargs)

    def undo(self) -> None:
        for layer, policy in list(self._before.items()):
            layer.dtype_policy = policy
        self._before.clear()


def _output_layers(model: Any) -> Iterator[Any]:
    """The layers that make the model's outputs.

    Raises:
        CannotInstall: they cannot be known.
    """
    import keras

    from overdrive.seams.keras.internals import maker_of

    if type(model).__module__.startswith("keras.") and isinstance(model, keras.Sequential):
        last = [model.layers[-1]] if model.layers else []
    elif hasattr(model, "outputs") and model.outputs and hasattr(model, "operations"):
        last = [maker_of(tensor) for tensor in model.outputs]
    else:
        raise CannotInstall("which layers make the outputs of a subclassed model is not known")
    for layer in last:
        if isinstance(layer, keras.Model):
            yield from _output_layers(layer)
        else:
            yield layer


def _with_loss_scaling(model: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """The arguments of `compile`, by name, with an optimizer that scales the loss."""
    import keras

    given = dict(inspect.signature(keras.Model.compile).bind(model, *args, **kwargs).arguments)
    del given["self"]
    optimizer = keras.optimizers.get(given.get("optimizer", "rmsprop"))
    if not isinstance(optimizer, keras.mixed_precision.LossScaleOptimizer):
        optimizer = keras.mixed_precision.LossScaleOptimizer(optimizer)
    return {**given, "optimizer": optimizer}
