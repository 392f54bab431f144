"""Models in stages over the ranks of a run: cut at their first call in training, as a trial on rank 0 found."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cached_property
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from overdrive.core.by_identity import ByIdentity
from overdrive.core.objective import size
from overdrive.model_state.division.call import CallToDivide
from overdrive.model_state.division.chance import Chance, Deviation
from overdrive.model_state.division.kinds import of_leaf
from overdrive.model_state.division.norms import Norms
from overdrive.model_state.division.tree import flatten
from overdrive.model_state.division.way import Way
from overdrive.model_state.sharded.kept import Kept
from overdrive.model_state.sharded.units import units
from overdrive.model_state.state import State
from overdrive.ranks.group import Group
from overdrive.ranks.mesh import Mesh
from overdrive.ranks.rank import Rank
from overdrive.seams.parameters import parameters_of
from overdrive.seams.points import Again, reason_of
from overdrive.seams.torch.hooks import own_hooks
from overdrive.seams.torch.tracing import traced
from overdrive.techniques.parallel.pipeline_parallel.calling import Batches, StagedCall
from overdrive.techniques.parallel.pipeline_parallel.finding import found
from overdrive.techniques.parallel.pipeline_parallel.gradients import StageGradients
from overdrive.techniques.parallel.pipeline_parallel.links import Live
from overdrive.techniques.parallel.pipeline_parallel.stages import Unstaged, running
from overdrive.techniques.parallel.pipeline_parallel.transfers import one_of_several


class Pipelines:
    """All that one run does about its models."""

    def __init__(self, rank: Rank, replicas: int = 1) -> None:
        """`replicas`: rows of stages, of which each makes a part of the batch."""
        self._rank, self._replicas = rank, replicas
        self.kept = Kept(lambda: self.row)
        self.chance, self.norms = Chance(), Norms(None)
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._models: ByIdentity[_Pipeline | None] = ByIdentity()
        self._links: Live | None = None
        self._gradients: StageGradients | None = None
        self._told: set[str] = set()
        rank.lockstep.differing.append(lambda parameter: self.kept.of(parameter) is not None)
        if replicas > 1:
            rank.lockstep.part_of, rank.lockstep.places = self.kept.own, rank.size // replicas

    @property
    def row(self) -> Group:
        """The ranks that have the stages of this replica."""
        group = self._rank.group
        return self._mesh.row if "_mesh" in vars(self) or group.mine() else group

    @cached_property
    def _mesh(self) -> Mesh:
        return Mesh(self._rank.group, self._replicas)

    def made(self, optimizer: Any, models: Any) -> None:
        self._optimizers.add(optimizer)

    def drawn(self, name: str, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """An answer to the seam *random drawn*."""
        stages = running()
        return (self.chance.answer if stages is None else stages.drawn)(name, call, args, kwargs)

    def close(self) -> None:
        if self._gradients is not None:
            self._gradients.forget()

    def called(self, model: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if traced() or not self._rank.group.mine():
            return call(*args, **kwargs)
        leaves, build = flatten((args, kwargs))
        asked = CallToDivide(model, call, leaves, build, self._rank.size, self.chance, self.norms)
        if model not in self._models and model.training and torch.is_grad_enabled() and self._trained(model):
            self._models[model] = self._cut(asked)
        pipeline = self._models.get(model)
        if pipeline is None:
            with self.kept.calling() if len(self.kept) else nullcontext():
                return call(*args, **kwargs)
        kind = model.training, torch.is_grad_enabled()
        if why := pipeline.refusal(model, kind):
            self._say(f"{type(model).__name__} is called whole on every rank: {why}")
            with self.kept.calling():
                return call(*args, **kwargs)
        return self._staged(pipeline, kind, asked)

    def asked(self, outputs: Any, call: Callable[..., Any], inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """An answer to the seam *gradients asked*."""
        for each in pytree.tree_leaves(inputs):
            self._refuse(each, "`torch.autograd.grad` with respect to")
        return call(inputs, *args, **kwargs)

    def watched(self, result: Any, hook: Any, plain: Any) -> None:
        """An answer to the seam *gradient watched*."""
        self._refuse(result, "`retain_grad()` of" if hook is None else "a hook on")

    # -- inside -----------------------------------------------------------------------------------

    def _refuse(self, result: Any, what: str) -> None:
        if one_of_several(result):
            self._rank.say(
                f"{what} one of several results of a model in stages: its gradient may be on another rank. Use "
                "`--layout tensor=N`, or --ranks alone"
            )
            raise SystemExit(1)

    def _trained(self, model: nn.Module) -> bool:
        """Whether an optimizer has it, and it is no part of one that is in stages."""
        if any(self.kept.of(each) is not None for each in model.parameters()):
            return False
        own = {id(each) for each in model.parameters()}
        return any(id(each) in own for optimizer in self._optimizers for each in parameters_of(optimizer))

    def _say(self, sentence: str) -> None:
        if sentence not in self._told:
            self._told.add(sentence)
            self._rank.say(sentence)

    def _staged(self, pipeline: _Pipeline, kind: tuple[bool, bool], asked: CallToDivide) -> Any:
        assert self._links is not None and self._gradients is not None
        batches = pipeline.batches(asked.leaves) if all(kind) else None
        staged = StagedCall(self._links, pipeline.owners, pipeline.device, self._gradients.reached, pipeline.written)
        try:
            with self.kept.staged():
                result = staged.make(asked, batches)
        except (Unstaged, Deviation) as error:
            pipeline.give_up(kind, batches, str(error))
            raise Again from None
        self._links.over()
        for key in pipeline.written:
            if (stage := staged.wrote.get(key)) is not None:
                self.row.broadcast(pipeline.written[key], stage, "a buffer")
        return result

    def _cut(self, asked: CallToDivide) -> _Pipeline | None:
        model, group, told = asked.model, self._rank.group, {}
        if group.tells:
            try:
                told = found(asked, self._replicas)
            except Exception as error:  # the other ranks wait for an answer
                told = {"reason": reason_of(error)}
        told = group.told_by_first(told, "how a model is cut into stages")
        if "reason" in told:
            self._say(f"{type(model).__name__} stays whole on every rank: {told['reason']}")
            return None
        if self._links is None:
            self._links, self._gradients = Live(self._mesh), StageGradients(group, self._mesh, self.kept)
            self._gradients.over = self._links.over
        stages = {name: (stage, alone) for name, (stage, alone) in told["stages"].items()}
        self._take(model, stages)
        pipeline = _Pipeline(asked, stages, told)
        self._say(_sentence(model, stages, told, self._replicas))
        return pipeline

    def _take(self, model: nn.Module, stages: dict[str, tuple[int, bool]]) -> None:
        """Have each rank keep what is of its stage."""
        stage_of = {id(each): stages[name][0] for name, each in model.named_parameters() if name in stages}
        for unit in units(model):
            for stage in range(self.row.size):
                if own := [each for each in unit if stage_of.get(id(each)) == stage]:
                    self.kept.take(own, stage)
        assert self._gradients is not None
        self._gradients.watch(model.parameters())


class _Pipeline:
    """A model that is in stages.

    Attributes:
        owners: see `Stages`.
        written: the buffers that calls in training write to, by id.
    """

    def __init__(self, asked: CallToDivide, stages: dict[str, tuple[int, bool]], told: dict[str, Any]) -> None:
        """`asked`: the call that was tried."""
        model = asked.model
        parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
        self.owners = {id(parameters[name]): each for name, each in stages.items()}
        self.written = {id(buffers[name]): buffers[name] for name in told["written"]}
        self.device = next(iter(parameters.values())).device
        self._way = Way.of_plain(told["way"]) if told["split"] else None
        self._kind = _kind(asked.leaves, self._way) if self._way is not None else []
        self._count = int(told.get("count", 1))
        self._state = State([model])
        self._whole: dict[tuple[bool, bool], str] = {}  # kinds of calls that are not made in stages, and why
        if not told["evaluates"]:
            self._whole = {(False, False): "its evaluation is not the same in stages"}

    def refusal(self, model: nn.Module, kind: tuple[bool, bool]) -> str:
        """Why this call is not made in stages."""
        if torch.is_autocast_enabled(self.device.type):
            return "it is called under autocast"
        if own_hooks(model):
            return "the program has hooks on it"
        return self._whole.get(kind, "")

    def batches(self, leaves: Sequence[Any]) -> Batches | None:
        """None where the batch is to be one."""
        if self._way is not None and self._state.changed():
            self._way = None  # it was not tried so
        rows = self._way.rows(leaves) if self._way is not None else 0
        if self._way is None or rows < self._count or _kind(leaves, self._way) != self._kind:
            return None
        return Batches(self._way, rows, self._count)

    def give_up(self, kind: tuple[bool, bool], batches: Batches | None, why: str) -> None:
        if batches is not None:
            self._way = None
        else:
            self._whole[kind] = why


def _kind(leaves: Sequence[Any], way: Way) -> list[Any]:
    """Of a call: what another one must have, too, for its batch to be split in the same way.

    What all micro-batches are given alike has the same shape: else a mask of one row may now have one of each sample.
    """
    both = zip(leaves, way.split, strict=True)
    shapes = [leaf.shape for leaf, dim in both if dim is None and isinstance(leaf, torch.Tensor)]
    return [*shapes, *map(of_leaf, leaves)]


def _sentence(model: nn.Module, stages: dict[str, tuple[int, bool]], told: dict[str, Any], replicas: int) -> str:
    parameters, count = dict(model.named_parameters()), 1 + max(stage for stage, _ in stages.values())
    held = [0] * count
    names: list[list[str]] = [[] for _ in range(count)]
    for name, (stage, _) in stages.items():
        held[stage] += parameters[name].nbytes
        names[stage].append(name.rpartition(".")[0] or name)
    whole = sum(each.nbytes for each in parameters.values())
    rest = whole - sum(held)
    sizes = ", ".join(size(each + rest) for each in held)
    cuts = ", ".join(f"{each[0]} to {each[-1]}" for each in names)
    rows = f"{replicas} replicas of " if replicas > 1 else ""
    batch = f"in {told['count']} micro-batches" if told["split"] else f"its batch is not split: {told['whole']}"
    return (
        f"{type(model).__name__}: {rows}{count} stages on {count * replicas} ranks ({cuts}), parameters {size(whole)} "
        f"→ {sizes} a rank, and gradients and optimizer state alike; {batch}"
    )
