"""Calls of PyTorch's modules as the steps of a program that only calls its model (see `seams.answering`). The first of
each is told as *optimizer made*."""

from __future__ import annotations

import weakref

import torch

from overdrive.seams.answering import AnsweringModel, Answers
from overdrive.seams.hub import Seams
from overdrive.seams.torch import fetches
from overdrive.seams.torch.internals import in_backward


class TorchAnswers(Answers):
    """Of modules that have parameters: losses and transforms have none."""

    def __init__(self, hub: Seams) -> None:
        super().__init__(hub, "torch", lambda model: list(model.parameters()))

    def begins(self, model: torch.nn.Module) -> AnsweringModel | None:
        return None if in_backward() or fetches.under_way() else super().begins(model)

    def met(self, stands_in: AnsweringModel, model: torch.nn.Module) -> None:
        self._hub.optimizer_made.publish(stands_in, [model])


_of_hub: weakref.WeakKeyDictionary[Seams, TorchAnswers] = weakref.WeakKeyDictionary()


def watch(hub: Seams) -> None:
    """Before the seams are entered: what is told here must be wanted there."""
    if hub.inference:
        _of_hub[hub] = TorchAnswers(hub)


def answers_of(hub: Seams) -> TorchAnswers | None:
    return _of_hub.get(hub)
