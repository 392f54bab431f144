"""A model of PyTorch as hls4ml reads it, layer by layer, and what it answers where each layer is in fixed point.

The front end names a layer as `torch.fx` does, so that ranges observed here are those of its layers.
"""

from __future__ import annotations

import copy
import re
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

from overdrive.engines.runtime import Array, NoEngine
from overdrive.model_state.quiet import quiet
from overdrive.seams.points import reason_of
from overdrive.targets.fpga.fixed import Fixed, integer_bits
from overdrive.targets.fpga.front_end import BACKEND, WIDE, Types, converting

_NORMS = nn.BatchNorm1d, nn.BatchNorm2d


def folded(model: torch.nn.Module) -> fx.GraphModule:
    """A copy whose normalisations are part of the weights before them, where a layer's output goes nowhere else.

    hls4ml would keep them as layers with scales of their own, whose ranges are not those of any parameter.
    """
    traced = fx.symbolic_trace(copy.deepcopy(model))
    modules = dict(traced.named_modules())
    calls = Counter(str(node.target) for node in traced.graph.nodes if node.op == "call_module")
    for node in list(traced.graph.nodes):
        norm = modules.get(str(node.target)) if node.op == "call_module" else None
        if not isinstance(norm, _NORMS):
            continue
        before = node.args[0]
        if not isinstance(before, fx.Node) or before.op != "call_module" or len(before.users) > 1:
            continue
        layer, name = modules[str(before.target)], str(before.target)
        if not isinstance(layer, (nn.Conv1d, nn.Conv2d, nn.Linear)) or calls[name] > 1:
            continue
        fuse: Any = fuse_linear_bn_eval if isinstance(layer, nn.Linear) else fuse_conv_bn_eval
        traced.set_submodule(name, fuse(layer, norm))
        node.replace_all_uses_with(before)
        traced.graph.erase_node(node)
    traced.delete_all_unused_submodules()
    traced.recompile()
    return traced


class TorchLayers:
    """See `front_end.Layers`. `weighted`: those with weights."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.traced = fx.symbolic_trace(model)
        modules = dict(self.traced.named_modules())
        self.names, self.weighted = [], {}
        for node in self.traced.graph.nodes:
            if node.op == "output":
                continue
            self.names.append(node.name)
            module = modules.get(str(node.target)) if node.op == "call_module" else None
            if module is not None and isinstance(getattr(module, "weight", None), torch.Tensor):
                self.weighted[node.name] = str(node.target)

    @property
    def ends_in_softmax(self) -> bool:
        """Of the layer that answers, which need not be the one that was registered last."""
        (answer,) = (node.args[0] for node in self.traced.graph.nodes if node.op == "output")
        if not isinstance(answer, fx.Node):
            return False
        if answer.op == "call_module":
            return isinstance(self.traced.get_submodule(str(answer.target)), (nn.Softmax, nn.LogSoftmax))
        return getattr(answer.target, "__name__", answer.target) in ("softmax", "log_softmax")

    def ranges(self, inputs: Array) -> dict[str, float]:
        seen = _Run(self.traced)
        with torch.no_grad():
            seen.run(torch.from_numpy(inputs))
        return seen.largest

    def answers(self, inputs: Array, types: Types) -> Array:
        with torch.no_grad():
            found: Array = self._answers(torch.from_numpy(inputs), types).numpy()
        return found

    def _answers(self, inputs: torch.Tensor, types: Types) -> Any:
        held = {name: self._parameters(place) for name, place in self.weighted.items() if name in types}
        saved = [(each, each.detach().clone()) for tensors in held.values() for each in tensors]
        try:
            for name, tensors in held.items():
                for each in tensors:
                    largest = float(each.detach().abs().max())
                    each.data = _held(each.data, Fixed(integer_bits(largest), types[name].fraction))
            return _Run(self.traced, types).run(inputs)
        finally:
            for each, before in saved:
                each.data = before

    def weight_bits(self, name: str) -> int | None:
        if name not in self.weighted:
            return None
        tensors = self._parameters(self.weighted[name])
        return integer_bits(max(float(each.detach().abs().max()) for each in tensors))

    def _parameters(self, place: str) -> list[torch.nn.Parameter]:
        return list(self.traced.get_submodule(place).parameters(recurse=False))


class _Run(fx.Interpreter):
    def __init__(self, graph: fx.GraphModule, types: Types | None = None) -> None:
        super().__init__(graph)
        self.largest: dict[str, float] = {}
        self._types = types or {}

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if isinstance(result, torch.Tensor) and result.is_floating_point() and result.numel():
            self.largest[n.name] = float(result.detach().abs().max())
            if n.name in self._types and n.op != "output":
                result = _held(result, self._types[n.name])
        return result


def _held(values: torch.Tensor, kind: Fixed) -> torch.Tensor:
    """The nearest numbers of this type below them."""
    return torch.clamp(torch.floor(values / kind.step) * kind.step, *kind.ends)


class TorchFrontEnd:
    """See `front_end.FrontEnd`."""

    def __init__(self, model: nn.Module) -> None:
        self._model = self._given = model
        self.notes: list[str] = []

    def answers(self, inputs: Array) -> Array:
        with torch.no_grad(), quiet():
            own = self._model(torch.from_numpy(inputs))
        if not isinstance(own, torch.Tensor) or own.dim() < 2:
            raise NoEngine("it answers something else than one tensor of rows")
        return own.numpy()

    def read(self, shape: tuple[int, ...]) -> dict[str, Any]:
        import hls4ml

        with quiet():
            self._given = folded(self._model)
            config: dict[str, Any] = hls4ml.utils.config_from_pytorch_model(
                self._given, shape, granularity="name", backend=BACKEND, default_precision=WIDE
            )
        return config

    def layers(self) -> TorchLayers:
        return TorchLayers(self._given)

    def converted(self, config: dict[str, Any], place: Path) -> Any:
        import hls4ml

        return hls4ml.converters.convert_from_pytorch_model(self._given, **converting(config, place))

    def refusal(self, error: Exception) -> str:
        said = reason_of(error)[:200]
        kind = re.search(r"Unsupported layer (\w+)", said)
        named = [name for name, each in self._model.named_modules() if kind and type(each).__name__ == kind.group(1)]
        return f"hls4ml's front end does not take {f'its layer {named[0]} ' if named else 'it '}({said})"
