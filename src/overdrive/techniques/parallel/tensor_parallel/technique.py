"""Technique `tensor_parallel`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.techniques.parallel import this_rank
from overdrive.techniques.technique import Settings, Technique

if TYPE_CHECKING:
    from overdrive.seams.hub import Handle, Seams


class TensorParallel(Technique):
    """Divides layers over the ranks of a run: each has a part of weights, gradients and optimizer state.

    What it does: every rank runs the whole script on the same batches. Of a layer that is given whole numbers, each
    rank has a part of the outputs: features, heads of attention, channels, words of a vocabulary. A layer that takes
    what is in parts has a part of its inputs, and what it makes is summed over ranks; so is the gradient of what the
    first is given. All else, every rank computes alike. The parameters stay the program's own objects, of smaller
    shapes; a `state_dict`, of the model or of its optimizer, and a pickled model are those of one process, and so is
    the norm that gradients are clipped by.

    When it helps: models that do not fit one device.

    When it hurts: each pair of layers is summed twice a step over all ranks, and waits for it: over a slow link that
    takes longer than the layers. Each function that is given a part takes some 50 us of Python more (on a busy CPU),
    which models of small layers feel. What is not divided (norms, activations outside of the pairs) every rank has and
    computes whole. Left whole, with the reason, is what a first call in fp64, whole and in parts, does not show to be
    the same: layers of whose outputs a function needs all, fewer heads than ranks, weights that are not trained,
    optimizers that look at whole matrices, scaled gradients, models with hooks.

    What it watches: after a model's first call in training, when it is tried and divided, optimizers that are made. A
    function that needs the whole of what is in parts gathers it, whenever it is called. What would escape: code that
    goes through `model.parameters()` and looks at a part as if it were the whole (the calls named above are answered
    with it); what is written to some rows of a weight that are picked out (`weight.data[0].zero_()`).

    Contract: rounding. The products of a layer are summed in parts.

    Source: Shoeybi et al., Megatron-LM, 2019 (columns, rows, heads and vocabularies)
    """

    name = "tensor_parallel"
    contract = Contract.ROUNDING
    targets = ("forward", "backward", "optimizer")
    aims = ("memory",)
    order = 95  # outside of all others, which act on what this rank has
    conflicts = ("data_parallel",)

    def applies(self, facts: Facts) -> str | None:
        return "it is a way to run, not yet part of a plan: `overdrive run --ranks N --layout tensor=N`"

    def install(self, seams: Seams, settings: Settings) -> Handle:
        rank = this_rank()

        def arrived() -> None:
            from overdrive.model_state.division.results import watch
            from overdrive.techniques.parallel.tensor_parallel.dividing import Dividing

            dividing = Dividing(rank)
            seams.optimizer_made.subscribe(dividing.made)
            seams.model_called.subscribe(dividing.called)
            seams.norm_taken.subscribe(dividing.norm)
            seams.gradients_asked.subscribe(dividing.asked)
            seams.gradient_watched.subscribe(watch)

        seams.framework_arrived.subscribe(arrived)
        return seams.handle()
