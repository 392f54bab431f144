"""Technique `jit_compile`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.techniques.technique import CannotInstall, Knob, Settings, Technique

if TYPE_CHECKING:
    from overdrive.seams.hub import Handle, Seams


_ON_JAX = "on JAX, Keras has every step compiled by itself"


class JitCompile(Technique):
    """Has a Keras model's step compiled by XLA or `torch.compile`, or not, where the program leaves it to Keras.

    What it does: gives `compile` the argument `jit_compile`. On TensorFlow Keras by itself decides by the device: XLA
    on a GPU, none on a CPU. So what is tried is the other. On PyTorch it compiles nothing by itself, and
    `torch.compile` is tried. On JAX it compiles every step: there is nothing to try.

    When it helps: models of many small operations that XLA makes into one; on a GPU, doing without it where shapes
    change often and each is compiled anew.

    When it hurts: XLA's convolutions on the CPU are not oneDNN's: a small CNN was 3 to 4 times slower (two cores of
    an AMD EPYC, batch 64). Compiling takes seconds before the first step. A program that sets `jit_compile` or
    `run_eagerly` itself is left alone, and so are loops of the program's own.

    What it watches: each `compile` of a model. What would escape: a program that asks for `jit_compile`, or sets it
    after `compile`, whose word stands.

    Contract: rounding. Fused operations round at other places, sums are taken in another order. It falls to
    statistical where the model draws random numbers (Dropout), which XLA makes by another generator.

    Source: https://openxla.org/xla/tf2xla; https://keras.io/api/models/model_training_apis/
    """

    name = "jit_compile"
    frameworks = ("keras",)
    contract = Contract.ROUNDING
    fallback_contract = Contract.STATISTICAL
    targets = ("forward", "backward", "optimizer", "other")
    expected_saving = 0.2
    usual_start = 10.0
    order = 42
    knobs = (Knob("xla", True, "whether XLA (on PyTorch `torch.compile`) compiles the step"),)

    def applies(self, facts: Facts) -> str | None:
        if facts.backend == "jax":
            return _ON_JAX
        if not facts.modules:
            return "the program compiles no model"
        if facts.own_compile and (facts.device == "cpu" or facts.backend == "torch"):
            return f"the program has its model compiled by {'torch.compile' if facts.backend == 'torch' else 'XLA'}"
        return None

    def candidates(self, facts: Facts) -> Sequence[Settings]:
        return [{"xla": facts.device == "cpu" or facts.backend == "torch"}]

    def install(self, seams: Seams, settings: Settings) -> Handle:
        def compile_model(model: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            import keras

            if keras.backend.backend() == "jax":
                raise CannotInstall(_ON_JAX)
            given = inspect.signature(keras.Model.compile).bind(model, *args, **kwargs).arguments
            if given.get("jit_compile", "auto") != "auto":
                raise CannotInstall("the program sets jit_compile itself")
            if given.get("run_eagerly"):
                raise CannotInstall("the model runs eagerly")
            result = call(*args, **kwargs)
            model.jit_compile = bool(settings["xla"])  # no function has been made of it yet
            return result

        seams.model_compiled.subscribe(compile_model)
        return seams.handle()
