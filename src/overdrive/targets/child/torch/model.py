"""A model of PyTorch as a function of arrays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from overdrive.engines.weights import Weights
from overdrive.model_state.quiet import quiet
from overdrive.targets.child import dimensions
from overdrive.targets.child.dimensions import Arrays
from overdrive.targets.child.subject import Names
from overdrive.targets.child.torch import graph
from overdrive.targets.child.torch.flat import FlatModel
from overdrive.targets.fpga.front_end import FrontEnd
from overdrive.worker.torch.fp64 import computing_in_double, widen


class TorchModel:
    """See `subject.Model`."""

    framework = "torch"

    def __init__(self, flat: FlatModel) -> None:
        self._flat = flat

    def answers(self, given: Arrays) -> Arrays:
        with torch.no_grad(), quiet():
            return [each.detach().numpy() for each in self._flat(*_tensors(given))]

    def exact(self, given: Arrays) -> Arrays:
        with torch.no_grad(), quiet(), computing_in_double(self._flat):
            return [each.detach().numpy() for each in self._flat(*map(widen, _tensors(given)))]

    def own_call(self, given: Arrays) -> Callable[[], Any]:
        args, kwargs = self._flat.arguments(_tensors(given))

        def own() -> Any:
            with torch.no_grad():
                return self._flat.model(*args, **kwargs)

        return own

    def write(self, target: str, example: Arrays, marks: dimensions.Marks, names: Names, folder: Path) -> graph.Graph:
        made = graph.Graph(target, self._flat, example, marks)
        graph.write(target, made.graph, made.shapes, names, folder)
        return made

    def digest(self) -> str:
        return Weights([*self._flat.model.parameters(), *self._flat.model.buffers()]).digest()

    def front_end(self) -> FrontEnd:
        from overdrive.targets.fpga.of_torch import TorchFrontEnd

        return TorchFrontEnd(self._flat.model)


def _tensors(given: Arrays) -> list[torch.Tensor]:
    """Copies: a model may write to what it is given."""
    return [torch.from_numpy(each.copy()) for each in given]
