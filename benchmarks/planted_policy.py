"""Keras's policy `mixed_bfloat16` for every layer, outputs included, as it is switched on by hand: for
`keras_mnist.py` only."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from overdrive.core.contract import Contract
from overdrive.techniques.technique import Settings, Technique

if TYPE_CHECKING:
    from overdrive.seams.hub import Handle, Seams


class EveryLayer(Technique):
    """Has every layer compute in 16 bits.

    What it does: what `keras.config.set_dtype_policy("mixed_bfloat16")` at the top of the script would do. When it
    helps: normalised images. When it hurts: logits of some hundreds have no decimals in 16 bits. Contract: statistical.
    """

    name = "every_layer"
    family = "benchmark"
    frameworks = ("keras",)
    contract = Contract.STATISTICAL
    targets = ("forward", "backward")
    expected_saving = 0.3

    def install(self, seams: Seams, settings: Settings) -> Handle:
        def compile_in_16_bits(model: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            import keras

            for layer in model._flatten_layers(include_self=False):
                layer.dtype_policy = keras.dtype_policies.get("mixed_bfloat16")
            return call(*args, **kwargs)

        seams.model_compiled.subscribe(compile_in_16_bits)
        return seams.handle()
