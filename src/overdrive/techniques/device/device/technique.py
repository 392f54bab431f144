"""Technique `device`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.machine.gpu import gpus
from overdrive.techniques.technique import CannotInstall, Knob, Technique

if TYPE_CHECKING:
    from overdrive.seams.hub import Handle, Seams
    from overdrive.techniques.device.device.place import Place
    from overdrive.techniques.technique import Settings


class Device(Technique):
    """Trains a program that was written for the CPU on the GPU.

    What it does: when the optimizer is made, moves the model to the GPU in place; other models follow when they are
    called. All else the program goes on making on the CPU, with the random numbers that it draws there, and each
    tensor is sent over when it first meets one on the GPU: a batch in the model's call, a target in the loss. What
    a model makes of constants while it is called is made there. What leaves PyTorch again (numpy, printing,
    `torch.save`) comes from a copy on the CPU. What the GPU cannot do is done on the CPU. TF32 is off.

    When it helps: where there is a GPU and a step computes for more than about a millisecond.

    When it hurts: small models, for which a GPU's calls take longer than the CPU's arithmetic; every call of a PyTorch
    function takes 4 to 7 microseconds more (measured on a busy CPU core). `tensor.numpy()` of a result is a copy.

    What it watches: every call of a PyTorch function on the program's own thread, at each of which it looks where
    tensors lie. What would escape: threads of the program's own, what is called in a backward pass, memory that code in
    C or `numpy()` shares with a tensor and writes to (it writes to a copy), and code that compares devices by itself.

    Contract: rounding. The same formulas and the same numbers drawn on the CPU; what is drawn on the GPU (dropout,
    `randn_like` of a result) comes from another generator, which makes it statistical.

    Source: https://docs.pytorch.org/docs/stable/notes/cuda.html; torch.overrides.TorchFunctionMode, with which
    `torch.set_default_device` is made.
    """

    name = "device"
    contract = Contract.ROUNDING
    fallback_contract = Contract.STATISTICAL
    targets = ("forward", "backward", "optimizer")
    expected_saving = 0.8
    conflicts = ("tf32",)  # it switches TF32 off, so that the GPU computes what the CPU would
    order = 3  # before all who look where the parameters live
    knobs = (Knob("keep", 0.25, "share of the GPU's free memory for copies that are kept", low=0.0, high=0.9),)

    place: Callable[[], Place] | None = None  # another device than the GPU: tests have one without hardware

    def applies(self, facts: Facts) -> str | None:
        if facts.device != "cpu":
            return "the program runs on the GPU already"
        if not gpus():
            return "there is no GPU on this machine"
        found = self.own(facts)
        if found.get("built_for_gpus") is False:
            return "this PyTorch was built without a GPU"
        if found.get("gpus") == 0:
            return "PyTorch finds no GPU that it can use (CUDA_VISIBLE_DEVICES, or the driver)"
        return None

    def observe(self, seams: Seams) -> Callable[[], Mapping[str, Any]]:
        def found() -> dict[str, Any]:
            import torch

            built = bool(torch.version.cuda or torch.version.hip)
            return {"built_for_gpus": built, "gpus": torch.cuda.device_count() if built else 0}

        return found

    def install(self, seams: Seams, settings: Settings) -> Handle:
        # All of it when the framework is there and the others are installed: in a call this comes outermost, so that
        # autocast, say, sees where the model lives.
        seams.framework_arrived.subscribe(lambda: self._begin(seams, float(settings["keep"])))
        return seams.handle()

    def _begin(self, seams: Seams, keep: float) -> None:
        import torch

        if self.place is None:
            if not torch.version.cuda and not torch.version.hip:
                raise CannotInstall("this PyTorch was built without a GPU")
            if not torch.cuda.is_available():
                raise CannotInstall("there is no GPU that PyTorch can use")
        from overdrive.techniques.device.device.move import Moved

        moved = Moved(seams, self.place, keep)
        seams.optimizer_made.subscribe(moved.optimizer_made)
        seams.model_called.subscribe(moved.model_called)
        seams.function_called.subscribe(moved.function_called)
        seams.on_undo(moved.undo)
