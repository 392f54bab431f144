"""Technique `interop`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.techniques.technique import CannotInstall, Knob, Settings, Technique

if TYPE_CHECKING:
    from overdrive.seams.hub import Handle, Seams


class Interop(Technique):
    """Sets how many operations of a TorchScript model may run at the same time on the CPU.

    What it does: calls `torch.set_num_interop_threads` as soon as the framework has been imported, before any
    parallel work. PyTorch allows that once in a process, so it stays when a session in a notebook ends.

    When it helps: scripted models that start parallel branches with `torch.jit.fork`.

    When it hurts: more operations at once than cores. Programs without TorchScript run one operation after
    another, and are left alone.

    What it watches: nothing: PyTorch allows the number to be set once in a process. What would escape: a program that
    sets it itself, later, and is refused, or that asks for it.

    Contract: exact. Each operation is the same, with the same threads of its own.

    Source: https://docs.pytorch.org/docs/stable/notes/cpu_threading_torchscript_inference.html
    """

    name = "interop"
    programs = ("training", "inference")
    contract = Contract.EXACT
    targets = ("forward", "backward")
    expected_saving = 0.05
    survives = True
    order = 14
    knobs = (Knob("count", 2, "operations at once", low=1, high=1024),)

    def applies(self, facts: Facts) -> str | None:
        if facts.device != "cpu":
            return "the work is done on the GPU"
        if self.own(facts).get("scripted") is False:
            return "the program has no TorchScript model: its operations run one after another"
        return None

    def candidates(self, facts: Facts) -> Sequence[Settings]:
        return [{"count": count} for count in dict.fromkeys((facts.cores, max(1, facts.cores // 2), 1))]

    def observe(self, seams: Seams) -> Callable[[], Mapping[str, Any]]:
        models: list[Any] = []
        seams.optimizer_made.subscribe(lambda _, found: models.extend(found))

        def found() -> dict[str, bool]:
            import torch

            parts = (module for model in models for module in model.modules())
            return {"scripted": any(isinstance(each, torch.jit.ScriptModule) for each in parts)}

        return found

    def install(self, seams: Seams, settings: Settings) -> Handle:
        def set_threads() -> None:
            import torch

            count = int(settings["count"])
            if torch.get_num_interop_threads() == count:
                return
            try:
                torch.set_num_interop_threads(count)
            except RuntimeError:
                raise CannotInstall("parallel work has begun in this process, or their number was set before") from None

        seams.framework_arrived.subscribe(set_threads)
        return seams.handle()
