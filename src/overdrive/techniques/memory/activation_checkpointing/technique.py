"""Technique `activation_checkpointing`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from overdrive.core.by_identity import ByIdentity
from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.techniques.technique import CannotInstall, Knob, Settings, Technique

if TYPE_CHECKING:
    from overdrive.seams.hub import Handle, Seams


_MOST_DECISIONS = 4  # for one model
_MOST_MODELS = 16
_MOST_TRIALS = 8  # counted calls in a run, of all models: each takes 0.1 s and more


class ActivationCheckpointing(Technique):
    """Keeps only what goes into a model's blocks, and makes what they hold inside again in the backward pass.

    What it does: before a model's first call in training, counts what each of its modules keeps for the backward
    pass, in a call that keeps nothing and leaves no trace. Then it chooses blocks, or runs of a flat Sequential,
    with the least to make again within the budget; in the backward pass they are called once more, with all as it
    was in their first call: attributes, hooks, globals that their code reads, random states, torch's settings, what
    parameters and buffers held. Meanwhile the program may change what it likes. Compiled models are left alone:
    given a budget, PyTorch's compiler drew other dropout masks in the backward pass (2.13, a loss of 3.9 for 0.5).

    When it helps: deep models of like blocks (transformers, residual networks), whose activations outweigh their
    parameters and which are short of memory.

    When it hurts: always in time: what is made again is computed twice, up to a third more work. Nothing is gained
    where a model has no blocks that keep much inside. Left alone: blocks that do more than compute (keep or count
    something, write files, look at the clock, reach what cannot be seen), and models with the program's hooks. On a
    CPU the process may need no less without `malloc_trim`, since glibc keeps freed pieces between those in use.

    What it watches: at each call of a block, whether the block is what it was when it was chosen; if not, it is called
    plainly and blocks are chosen anew, four times at most. It stands aside where something traces, profiles or counts,
    or takes what is saved. What would escape: an activation that the program writes to past autograd's count, a weight
    written to through another process, a state of a library's own.

    Contract: exact. The same arithmetic once more, with the same random numbers. It falls to rounding where a library's
    kernels do not repeat themselves.

    Source: Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016;
    https://docs.pytorch.org/docs/stable/checkpoint.html
    """

    name = "activation_checkpointing"
    contract = Contract.EXACT
    fallback_contract = Contract.ROUNDING
    targets = ("forward", "backward")
    aims = ("memory",)
    switchable = True
    survives = True
    order = 45
    knobs = (Knob("budget", 0.5, "the share of the activations' bytes to have in memory at a time", low=0.0, high=1.0),)

    def applies(self, facts: Facts) -> str | None:
        return facts.without_module()

    def candidates(self, facts: Facts) -> Sequence[Settings]:
        return [{"budget": budget} for budget in (0.5, 0.25, 0.0)]

    def install(self, seams: Seams, settings: Settings) -> Handle:
        checkpointing = _Checkpointing(seams, self.name, float(settings["budget"]))
        seams.model_called.subscribe(checkpointing.called)
        seams.step_ends.subscribe(checkpointing.first_step)
        return seams.handle()


class _Known:
    """What was decided for one model."""

    def __init__(self) -> None:
        self.chosen: dict[bool, Any] = {}  # in training or evaluation: its blocks, or None
        self.decisions = 0


class _Checkpointing:
    def __init__(self, seams: Seams, name: str, budget: float) -> None:
        self._seams = seams
        self._name = name
        self._budget = budget
        self._models: ByIdentity[_Known] = ByIdentity()
        self._reason = "no model was called in training"
        self._used = False
        self._told = False
        self._trials = 0

    def called(self, model: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        import torch

        from overdrive.seams.torch.internals import is_profiled, keeps_saved_tensors_elsewhere
        from overdrive.seams.torch.tracing import traced

        if not torch.is_grad_enabled() or traced() or is_profiled() or keeps_saved_tensors_elsewhere():
            return call(*args, **kwargs)
        chosen = self._chosen(model, call, args, kwargs)
        if chosen is None:
            return call(*args, **kwargs)
        with chosen.in_place():
            return call(*args, **kwargs)

    def _chosen(self, model: Any, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        known = self._models.get(model)
        if known is None:
            known = self._models[model] = _Known()
            while len(self._models) > _MOST_MODELS:  # some may live on by what was decided for them
                del self._models[next(iter(self._models))]
        kind = model.training
        if kind in known.chosen and not (known.chosen[kind] is not None and known.chosen[kind].outdated):
            return known.chosen[kind]
        if known.decisions == _MOST_DECISIONS:
            self._seams.leave_out(self._name, f"{type(model).__name__} changes again and again")
            return None
        known.decisions += 1
        known.chosen[kind] = self._choose(model, call, args, kwargs)
        return known.chosen[kind]

    def _choose(self, model: Any, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        from overdrive.model_state.contents import about_to_be_written
        from overdrive.seams.torch.hooks import own_hooks
        from overdrive.seams.torch.raw_access import tell_raw_access
        from overdrive.seams.torch.tracing import compiled
        from overdrive.techniques.memory.activation_checkpointing.again import RecomputedBlocks
        from overdrive.techniques.memory.activation_checkpointing.blocks import choose
        from overdrive.techniques.memory.activation_checkpointing.measure import measure

        if not any(parameter.requires_grad for parameter in model.parameters()):
            return None
        if any(compiled(module) for module in model.modules()):
            self._reason = "the model is compiled, and its compiler decides what is kept"
            return None
        if own_hooks(model):
            self._reason = "the program has hooks on its model, which would see calls twice"
            return None
        self._trials += 1
        if next(model.children(), None) is None or self._trials > _MOST_TRIALS:  # a loss, say; or ever new models
            self._reason = f"{type(model).__name__} has no blocks"
            return None
        try:
            choice = choose(model, measure(model, call, args, kwargs), self._budget)
        except Exception as error:  # none may pass: the hub would take the counted call's result, which keeps nothing
            self._reason = f"what the model keeps could not be counted ({error})"
            return None
        if choice is None:
            self._reason = f"{type(model).__name__} has no blocks that keep much inside, and do nothing but compute"
            return None
        self._used = True
        if not self._told:
            self._told = True
            with self._seams.owned_by(self._name):
                self._seams.on_undo(tell_raw_access(about_to_be_written))
        return RecomputedBlocks(choice.blocks, lambda reason: self._seams.leave_out(self._name, reason))

    def first_step(self, optimizer: Any) -> None:
        self._seams.step_ends.unsubscribe(self.first_step)
        if not self._used:
            raise CannotInstall(self._reason)
