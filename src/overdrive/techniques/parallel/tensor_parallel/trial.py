"""Whether and how a model can be divided: its call, whole and in parts, in fp64, with all ranks in one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from overdrive.core.rng import States
from overdrive.model_state.exact_call import Exact, equal_in_fp64, exact, noise_of, weighted_sums, without_zeros
from overdrive.techniques.parallel.tensor_parallel import rules
from overdrive.techniques.parallel.tensor_parallel.cuts import Cut
from overdrive.techniques.parallel.tensor_parallel.layers import plain_again, shown
from overdrive.techniques.parallel.tensor_parallel.parts import whole_of
from overdrive.techniques.parallel.tensor_parallel.roles import Roles
from overdrive.techniques.parallel.tensor_parallel.shards import call_over, divided_by
from overdrive.techniques.parallel.tensor_parallel.turns import InTurns

_ROUNDS = 30  # of finding roles: a layer made whole may make another one whole

assert rules  # importing them registers them


class ModelTrial:
    """In a process of its own: the model is changed for good."""

    def __init__(self, model: nn.Module, call: Callable[..., Any], args: Any, kwargs: Any, ranks: int) -> None:
        model.double()
        without_zeros(model)
        torch.set_default_dtype(torch.float64)
        self._model, self._call, self._ranks = model, call, ranks
        self._args, self._kwargs = pytree.tree_map(exact, (args, kwargs))
        self._parameters = dict(model.named_parameters())
        self._trained = [each for each in model.parameters() if each.requires_grad]
        self._chance = States.now()
        self._buffers = [(each, each.detach().clone()) for each in model.buffers()]
        self._roles = Roles(ranks)
        self._whole = self._with_gradients()

    def found(self, names: Sequence[str]) -> dict[str, Any]:
        """Of these weights: `cuts` of those that can be divided, and `reasons` of those that cannot, by name."""
        if why := self._settle(names):
            return {"cuts": {}, "reasons": {"": why}}
        kept = self._kept()
        for name in names:
            if name not in kept and self._parameters[name].dim() > 1:
                self._roles.reasons.setdefault(name, "nothing it is used for can be divided by a rule")
        reasons = {name: why for name, why in self._roles.reasons.items() if self._parameters[name].dim() > 1}
        told = {name: [cut.dim, list(cut.segments)] for name, cut in kept.items()}
        return {"cuts": told, "reasons": {name: why for name, why in reasons.items() if name not in kept}}

    # -- finding ----------------------------------------------------------------------------------

    def _settle(self, names: Sequence[str]) -> str:
        """Find the roles of these weights. Returns what failed that has nothing to do with any of them."""
        for _ in range(_ROUNDS):
            self._roles.begin()
            try:
                with torch.no_grad():
                    self._in_parts(dict.fromkeys(names), self._outputs)
            except Exception as error:
                if self._roles.settled():
                    return f"it cannot be called in parts ({_first_line(error)})"
            if self._roles.settled():
                return ""
        return "how its layers are divided does not settle"

    def _kept(self) -> dict[str, Cut]:
        """All that is proved: all at once, or else what is connected, one after the other."""
        cuts = dict(self._roles.cuts)
        if not cuts or not self._difference(cuts):
            return cuts
        kept: dict[str, Cut] = {}
        for names in self._connected():
            if why := self._difference({**kept, **{name: cuts[name] for name in names}}):
                self._roles.refuse(names, why)
            else:
                kept.update({name: cuts[name] for name in names})
        return kept

    def _connected(self) -> list[list[str]]:
        """Weights of which one takes what the other makes, or that stand beside each other in a module."""
        sets: list[set[str]] = []
        joined = [{name} | each for name, each in self._roles.fed.items()]
        joined += [{name, other} for name in self._roles.cuts for other in self._roles.cuts if _beside(name, other)]
        for each in (*joined, *({name} for name in self._roles.cuts)):
            met = [known for known in sets if known & each]
            sets = [known for known in sets if not known & each] + [each.union(*met)]
        return sorted([name for name in self._roles.cuts if name in each] for each in sets)

    # -- proving ----------------------------------------------------------------------------------

    def _difference(self, cuts: dict[str, Cut]) -> str:
        """What is not the same when these are divided; empty where all is."""
        for name, cut in cuts.items():
            self._roles.hide(self._parameters[name], cut)
        try:
            made = self._in_parts(cuts, self._with_gradients)
        except Exception as error:
            return f"what lies between needs all of its outputs ({_first_line(error)})"
        finally:
            self._roles.show()
        return self._compared(made, {id(self._parameters[name]) for name in cuts})

    def _in_parts(self, cuts: Any, work: Callable[[], Any]) -> list[Any]:
        """What `work` makes as each rank, with these weights in parts."""
        self._chance.restore()
        for buffer, before in self._buffers:
            buffer.data.copy_(before)
        end = divided_by(ranks := InTurns(self._ranks, self._roles))
        shown(self._model, cuts)
        try:
            return ranks.run(work)
        finally:
            plain_again(self._model)
            call_over()
            end()

    def _outputs(self) -> list[torch.Tensor]:
        with Exact():
            leaves = pytree.tree_leaves(self._call(*self._args, **self._kwargs))
        return [whole_of(each) for each in leaves if isinstance(each, torch.Tensor)]

    def _with_gradients(self) -> tuple[list[Any], list[Any]]:
        """What the call makes, and the gradients of a sum over it in which each element counts otherwise."""
        outputs = self._outputs()
        trained = [self._roles.whole(each) for each in self._trained]
        gradients = torch.autograd.grad(weighted_sums(outputs), trained, allow_unused=True)
        return [each.detach() for each in outputs], list(gradients)

    def _compared(self, made: Sequence[Any], divided: set[int]) -> str:
        outputs, gradients = self._whole
        for theirs, _ in made:
            if len(theirs) != len(outputs) or not all(map(equal_in_fp64, outputs, theirs)):
                return "what comes out differs: what lies between looks at several of its outputs, or draws for them"
        noise = noise_of(gradients)
        for place, parameter in enumerate(self._trained):
            theirs = [each[place] for _, each in made]
            if id(parameter) in divided:
                theirs = [_sum(theirs)]
            if not all(equal_in_fp64(gradients[place], each, noise) for each in theirs):
                return "its gradients are not the same"
        return ""


def _beside(name: str, other: str) -> bool:
    return name.rpartition(".")[0] == other.rpartition(".")[0]


def _first_line(error: Exception) -> str:
    first = str(error).strip().split("\n", 1)[0]
    return f"{type(error).__name__}: {first[:80]}"


def _sum(gradients: Sequence[Any]) -> Any:
    held = [each for each in gradients if each is not None]
    return torch.stack(held).sum(0) if held else None
