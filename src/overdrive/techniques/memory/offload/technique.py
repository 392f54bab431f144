"""Technique `offload`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.machine.memory import available_memory
from overdrive.techniques.technique import CannotInstall, Knob, Settings, Technique

if TYPE_CHECKING:
    from overdrive.seams.hub import Handle, Seams

DEVICE = "cuda"  # whose activations are laid aside; tests have another
_SHARE = 0.8  # of the main memory that was free at the first call


class Offload(Technique):
    """Lays activations in the main memory until the backward pass needs them.

    What it does: what the model's call saves for its backward pass is copied into page-locked main memory on a
    stream of its own while the GPU computes on, and let go of on the GPU. The backward pass has it copied back some
    operations before it asks for it. Parameters, small tensors, and what finds no room in four fifths of the free
    main memory stay where they are.

    When it helps: a model or batch whose activations do not fit, with enough computing for each byte to hide the
    copies behind: large products and convolutions.

    When it hurts: where the copies take longer than the computing (element-wise operations, small layers, a slow
    bus), the GPU waits for them. It needs as much free main memory as the activations are large, and up to twice
    that, since page-locked memory comes in powers of two.

    What it watches: whether something traces the model, or the program has hooks of its own on what is saved: then it
    stands aside. What would escape: an activation that is written to between the passes, which PyTorch refuses where it
    has it itself.

    Contract: exact. Copies there and back change no bit.

    Source: Rhu et al., vDNN, MICRO 2016; `torch.autograd.graph.save_on_cpu`,
    https://docs.pytorch.org/docs/stable/autograd.html
    """

    name = "offload"
    contract = Contract.EXACT
    targets = ("forward", "backward")
    aims = ("memory",)
    switchable = True
    order = 44
    knobs = (Knob("least_mib", 1, "smaller tensors stay on the GPU (MiB)", low=0, high=1024),)

    def applies(self, facts: Facts) -> str | None:
        if facts.device != "cuda":
            return "the activations are in the main memory already"
        return facts.without_module()

    def install(self, seams: Seams, settings: Settings) -> Handle:
        offloading = _Offloading(seams, int(settings["least_mib"]) << 20)
        seams.model_called.subscribe(offloading.called)
        seams.step_ends.subscribe(offloading.first_step)
        return seams.handle()


class _Offloading:
    def __init__(self, seams: Seams, least: int) -> None:
        self._seams = seams
        self._least = least
        self._shelves: dict[Any, Any] = {}  # by device

    def called(self, model: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        import torch

        from overdrive.seams.torch.internals import keeps_saved_tensors_elsewhere
        from overdrive.seams.torch.modules import first_parameter
        from overdrive.seams.torch.tracing import traced

        first = first_parameter(model)
        if first is None or first.device.type != DEVICE or not torch.is_grad_enabled():
            return call(*args, **kwargs)
        if traced() or keeps_saved_tensors_elsewhere():  # somebody looks on, or does with them as he likes
            return call(*args, **kwargs)
        shelf = self._shelf(first.device)
        own = {each.untyped_storage().data_ptr() for each in (*model.parameters(), *model.buffers())}
        try:
            with shelf.hooks(own):
                return call(*args, **kwargs)
        finally:
            shelf.end_of_call()

    def _shelf(self, device: Any) -> Any:
        from overdrive.techniques.memory.offload.host import Shelf, Streams

        if device not in self._shelves:
            self._shelves[device] = Shelf(Streams(device), int(_SHARE * available_memory()), self._least)
        return self._shelves[device]

    def first_step(self, optimizer: Any) -> None:
        self._seams.step_ends.unsubscribe(self.first_step)
        if not any(shelf.laid for shelf in self._shelves.values()):
            least = self._least >> 20
            raise CannotInstall(f"no model on a GPU keeps a tensor of {least} MiB or more, or no main memory is free")
