"""Technique `compile`."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from overdrive.contract import Contract
from overdrive.facts import Facts
from overdrive.techniques.technique import Knob, Settings, Technique

if TYPE_CHECKING:
    from overdrive.seams.hub import Seams


class Compile(Technique):
    """Compiles the model into fused kernels with `torch.compile`, in place.

    What it does: when the optimizer is made, calls `Module.compile` on the models that own its parameters;
    the first calls compile. What the compiler cannot take runs as before.

    When it helps: many small element-wise operations, on a GPU above all: 1.4 times for training, as a
    geometric mean of 180 models. On a CPU 1.1 to 1.3 times for transformers.

    When it hurts: small convolutional networks on a CPU ran 1.5 to 2.5 times slower; every new shape
    compiles again; the first step takes tens of seconds.

    Contract: rounding. The same mathematics, other orders of summation. It falls to statistical where a program
    draws random numbers in its model: compiled dropout draws others.

    Source: Ansel et al., PyTorch 2, ASPLOS 2024; https://docs.pytorch.org/docs/stable/generated/torch.compile.html
    """

    name = "compile"
    family = "compile"
    contract = Contract.ROUNDING
    falls_to = Contract.STATISTICAL
    relieves = ("forward", "backward")
    order = 40
    knobs = (
        Knob(
            "mode",
            "default",
            "what torch.compile optimises for",
            choices=("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"),
        ),
    )

    def applies(self, facts: Facts) -> str | None:
        if facts.own_compile:
            return "the program compiles its model itself"
        if not facts.modules:
            return "the trained parameters belong to no nn.Module"
        if facts.device == "cpu" and not (shutil.which("g++") or shutil.which("clang++")):
            return "there is no C++ compiler for it on this machine"
        return None

    def candidates(self, facts: Facts) -> Sequence[Settings]:
        modes = ("default", "reduce-overhead") if facts.device == "cuda" else ("default",)
        return [{"mode": mode} for mode in modes]

    def install(self, seams: Seams, settings: Settings) -> None:
        compiled: list[Any] = []

        def compile_models(optimizer: Any, models: list[Any]) -> None:
            import torch

            # What cannot be compiled runs uncompiled: the program never fails for it.
            torch._dynamo.config.suppress_errors = True
            for model in models:
                if model._compiled_call_impl is None and not hasattr(model, "_orig_mod"):
                    torch.nn.Module.compile(model, mode=str(settings["mode"]))
                    compiled.append(model)

        def rehearsed(model: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            return call(*args, **kwargs)  # subscribed so that a failing first call leaves this technique out

        def undo() -> None:
            for model in compiled:
                model._compiled_call_impl = None
            compiled.clear()

        seams.optimizer_made.subscribe(compile_models)
        seams.model_called.subscribe(rehearsed)
        seams.on_undo(undo)
