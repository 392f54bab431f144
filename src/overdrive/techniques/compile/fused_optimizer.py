"""Technique `fused_optimizer`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from overdrive.contract import Contract
from overdrive.facts import Facts
from overdrive.techniques.technique import Technique

if TYPE_CHECKING:
    from overdrive.seams.hub import Seams
    from overdrive.techniques.technique import Settings

_FUSED = ("SGD", "Adam", "AdamW", "Adagrad")


class FusedOptimizer(Technique):
    """Updates all parameters in one kernel instead of one operation after another.

    What it does: for torch's own SGD, Adam, AdamW and Adagrad, switches the `fused` implementation on for
    the length of each step. Checkpoints show the optimizer as the program made it.

    When it helps: models with many small parameters, where the update is dominated by the cost of
    launching operations: 1.1 to 1.25 times for whole steps of MLPs and transformers on a CPU.

    When it hurts: hardly ever; where the update is a small share of the step nothing is gained.

    Contract: rounding. The same formula, its products and sums contracted differently.

    Source: https://docs.pytorch.org/docs/stable/optim.html
    """

    name = "fused_optimizer"
    family = "compile"
    contract = Contract.ROUNDING
    relieves = ("optimizer",)
    order = 60

    def applies(self, facts: Facts) -> str | None:
        if not set(facts.optimizers) & set(_FUSED):
            return f"there is no fused {', '.join(facts.optimizers) or 'optimizer'}"
        if facts.share("optimizer") < 0.01:
            return f"the optimizer is only {facts.share('optimizer'):.1%} of a step"
        return None

    def install(self, seams: Seams, settings: Settings) -> None:
        before: list[tuple[dict[str, Any], Any]] = []

        def switch_on(optimizer: Any) -> None:
            if not _can_be_fused(optimizer):
                return
            for group in optimizer.param_groups:
                before.append((group, group["fused"]))
                group["fused"] = True

        def switch_off(*_: Any) -> None:
            while before:
                group, fused = before.pop()
                group["fused"] = fused

        seams.step_begins.subscribe(switch_on)
        seams.step_ends.subscribe(switch_off)
        seams.on_undo(switch_off)


def _can_be_fused(optimizer: Any) -> bool:
    import torch

    if type(optimizer) is not getattr(torch.optim, type(optimizer).__name__, None):
        return False  # a subclass may rely on the implementation it was written for
    return type(optimizer).__name__ in _FUSED and all(
        "fused" in group
        and not group.get("differentiable")
        and not isinstance(group["lr"], torch.Tensor)
        and all(
            parameter.is_floating_point() and parameter.device.type in ("cpu", "cuda") for parameter in group["params"]
        )
        for group in optimizer.param_groups
    )
