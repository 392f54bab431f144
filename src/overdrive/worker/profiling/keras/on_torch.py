"""Keras on PyTorch: its steps run operator by operator, and are recorded as those of a PyTorch program are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from overdrive.seams.hub import Seams
from overdrive.seams.keras.internals import own_layers
from overdrive.worker.profiling.keras.standing import variables
from overdrive.worker.profiling.recorder import Details
from overdrive.worker.profiling.timeline import Timeline
from overdrive.worker.profiling.torch.details import TorchDetails
from overdrive.worker.profiling.torch.modules import ModuleNames
from overdrive.worker.profiling.torch.standing import placed
from overdrive.worker.recording import Recorder


def make_details(timeline: Timeline, folder: Path, models: dict[int, Any]) -> Details:
    return _LayerDetails(timeline, folder, models)


class _LayerDetails(TorchDetails):
    def __init__(self, timeline: Timeline, folder: Path, models: dict[int, Any]) -> None:
        super().__init__(timeline, folder, _LayerNames())
        self._models = models

    def __call__(self, seams: Seams) -> None:
        seams.gradients_zeroed.subscribe(self._observing.zeroed)  # a seam of PyTorch's, which is there before Keras

    def _own_compile(self) -> bool:
        return any(model.jit_compile for model in self._models.values())

    def _stands(self, recorder: Recorder) -> tuple[dict[str, int], dict[int, str]]:
        found = variables(self._models.values(), recorder.optimizers)
        owned, kept = ([each.value for each in found[name]] for name in ("parameters", "optimizer state"))
        gradients = [each.grad for each in owned if each.grad is not None]
        return placed({"parameters": owned, "gradients": gradients, "optimizer state": kept})


class _LayerNames(ModuleNames):
    """Layers by Keras's own names, `sequential.conv2d`."""

    def outermost(self, module: Any) -> None:
        if module in self._names:
            return
        if own_layers(module) is not None:
            self._name(module, module.name)
        else:
            super().outermost(module)

    def _name(self, layer: Any, path: str) -> None:
        self._names[layer] = path
        for inner in own_layers(layer) or ():
            if inner not in self._names:
                self._name(inner, f"{path}.{inner.name}")
        for module in layer.modules():  # what a layer is made of without being one of its layers
            self._names.setdefault(module, path)
