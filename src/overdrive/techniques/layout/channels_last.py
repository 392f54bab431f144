"""Technique `channels_last`."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.techniques.technique import Technique

if TYPE_CHECKING:
    from overdrive.seams.hub import Handle, Seams
    from overdrive.techniques.technique import Settings


class ChannelsLast(Technique):
    """Stores images and convolution weights with the channels innermost.

    What it does: when the optimizer is made, gives the model's four-dimensional weights the memory format
    `torch.channels_last`; the outermost call hands its image inputs on in that format. Shapes and indexing
    stay as they were.

    When it helps: convolutional networks: 1.1 to 1.6 times on a CPU, up to 1.7 times in half precision on
    a GPU with tensor cores.

    When it hurts: networks with few convolutions between operations that need the old format (each change
    is a copy). A model that calls `.view()` on a convolution's result cannot use it: then its first call
    fails, the format is put back, and the model is called as before.

    Contract: rounding. The same products are summed in another order. It falls to statistical where a program
    draws dropout masks in the order of memory, or where a kernel for this layout is less exact (on a CPU, batch
    normalisation's backward pass came out four times as far from fp64).

    Source: https://docs.pytorch.org/tutorials/intermediate/memory_format_tutorial.html
    """

    name = "channels_last"
    contract = Contract.ROUNDING
    fallback_contract = Contract.STATISTICAL
    targets = ("forward", "backward")
    expected_saving = 0.2
    switchable = True
    order = 30

    def applies(self, facts: Facts) -> str | None:
        return None if facts.convolutions else "the model has no convolution over images"

    def install(self, seams: Seams, settings: Settings) -> Handle:
        layout = _Layout()
        seams.optimizer_made.subscribe(layout.made)
        seams.model_called.subscribe(layout.called)
        seams.on_undo(layout.off)
        return seams.handle(layout.on, layout.off)


class _Layout:
    """The four-dimensional weights of trained models, with what belongs to each: its gradient, its momentum."""

    def __init__(self) -> None:
        self._active = True
        self._optimizers: list[weakref.ref[Any]] = []
        self._models: list[weakref.ref[Any]] = []
        self._before: dict[int, tuple[weakref.ref[Any], tuple[int, ...]]] = {}  # a weight's strides, by its id

    def made(self, optimizer: Any, models: list[Any]) -> None:
        self._optimizers.append(weakref.ref(optimizer))
        self._models += map(weakref.ref, models)
        if self._active:
            self.on()

    def called(self, model: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not self._before:
            return call(*args, **kwargs)
        import torch

        return call(
            *(
                value.contiguous(memory_format=torch.channels_last)
                if isinstance(value, torch.Tensor) and value.dim() == 4
                else value
                for value in args
            ),
            **kwargs,
        )

    def on(self) -> None:
        import torch

        self._active = True
        for model in filter(None, (each() for each in self._models)):
            for tensor in (*model.parameters(), *model.buffers()):
                known = self._before.get(id(tensor))
                if tensor.dim() == 4 and (known is None or known[0]() is not tensor):
                    self._before[id(tensor)] = weakref.ref(tensor), tensor.stride()
                    as_wanted = torch.empty(tensor.shape, device="meta", memory_format=torch.channels_last)
                    self._lay_out(tensor, as_wanted.stride())

    def off(self) -> None:
        self._active = False
        for reference, strides in self._before.values():
            if (tensor := reference()) is not None:
                self._lay_out(tensor, strides)
        self._before.clear()

    def _lay_out(self, tensor: Any, strides: tuple[int, ...]) -> None:
        kept = [state for each in self._optimizers if (optimizer := each()) and (state := optimizer.state.get(tensor))]
        values = [value for state in kept for value in state.values() if getattr(value, "shape", None) == tensor.shape]
        for each in (tensor, tensor.grad, *values):
            if each is not None and each.stride() != strides:
                each.data = each.data.new_empty_strided(each.shape, strides).copy_(each.data)
