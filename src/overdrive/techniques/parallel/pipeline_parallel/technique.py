"""Technique `pipeline_parallel`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.techniques.parallel import this_rank
from overdrive.techniques.technique import Knob, Settings, Technique

if TYPE_CHECKING:
    from overdrive.seams.hub import Handle, Seams


class PipelineParallel(Technique):
    """Spreads a model's layers over the ranks of a run: each has the weights of its stage, gradients and state.

    What it does: every rank runs the whole script on the same batches. At a model's first call in training its layers
    are cut into as many runs as there are ranks, in the order of their use, of weights as equal as can be; blocks that
    repeat are not cut through. In a call each rank computes its stage, on micro-batches one after the other, and sends
    on what the next one needs; what comes out, all ranks have. A backward pass goes the same way back. Parameters stay
    the program's own objects: who reads one, its gradient or an optimizer's state finds it whole, from who has it. With
    several rows of stages (`data=2,pipeline=2`), each row computes its part of the micro-batches, and the gradients of
    a stage are averaged over rows.

    When it helps: models that do not fit one device: it sends activations alone, which are less than weights.

    When it hurts: a rank waits while the first and last micro-batches are elsewhere: with two ranks a fifth of the
    time, at best. Each rank goes through all of the model's Python, some 20 us a function and micro-batch. Batch norm
    takes the statistics of a batch that is not split, and a model that counts its calls has one that is not: then ranks
    compute in turn. Left whole, with the reason, is what a first call in fp64, whole and in stages, does not show to be
    the same: code that looks at values its layers make, fewer layers than ranks, models with hooks, compiled ones,
    calls under autocast.

    What it watches: before each call, anything that the model's code looks at, and of what kind its arguments are:
    after a change its batch is not split. A weight that was not used in the first call has the call made whole. What
    would escape: `torch.autograd.grad` with respect to a weight of another stage ends the run with an error.

    Contract: rounding. Sums over a batch are taken in parts.

    Source: Huang et al., GPipe, NeurIPS 2019
    """

    name = "pipeline_parallel"
    contract = Contract.ROUNDING
    targets = ("forward", "backward", "optimizer")
    aims = ("memory",)
    order = 95  # outside of all others, which act on what this rank has
    conflicts = ("data_parallel", "tensor_parallel")
    knobs = (Knob("replicas", 1, "how many rows of stages there are, each with its part of the batch", low=1),)

    def applies(self, facts: Facts) -> str | None:
        return "it is a way to run, not yet part of a plan: `overdrive run --ranks N --layout pipeline=N`"

    def install(self, seams: Seams, settings: Settings) -> Handle:
        rank = this_rank()

        def arrived() -> None:
            from overdrive.model_state.sharded.sharing import share
            from overdrive.techniques.parallel.pipeline_parallel.pipelining import Pipelines

            pipelines = Pipelines(rank, int(settings["replicas"]))
            # A model whose first call is left out as a run is made again stays whole: that run begins from its start.
            share(seams, rank, lambda: pipelines.row, pipelines.kept, divide=lambda model: None)
            seams.optimizer_made.subscribe(pipelines.made)
            seams.model_called.subscribe(pipelines.called)
            seams.random_drawn.subscribe(pipelines.drawn)
            seams.operator_called("batch_norm").subscribe(pipelines.norms.answer)
            seams.gradients_asked.subscribe(pipelines.asked)
            seams.gradient_watched.subscribe(pipelines.watched)
            seams.on_undo(pipelines.close)

        seams.blameless.add(self.name)  # a call that fails in stages fails on all ranks, as the program makes it
        seams.framework_arrived.subscribe(arrived)
        return seams.handle()
