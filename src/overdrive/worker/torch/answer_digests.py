"""The digest log of a PyTorch program that trains nothing: what each call of its model was given, and its answer."""

from __future__ import annotations

from typing import Any

from torch.utils._pytree import tree_leaves

from overdrive.seams.hub import Seams
from overdrive.seams.parameters import parameters_of
from overdrive.seams.torch import fetches
from overdrive.worker.digests import SHAKE
from overdrive.worker.torch.checksums import checksum
from overdrive.worker.torch.digests import DigestLog, extend, slots_of
from overdrive.worker.torch.disturbing import disturb


class AnswerLog(DigestLog):
    """An observer. It stands outside of all techniques: one of them may answer without calling the model at all."""

    def __call__(self, seams: Seams) -> None:
        seams.model_called.subscribe(self._called)
        seams.loader_opens.subscribe(self._opens)
        seams.optimizer_made.subscribe(self._made)

    def _made(self, optimizer: Any, models: list[Any]) -> None:
        super()._made(optimizer, models)
        if self.shaken:
            disturb(parameters_of(optimizer), SHAKE, seed=0)

    def _called(self, module: Any, call: Any, *args: Any, **kwargs: Any) -> Any:
        if fetches.under_way():
            return call(*args, **kwargs)
        extend(self._inputs, slots_of(args, kwargs))
        self._modes = checksum([each.training for each in module.modules()], self._modes)
        result = call(*args, **kwargs)
        self._calls += 1
        if self.bits:
            self._heard = checksum(tree_leaves(result), self._heard)
        return result
