"""An engine that needs no library: PyTorch carries out the exported graph, with the weights of when it was built."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

TITLE = "the graph"


class Graphs:
    """A `Runtime`. `spoilt`: what it does to each result, as a library with a defect would.

    Attributes:
        built: the shapes that graphs were converted for.
        loaded_again: how many models came from the disk.
        examples: what the last one was built from.
        asked: how often one was.
        threads: that each engine may use.
    """

    title = TITLE
    narrow = False
    versions = "1"

    def __init__(self, spoilt: Callable[[Any], Any] = lambda array: array, calibrating: int = 0) -> None:
        self.calibrating = calibrating
        self.built: list[list[tuple[int, ...]]] = []
        self.examples: Sequence[Sequence[Any]] = ()
        self.threads: list[int] = []
        self.asked = self.loaded_again = 0
        self._spoilt = spoilt

    def missing(self) -> str | None:
        return None

    def converted(self, graph: Any, examples: Sequence[Sequence[Any]], places: Sequence[Any] = ()) -> Any:
        self.examples = examples
        self.built.append([each.shape for each in examples[-1]])
        return copy.deepcopy(graph)

    def saved(self, model: Any) -> Mapping[str, bytes]:
        torch.export.save(model, content := io.BytesIO())
        return {"graph": content.getvalue(), "nothing": b""}

    def loaded(self, parts: Mapping[str, bytes]) -> Any:
        self.loaded_again += 1
        return torch.export.load(io.BytesIO(parts["graph"]))

    def engine(self, model: Any, threads: int) -> Any:
        self.threads.append(threads)
        module = model.module()

        def answer(given: Sequence[Any]) -> list[Any]:
            self.asked += 1
            args, kwargs = _arranged(model, [torch.from_numpy(each.copy()) for each in given])
            with torch.no_grad():
                made = module.forward(*args, **kwargs)
            leaves = [each for each in torch.utils._pytree.tree_leaves(made) if isinstance(each, torch.Tensor)]
            return [self._spoilt(each.numpy().copy()) for each in leaves]

        return answer


def _arranged(graph: Any, tensors: list[torch.Tensor]) -> Any:
    """Arguments of the exported module: these tensors, and the plain values that the call had."""
    leaves = iter(tensors)
    specs = [each for each in graph.graph_signature.input_specs if each.kind.name == "USER_INPUT"]
    places = [each.arg.value if hasattr(each.arg, "value") else next(leaves) for each in specs]
    return torch.utils._pytree.tree_unflatten(places, graph.call_spec.in_spec)
