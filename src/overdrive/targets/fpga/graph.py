"""A model as hls4ml reads it, layer by layer, and what it answers where each layer is in fixed point.

The front end names a layer as `torch.fx` does, so that ranges observed here are those of its layers. The numbers here
are a search's guide: what is claimed comes from hls4ml's own bit-accurate emulation.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

_NORMS = nn.BatchNorm1d, nn.BatchNorm2d


@dataclass(frozen=True)
class Fixed:
    """A signed fixed-point type: bits before the point, the sign among them, and after it."""

    integer: int
    fraction: int

    @property
    def text(self) -> str:
        """As hls4ml takes it: truncated, and held at the ends of the range."""
        return f"fixed<{self.integer + self.fraction},{self.integer},TRN,SAT>"

    def of(self, values: torch.Tensor) -> torch.Tensor:
        step, end = 2.0**-self.fraction, 2.0 ** (self.integer - 1)
        return torch.clamp(torch.floor(values / step) * step, -end, end - step)


def integer_bits(largest: float) -> int:
    """That hold numbers up to this size, the sign among them."""
    return 1 + max(0, math.floor(math.log2(largest)) + 1) if largest > 0 else 1


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


class Layers:
    """Of one model. `names`: its layers with an output of their own, in order; `weighted`: those with weights."""

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

    def ranges(self, inputs: torch.Tensor) -> dict[str, float]:
        """The largest size of what each layer gives, weights and all."""
        seen = _Run(self.traced)
        seen.run(inputs)
        return seen.largest

    def answers(self, inputs: torch.Tensor, types: Mapping[str, Fixed]) -> Any:
        """What it answers where these layers, weights and biases are of these types."""
        held = {name: self._parameters(place) for name, place in self.weighted.items() if name in types}
        saved = [(each, each.detach().clone()) for tensors in held.values() for each in tensors]
        try:
            for name, tensors in held.items():
                for each in tensors:
                    largest = float(each.detach().abs().max())
                    each.data = Fixed(integer_bits(largest), types[name].fraction).of(each.data)
            return _Run(self.traced, types).run(inputs)
        finally:
            for each, before in saved:
                each.data = before

    def weight_bits(self, name: str) -> int:
        """Integer bits that its weights and biases need."""
        tensors = self._parameters(self.weighted[name])
        return integer_bits(max(float(each.detach().abs().max()) for each in tensors))

    def _parameters(self, place: str) -> list[torch.nn.Parameter]:
        return list(self.traced.get_submodule(place).parameters(recurse=False))


class _Run(fx.Interpreter):
    def __init__(self, graph: fx.GraphModule, types: Mapping[str, Fixed] | None = None) -> None:
        super().__init__(graph)
        self.largest: dict[str, float] = {}
        self._types = types or {}

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if isinstance(result, torch.Tensor) and result.is_floating_point() and result.numel():
            self.largest[n.name] = float(result.detach().abs().max())
            if n.name in self._types and n.op != "output":
                result = self._types[n.name].of(result)
        return result
