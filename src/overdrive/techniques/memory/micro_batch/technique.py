"""Technique `micro_batch`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.techniques.technique import CannotInstall, Knob, Settings, Technique

if TYPE_CHECKING:
    from overdrive.seams.hub import Handle, Seams


class MicroBatch(Technique):
    """Calls the model on parts of a batch, so that only one part's activations are in memory at a time.

    What it does: the model's outermost call in training runs part by part without recording anything, and its
    results are put together; the program computes its loss of the whole batch as before. In the backward pass each
    part is called again, now recorded, and its share of the loss's gradient is sent through it. Random states are
    put back for each part, so that the second call draws what the first drew.

    When it helps: a batch that does not fit into memory, whatever the loss is and however it is averaged: memory
    for activations falls to about one part's.

    When it hurts: always in time: every part goes forward twice, which is a third more work, and small parts use
    the machine less well. Left out, with the reason, for models that do more than make one row a sample: batch
    normalisation in training (which averages over the batch), models that return their loss, that do more than
    compute (keep something, print), or that carry the program's hooks. Whether a sample's result depends on its batch
    is tried first, on two parts, in calls that leave no trace.

    What it watches: before each call, anything that the model's code looks at: where it has changed, whether a sample's
    result depends on its batch is tried anew, three times at most. A call that begins to print or to keep something is
    undone and made as it is. What would escape: a model that begins to look at its whole batch by its values alone.

    Contract: rounding. The same products are summed in another order. It falls to statistical where the model draws
    random numbers: dropout draws other masks for parts than for the whole.

    Source: Huang et al., GPipe, NeurIPS 2019 (micro-batches); Chen et al., Training Deep Nets with Sublinear Memory
    Cost, 2016 (making activations again)
    """

    name = "micro_batch"
    contract = Contract.ROUNDING
    fallback_contract = Contract.STATISTICAL
    targets = ("forward", "backward")
    aims = ("memory",)
    switchable = True
    survives = True
    order = 46  # outside of activation_checkpointing (45), which then works on the parts
    knobs = (Knob("parts", 2, "into how many parts a batch is split", low=2, high=1024),)

    def applies(self, facts: Facts) -> str | None:
        if none := facts.without_module():
            return none
        if 0 < facts.samples_per_step < 2:
            return "a batch is a single sample"
        return None

    def candidates(self, facts: Facts) -> Sequence[Settings]:
        size = facts.samples_per_step
        return [{"parts": parts} for parts in (2, 4, 8, 16) if size == 0 or parts <= size]

    def install(self, seams: Seams, settings: Settings) -> Handle:
        from overdrive.techniques.memory.micro_batch.splitting import Splitting

        splitting = Splitting(int(settings["parts"]), lambda reason: seams.leave_out(self.name, reason))
        splitting.enter(seams, CannotInstall)
        return seams.handle()
