"""Technique `fp8`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.core.installing import pip_install
from overdrive.techniques.technique import CannotInstall, Settings, Technique

if TYPE_CHECKING:
    from overdrive.seams.hub import Handle, Seams

_MISSING = f"torchao is not installed ({pip_install('torchao')})"
_SIDES = 16  # what both sides of a weight must be divisible by for the GPU's fp8 products


class Fp8(Technique):
    """Multiplies in Linear layers with 8-bit numbers, scaled to their range at each step.

    What it does: when the optimizer is made, puts torchao's `Float8Linear` in the places of the models' Linear
    layers whose both sides are divisible by 16, with the very same parameters: inputs, weights and gradients
    are scaled by their largest value and rounded to 8 bits for the three products of a layer (tensorwise
    scaling). Weights, gradients, optimizer and checkpoints stay as they were. Evaluation is in fp8 as well.

    When it helps: on GPUs since Ada and Hopper, in networks whose time goes into large Linear layers, together with
    `compile`, which fuses the scaling (up to 1.25 times on 8 H100s for an 8B Llama, says torchao).

    When it hurts: small or few Linear layers: the scaling costs more than the products save, without `compile`
    nearly always. Layers with hooks, and subclasses of Linear, are left alone.

    What it watches: the layers of each model when its optimizer is made. What would escape: a hook or a method that the
    program puts later on a layer that it held before, which is another object now; layers that it adds later stay as
    they are.

    Contract: statistical. What is multiplied is rounded to 4 (forward) or 3 (gradients) significant bits.

    Source: Micikevicius et al., FP8 Formats for Deep Learning, 2022; https://docs.pytorch.org/ao/stable/workflows/training.html
    """

    name = "fp8"
    contract = Contract.STATISTICAL
    targets = ("forward", "backward")
    expected_saving = 0.3
    conflicts = ("bf16_weights", "fp32_from_fp64")
    switchable = True
    order = 35

    def applies(self, facts: Facts) -> str | None:
        if facts.device != "cuda":
            return "it needs a GPU with fp8 arithmetic"
        if 0 < facts.compute_capability < 8.9:
            return f"a GPU of compute capability {facts.compute_capability:g} has no fp8 arithmetic (8.9 brought it)"
        if self.own(facts).get("layers") == 0:
            return f"the model has no Linear layer whose sides are divisible by {_SIDES}"
        if "torch.float64" in facts.parameter_dtypes:
            return "the parameters are 64-bit"
        return None if find_spec("torchao") else _MISSING

    def computes_in(self, settings: Settings) -> str:
        return "fp8"

    def observe(self, seams: Seams) -> Callable[[], Mapping[str, Any]]:
        models: list[Any] = []
        seams.optimizer_made.subscribe(lambda _, found: models.extend(found))
        return lambda: {"layers": sum(len(_layers(model)) for model in models)}

    def install(self, seams: Seams, settings: Settings) -> Handle:
        if not find_spec("torchao"):
            raise CannotInstall(_MISSING)
        replaced: list[tuple[Any, str, Any, Any]] = []

        def replace(optimizer: Any, models: list[Any]) -> None:
            from torchao.float8 import convert_to_float8_training

            from overdrive.seams.torch.modules import modules_in

            for model in models:
                layers = _layers(model)
                if reason := _not_here(layers):
                    raise CannotInstall(reason)
                chosen = [layer for _, _, layer in layers]
                convert_to_float8_training(
                    model,
                    module_filter_fn=lambda layer, _, chosen=chosen: any(layer is each for each in chosen),
                    config=_config(),
                )
                for parent, name, layer in layers:
                    new = modules_in(parent)[name]
                    new.train(layer.training)
                    replaced.append((parent, name, layer, new))
            if not replaced:
                raise CannotInstall(f"the model has no Linear layer whose sides are divisible by {_SIDES}")
            if not handle.active:
                put_back()

        def put_back() -> None:
            for parent, name, layer, new in replaced:
                _exchange(parent, name, new, layer)

        def put_in() -> None:
            for parent, name, layer, new in replaced:
                _exchange(parent, name, layer, new)

        seams.optimizer_made.subscribe(replace)
        seams.on_undo(put_back)
        handle = seams.handle(put_in, put_back)
        return handle


def _exchange(parent: Any, name: str, old: Any, new: Any) -> None:
    from overdrive.seams.torch.modules import modules_in

    held = modules_in(parent)
    if name in held and held[name] is old:  # else the program has put another layer there
        new.train(old.training)
        held[name] = new


def _layers(model: Any) -> list[tuple[Any, str, Any]]:
    """(parent, name, layer) of the plain Linear layers of fitting size; each once, since a shared one stays shared."""
    import torch

    from overdrive.seams.torch.hooks import has_hooks
    from overdrive.seams.torch.modules import modules_in

    found: dict[int, list[tuple[Any, str, Any]]] = {}
    for parent in model.modules():
        for name, layer in modules_in(parent).items():
            plain = type(layer) is torch.nn.Linear and not has_hooks(layer)
            if plain and layer.in_features % _SIDES == 0 and layer.out_features % _SIDES == 0:
                found.setdefault(id(layer), []).append((parent, name, layer))
    return [places[0] for places in found.values() if len(places) == 1]


def _config() -> Any:
    from torchao.float8 import Float8LinearConfig

    return Float8LinearConfig(pad_inner_dim=True)  # a batch need not be divisible by 16


def _not_here(layers: list[tuple[Any, str, Any]]) -> str | None:
    import torch

    for _, _, layer in layers:
        device = layer.weight.device
        if device.type != "cuda":
            return f"the parameters are on the {device.type}, which has no fp8 arithmetic"
        if torch.version.hip is None and torch.cuda.get_device_capability(device) < (8, 9):
            return "this GPU has no fp8 arithmetic"
    return None
