"""Technique `threads`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.machine.numa import allowed_cores, one_a_core
from overdrive.techniques.technique import Knob, Settings, Technique

if TYPE_CHECKING:
    from overdrive.seams.hub import Handle, Seams


class Threads(Technique):
    """Sets how many threads one operation may use on the CPU.

    What it does: calls `torch.set_num_threads` when PyTorch has been imported, which Keras may run on.

    When it helps: small models, where sharing a tiny operation among threads costs more than it saves;
    machines whose cores are counted wrong (containers with a quota, hyper-threads).

    When it hurts: large operations with too few threads.

    What it watches: nothing after PyTorch was imported; a program that sets the number later has the last word. What
    would escape: a program that asks for it.

    Contract: rounding. Sums are split differently among threads, so their last bits differ.

    Source: https://docs.pytorch.org/docs/stable/notes/cpu_threading_torchscript_inference.html
    """

    name = "threads"
    frameworks = ("torch", "keras")
    programs = ("training", "inference")
    contract = Contract.ROUNDING
    targets = ("forward", "backward", "optimizer")
    expected_saving = 0.1
    switchable = True
    survives = True
    order = 15
    knobs = (Knob("count", 1, "threads for one operation", low=1, high=1024),)

    def applies(self, facts: Facts) -> str | None:
        if facts.framework == "keras" and facts.backend != "torch":
            return f"Keras runs on {facts.backend} here"
        if facts.device != "cpu":
            return "the work is done on the GPU"
        if facts.cores == 1 and facts.threads == 1:
            return "this process has one core"
        return None

    def candidates(self, facts: Facts) -> Sequence[Settings]:
        # One a physical core first: two hardware threads of a core share its arithmetic units.
        physical = min(facts.cores, len(one_a_core(allowed_cores())) or facts.cores)
        counts = dict.fromkeys((physical, facts.cores, max(1, physical // 2), 1))
        return [{"count": count} for count in counts if count != facts.threads][:3]

    def install(self, seams: Seams, settings: Settings) -> Handle:
        count = int(settings["count"])
        before: list[int] = []  # none: it is not set

        def arrived() -> None:
            if handle.active:
                set_threads()

        def set_threads() -> None:
            if seams.frameworks[-1:] != ["torch"]:
                return  # Keras, which may run on something else
            import torch

            before[:] = [torch.get_num_threads()]
            torch.set_num_threads(count)

        def put_back() -> None:
            if before:
                import torch

                number = before.pop()
                if torch.get_num_threads() == count:  # else the program has set it
                    torch.set_num_threads(number)

        seams.framework_arrived.subscribe(arrived)
        seams.on_undo(put_back)
        handle = seams.handle(set_threads, put_back)
        return handle
