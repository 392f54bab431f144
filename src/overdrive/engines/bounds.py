"""Which values of its inputs an exported graph is right for in any library, as far as its operators tell.

PyTorch raises for a place that is not in a table. ONNX Runtime counts negative ones from its end, and OpenVINO answers
all. OpenVINO computes with whole numbers of 32 bits, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from overdrive.engines.ranges import Bounds

_NARROWEST = -(2.0**31), 2.0**31 - 1
_aten = torch.ops.aten
# Whose result has the values of the first argument, in another order or more than once.
_SAME = frozenset(
    getattr(_aten, name)
    for name in (
        *("view", "_unsafe_view", "reshape", "unsqueeze", "squeeze", "expand", "permute", "transpose", "t", "alias"),
        *("clone", "detach", "slice", "select", "flip", "repeat", "lift_fresh_copy", "contiguous", "split_with_sizes"),
    )
)
# Which ask for sizes and types alone.
_SIZES = frozenset(
    getattr(_aten, name)
    for name in (
        *("sym_size", "sym_stride", "sym_numel", "zeros_like", "ones_like", "full_like", "empty_like"),
        *("new_zeros", "new_ones", "new_full", "new_empty", "_assert_tensor_metadata"),
    )
)
_COMPARE = frozenset(getattr(_aten, name) for name in ("eq", "ne", "lt", "le", "gt", "ge"))
# Their whole numbers are places within the tensor itself, whatever it holds: by number of the result.
_PLACES: dict[Any, int | None] = {
    _aten.argmax: None,
    _aten.argmin: None,
    _aten.argsort: None,
    _aten.topk: 1,
    _aten.sort: 1,
}
_PLACES |= {_aten.max: 1, _aten.min: 1}
# Whose results are places within what they are given second, whatever is looked up.
_WITHIN = frozenset((_aten.bucketize, _aten.searchsorted))
# Which write to places that they are given.
_WRITES = frozenset(
    getattr(_aten, name)
    for name in (
        *("scatter", "scatter_add", "scatter_reduce", "index_put", "index_add", "index_copy", "index_fill"),
        *("index_reduce", "take", "put", "embedding_bag", "_embedding_bag", "bincount", "one_hot"),
    )
)


def bounds_of(graph: Any) -> Bounds:
    """Of a `torch.export.ExportedProgram`, by the place of the tensor among its inputs."""
    walk = _Walk(graph)
    for node in graph.graph.nodes:
        walk.passes(node)
    return walk.found


def placing(graph: Any) -> frozenset[int]:
    """The inputs whose values places in tables are made of, by whatever way but a comparison: whose result is one of
    two, however large what it compares."""
    walk = _Walk(graph)
    for node in graph.graph.nodes:
        walk.passes(node)
    return frozenset(walk.placing)


class _Walk:
    def __init__(self, graph: Any) -> None:
        tensors = [
            each.arg.name
            for each in graph.graph_signature.input_specs
            if each.kind.name == "USER_INPUT" and not hasattr(each.arg, "value")
        ]
        self._inputs = {name: number for number, name in enumerate(tensors)}
        self._flow: dict[Any, frozenset[int]] = {}  # the inputs that a node's values come of
        self._own: dict[Any, int] = {}  # nodes that hold an input's own values, and nothing else
        self.found: dict[int, tuple[float, float] | None] = {}
        self.placing: set[int] = set()  # see `placing`

    def passes(self, node: Any) -> None:
        if node.op == "placeholder":
            number = self._inputs.get(node.name)
            if number is not None:
                self._flow[node] = frozenset((number,))
                self._own[node] = number
                if _kind(node) == "whole" and node.meta["val"].dtype is torch.int64:
                    self.found[number] = _NARROWEST
            return
        flow = frozenset().union(*(self._flow.get(each, ()) for each in node.all_input_nodes))
        self._flow[node] = flow
        if node.op == "call_function" and getattr(node.target, "overloadpacket", None) in _SIZES:
            self._flow[node] = frozenset()
        elif node.op == "call_function" and flow:
            self._called(node, flow)

    def _called(self, node: Any, flow: frozenset[int]) -> None:
        target = getattr(node.target, "overloadpacket", node.target)
        first: Any = node.args[0] if node.args else None
        steering = [each for each in node.all_input_nodes if _kind(each) == "whole" and self._flow.get(each)]
        tables = _tables(node, target)
        if tables or target in _WRITES:
            self._note_placing(steering)
        if getattr(node.target, "__name__", "") == "getitem":
            if _PLACES.get(getattr(first.target, "overloadpacket", None), -1) == node.args[1]:
                self._flow[node] = frozenset()
            elif first in self._own:
                self._own[node] = self._own[first]
        elif target in _SAME or (steering and _widens(node, target)):
            if first in self._own:
                self._own[node] = self._own[first]
        elif target in _PLACES and not steering:
            if _PLACES[target] is None:
                self._flow[node] = frozenset()
        elif tables:
            self._looked_up(tables, steering)
        elif steering and not (target in _COMPARE or (target is _aten._to_copy and _kind(node) != "whole")):
            self._unknown(steering)
        elif _kind(node) == "whole":  # made of fractions, or of what was compared
            self._unknown([node])

    def _looked_up(self, tables: Mapping[Any, Any], steering: list[Any]) -> None:
        """Places in tables, by node: how many rows they have."""
        for each in steering:
            rows = tables.get(each)
            if each not in self._own or not isinstance(rows, int):
                self._unknown([each])
            elif (ends := self.found.get(self._own[each], (-math.inf, math.inf))) is not None:
                self.found[self._own[each]] = max(ends[0], 0), min(ends[1], rows - 1)

    def _note_placing(self, nodes: list[Any]) -> None:
        waiting, seen = list(nodes), set(nodes)
        while waiting:
            node = waiting.pop()
            if not self._flow.get(node) or _kind(node) == "truth":
                continue
            if getattr(node.target, "overloadpacket", None) in _WITHIN:
                continue
            if node.op == "placeholder":
                self.placing |= self._flow[node]
            before = set(node.all_input_nodes) - seen
            seen |= before
            waiting += before

    def _unknown(self, nodes: list[Any]) -> None:
        for each in nodes:
            self.found |= dict.fromkeys(self._flow[each])


def _widens(node: Any, target: Any) -> bool:
    """Whether it makes whole numbers of as many bits as they have all room in."""
    return target is _aten._to_copy and node.meta["val"].dtype in (torch.int64, torch.int32)


def _tables(node: Any, target: Any) -> dict[Any, Any]:
    """Nodes that this one takes for places, with the sizes of what they are places in."""
    if target is _aten.embedding:
        return {node.args[1]: node.args[0].meta["val"].shape[0]}
    if target is _aten.index:
        pairs = list(zip(node.args[1], node.args[0].meta["val"].shape, strict=False))
        several = [each for each, _ in pairs]
        return {each: size for each, size in pairs if each is not None and several.count(each) == 1}
    if target in (_aten.index_select, _aten.gather):
        return {node.args[2]: node.args[0].meta["val"].shape[node.args[1]]}
    return {}


def _kind(node: Any) -> str:
    """Of a node's numbers: fraction, truth, or whole; empty where it is no tensor."""
    value = node.meta.get("val") if hasattr(node, "meta") else None
    if not isinstance(value, torch.Tensor):
        return ""
    if value.is_floating_point():
        return "fraction"
    return "truth" if value.dtype is torch.bool else "whole"
