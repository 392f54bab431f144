"""Technique `fused_optimizer`."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.techniques.technique import Knob, Technique

if TYPE_CHECKING:
    from overdrive.seams.hub import Handle, Seams
    from overdrive.techniques.technique import Settings

_FUSED = ("SGD", "Adam", "AdamW", "Adagrad")
_FOREACH = (*_FUSED, "RMSprop", "Adadelta", "Adamax", "NAdam", "RAdam", "ASGD", "Rprop")


class FusedOptimizer(Technique):
    """Updates all parameters in one kernel instead of one operation after another.

    What it does: for torch's own SGD, Adam, AdamW and Adagrad, switches the `fused` implementation on for
    the length of each step; or `foreach`, one operation for all parameters at a time, which RMSprop, Adadelta,
    Adamax, NAdam, RAdam, ASGD and Rprop have too. Checkpoints show the optimizer as the program made it.

    When it helps: models with many small parameters, where the update is dominated by the cost of
    launching operations: 1.1 to 1.25 times for whole steps of MLPs and transformers on a CPU. With `foreach`, on
    one core of a shared two-core machine, whole steps of an MLP of 14 layers, 32 wide, were 1.20 [1.14, 1.26]
    times as fast with RMSprop and 1.32 [1.21, 1.45] with NAdam.

    When it hurts: hardly ever; where the update is a small share of the step nothing is gained.

    What it watches: the optimizer's class, settings, parameters and gradients, before each step. What would escape: a
    hook of the program's on that step, which sees the setting `fused` or `foreach` in the groups.

    Contract: rounding. The same formula, its products and sums contracted differently.

    Source: https://docs.pytorch.org/docs/stable/optim.html
    """

    name = "fused_optimizer"
    contract = Contract.ROUNDING
    targets = ("optimizer",)
    expected_saving = 0.4
    switchable = True
    survives = True
    order = 60
    knobs = (
        Knob("implementation", "fused", "fused: all in one kernel; foreach: each operation for all parameters",
             choices=("fused", "foreach")),
    )  # fmt: skip

    def applies(self, facts: Facts) -> str | None:
        made = self._made(facts)
        if made is None:
            return None
        if not made & set(_FOREACH):
            return f"there is no fused {', '.join(sorted(made)) or 'optimizer'}"
        if facts.device == "cuda" and not made & set(_FUSED):
            return f"there is no fused {', '.join(sorted(made))}, and foreach is what torch does on a GPU by itself"
        if facts.share("optimizer") < 0.01:
            return f"the optimizer is only {facts.share('optimizer'):.1%} of a step"
        return None

    def candidates(self, facts: Facts) -> Sequence[Settings]:
        made = self._made(facts) or set(_FUSED)
        found: list[Settings] = [{"implementation": "fused"}] if made & set(_FUSED) else []
        if facts.device == "cpu" and made & (set(_FOREACH) - set(_FUSED)):
            found.append({"implementation": "foreach"})
        return found

    def observe(self, seams: Seams) -> Callable[[], Mapping[str, Any]]:
        names: set[str] = set()
        seams.optimizer_made.subscribe(lambda optimizer, _: names.add(type(optimizer).__name__))
        return lambda: {"optimizers": sorted(names)}

    def _made(self, facts: Facts) -> set[str] | None:
        """The classes of the program's optimizers; None where nobody looked."""
        names = self.own(facts).get("optimizers")
        return None if names is None else set(names)

    def install(self, seams: Seams, settings: Settings) -> Handle:
        before: list[tuple[dict[str, Any], str, Any]] = []
        optimizers: list[weakref.ref[Any]] = []
        key = str(settings["implementation"])

        def switch_on(optimizer: Any) -> None:
            if not _can_be(key, optimizer):
                return
            if key == "fused":
                _move_counts(optimizer, True)  # a checkpoint that was loaded has brought them to the CPU
            for group in optimizer.param_groups:
                before.append((group, key, group[key]))
                group[key] = True

        def switch_off(*_: Any) -> None:
            while before:
                group, name, value = before.pop()
                group[name] = value

        def counts(on: bool) -> None:
            """Fused, a GPU's optimizer counts its steps on the GPU; as the program made it, on the CPU."""
            for optimizer in filter(None, (each() for each in optimizers)):
                if key == "fused" and _can_be(key, optimizer):
                    _move_counts(optimizer, on)

        def off() -> None:
            switch_off()
            counts(False)

        seams.optimizer_made.subscribe(lambda optimizer, _: optimizers.append(weakref.ref(optimizer)))
        seams.step_begins.subscribe(switch_on)
        seams.step_ends.subscribe(switch_off)
        seams.on_undo(off)
        return seams.handle(lambda: counts(True), off)


def _move_counts(optimizer: Any, to_gpu: bool) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"] if not group.get("capturable") and not group.get("fused") else ():
            count = optimizer.state.get(parameter, {}).get("step")
            if parameter.is_cuda and hasattr(count, "device"):
                optimizer.state[parameter]["step"] = count.to(parameter.device if to_gpu else "cpu")


def _can_be(key: str, optimizer: Any) -> bool:
    import torch

    name = type(optimizer).__name__
    if type(optimizer) is not getattr(torch.optim, name, None):
        return False  # a subclass may rely on the implementation it was written for
    return name in (_FUSED if key == "fused" else _FOREACH) and all(
        key in group
        and not group.get("differentiable")
        and not (key == "foreach" and group.get("fused"))
        and not (key == "fused" and group.get("foreach"))
        and not isinstance(group["lr"], torch.Tensor)
        and all(
            type(parameter) in (torch.Tensor, torch.nn.Parameter)
            and parameter.is_floating_point()
            and (parameter.grad is None or parameter.grad.layout is torch.strided)  # fused, sparse ones are refused
            and parameter.device.type in ("cpu", "cuda")
            for parameter in group["params"]
        )
        for group in optimizer.param_groups
    )
