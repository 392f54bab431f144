"""Technique `cache_blocking`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.techniques.technique import CannotInstall, Knob, Settings, Technique

if TYPE_CHECKING:
    from overdrive.seams.hub import Handle, Seams

_TRIED = {4: 8, 16: 128}  # into how many blocks, from which batch on: 4 samples a block were 0.5 times as fast


class CacheBlocking(Technique):
    """Calls the model on blocks of a batch one after the other, so that what layers pass on stays in the caches.

    What it does: the model's outermost call in training is made block by block and the results are put together;
    the program computes its loss of the whole batch as before. In the backward pass each block's share of the
    loss's gradient is sent through it. Nothing is computed twice.

    When it helps: large batches on a CPU. A layer's output of hundreds of samples is larger than the caches, so that
    each layer reads from memory what the one before has just written, into pages that were got from the system for
    it. A small CNN ran 1.5 to 2.1 times as fast in blocks at batch 512, 2.4 to 2.6 times at 2,048 (2 cores with
    32 MiB of L3 cache; in bf16 0.99 and 2.25 times).

    When it hurts: small batches, where more calls cost more than the caches save (0.7 to 1.0 times at batch 128 in
    bf16). Left out, with the reason, for models that do more than make one row a sample: batch normalisation in
    training (which averages over the batch), models that return their loss, that keep tensors on themselves, or
    that carry the program's hooks. Whether a sample's result depends on its batch is tried first, on two blocks.

    Contract: rounding. The same products are summed in another order. It falls to statistical where the model draws
    random numbers: dropout draws other masks for blocks than for the whole.

    Source: Lam, Rothberg, Wolf, The Cache Performance and Optimizations of Blocked Algorithms, ASPLOS 1991; over
    the batch of a network, Lym et al., Mini-batch Serialization, MLSys 2019
    """

    name = "cache_blocking"
    contract = Contract.ROUNDING
    fallback_contract = Contract.STATISTICAL
    targets = ("forward", "backward")
    expected_saving = 0.2
    compare_all = True
    order = 46  # as micro_batch
    knobs = (Knob("parts", 4, "into how many blocks a batch is split", low=2, high=1024),)

    def applies(self, facts: Facts) -> str | None:
        if facts.device != "cpu":
            return f"the model is on the {facts.device}, whose kernels want large batches"
        if not facts.modules:
            return "the trained parameters belong to no nn.Module"
        if not self.candidates(facts):
            return "a batch has too few samples to be split"
        return None

    def candidates(self, facts: Facts) -> Sequence[Settings]:
        size = facts.samples_per_step
        return [{"parts": parts} for parts, least in _TRIED.items() if size == 0 or size >= least]

    def install(self, seams: Seams, settings: Settings) -> Handle:
        from overdrive.techniques.memory.micro_batch.splitting import Splitting

        splitting = Splitting(int(settings["parts"]), True, lambda reason: seams.leave_out(self.name, reason))
        splitting.enter(seams, CannotInstall)
        return seams.handle()
