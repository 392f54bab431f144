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
_KEPT = ("momentum_buffer", "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "sum")  # what these keep of a parameter's shape
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

    What it watches: the optimizer's class, settings, parameters, gradients and state, how these lie in memory, and
    whether all have momenta yet, before each step and after a closure's backward pass. A step for which they are not
    what PyTorch's implementation takes is made as the program wrote it. What would escape: a hook of the program's on
    that step, which sees the setting `fused` or `foreach` in the groups; a closure that sets gradients by hand.

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
        switch = _Switch(str(settings["implementation"]))
        seams.optimizer_made.subscribe(switch.made)
        seams.state_shown.subscribe(switch.shown)
        seams.step_begins.subscribe(switch.on)
        seams.backward_done.subscribe(switch.look_again)
        seams.step_ends.subscribe(switch.off)
        seams.on_undo(switch.put_back)
        return seams.handle(lambda: switch.counts(True), switch.put_back)


class _Switch:
    """Has optimizers use one implementation for the length of each step."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._optimizers: list[weakref.ref[Any]] = []
        self._shown: list[tuple[Any, Any]] = []  # states whose counts are on the CPU now, and where these were
        self._stepping: Any = None
        self._before: list[tuple[dict[str, Any], Any]] = []  # groups, and what they said

    def made(self, optimizer: Any, _: Any) -> None:
        self._optimizers.append(weakref.ref(optimizer))

    def shown(self, thing: Any) -> None:
        """A checkpoint is one of the program's own: its last step may have been broken off, and a plain run that went
        on from it would read each count from the GPU, twice a step."""
        if all(each() is not thing for each in self._optimizers):
            return
        self.off()
        if self._key == "fused" and _is_known(self._key, thing):
            self._shown += _move_counts(thing, False)

    def on(self, optimizer: Any) -> None:
        self.off()  # of a step that was broken off
        if not _can_be(self._key, optimizer):
            return
        if self._key == "fused":
            while self._shown:
                state, count = self._shown.pop()
                if hasattr(state.get("step"), "device"):
                    state["step"] = count.copy_(state["step"])  # recorded graphs know it by its address
            _move_counts(optimizer, True)  # a checkpoint that was loaded has brought them to the CPU
        self._stepping = optimizer
        for group in optimizer.param_groups:
            self._before.append((group, group[self._key]))
            group[self._key] = True

    def off(self, *_: Any) -> None:
        self._stepping = None
        while self._before:
            group, value = self._before.pop()
            group[self._key] = value

    def look_again(self, *_: Any) -> None:
        """A step's closure has made the gradients only now, within the step."""
        if self._before and not _can_be(self._key, self._stepping):
            self.off()

    def counts(self, on: bool) -> None:
        """Fused, a GPU's optimizer counts its steps on the GPU; as the program made it, on the CPU."""
        self._shown.clear()
        for optimizer in filter(None, (each() for each in self._optimizers)):
            if self._key == "fused" and _is_known(self._key, optimizer):
                _move_counts(optimizer, on)

    def put_back(self) -> None:
        self.off()
        self.counts(False)


def _move_counts(optimizer: Any, to_gpu: bool) -> list[tuple[Any, Any]]:
    """In the type that they have there: the fused kernels read 32 bits, whatever the tensor's own type.

    Returns: the states that they are in, and the tensors that they were.
    """
    import torch

    wide = not to_gpu and torch.get_default_dtype() == torch.float64
    dtype = torch.float64 if wide else torch.float32
    moved = []
    for group in optimizer.param_groups:
        for parameter in group["params"] if not group.get("capturable") and not group.get("fused") else ():
            state = optimizer.state.get(parameter, {})
            count = state.get("step")
            if parameter.is_cuda and hasattr(count, "device"):
                state["step"] = count.to(parameter.device if to_gpu else "cpu", dtype)
                moved.append((state, count))
    return moved


def _is_known(key: str, optimizer: Any) -> bool:
    """Whether this is an optimizer of PyTorch's own that leaves the choice to PyTorch."""
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
        for group in optimizer.param_groups
    )


def _can_be(key: str, optimizer: Any) -> bool:
    """Whether its next step can: parameters, gradients and state are what the implementation takes."""
    import torch

    return _is_known(key, optimizer) and all(
        all(
            type(parameter) in (torch.Tensor, torch.nn.Parameter)
            and parameter.is_floating_point()
            and (parameter.grad is None or parameter.grad.layout is torch.strided)  # fused, sparse ones are refused
            and parameter.device.type in ("cpu", "cuda")
            for parameter in group["params"]
        )
        and (key != "fused" or _lies_in_order(optimizer, group))
        for group in optimizer.param_groups
    )


def _lies_in_order(optimizer: Any, group: dict[str, Any]) -> bool:
    """Whether a group's tensors are what fused kernels take for granted. Those for CPUs go through the memory of a
    parameter, its gradient and its state in order, and would mix up what lies otherwise: after a checkpoint was loaded,
    say. Those for GPUs refuse it. And SGD refuses momenta of which some are there and some are not yet.
    """
    from torch import Tensor

    from overdrive.seams.torch.layouts import fills_its_memory, lie_alike
    from overdrive.seams.torch.optimizer_state import state_of

    states = state_of(optimizer)
    begun: set[bool] = set()  # whether a parameter has a momentum
    for parameter in group["params"]:
        if parameter.grad is None:
            continue
        state = states.get(parameter, {})
        kept = [each for name in _KEPT if isinstance(each := state.get(name), Tensor)]
        begun.add(state.get("momentum_buffer") is not None)
        if not fills_its_memory(parameter) or not all(
            each.dtype == parameter.dtype and (_is_share(each, parameter) or lie_alike(each, parameter))
            for each in (parameter.grad, *kept)
        ):
            return False
    return len(begun) < 2 or not group.get("momentum")


def _is_share(state: Any, parameter: Any) -> bool:
    """Of a parameter's state, where ranks divide it: in a step the parameter is that, too."""
    return bool(state.dim() == 1 and state.numel() < parameter.numel())
