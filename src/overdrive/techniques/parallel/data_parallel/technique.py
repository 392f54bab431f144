"""Technique `data_parallel`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.techniques.parallel import this_rank
from overdrive.techniques.technique import Knob, Settings, Technique

if TYPE_CHECKING:
    from collections.abc import Callable

    from overdrive.ranks.rank import Rank
    from overdrive.seams.hub import Handle, Seams
    from overdrive.techniques.parallel.data_parallel.sharding import Sharding

_EXACT = "exact"


class DataParallel(Technique):
    """Divides each batch over the ranks of a run, at the model's call: one script on N ranks, the numbers of one.

    What it does: every rank runs the whole script on the same batches. The outermost call of a model computes this
    rank's samples only, and its results are gathered, so that the program has the whole batch's: loss, metrics,
    schedules and decisions are those of one process. In the backward pass each rank computes its samples' gradients,
    and they are averaged before anything can look at them. Random numbers inside of the call are drawn for the whole
    batch and divided; batch normalisation takes the statistics of all ranks. With `shards = "state"` each rank keeps
    its share of the optimizer's state alone; with "all", of gradients and parameters too, which are whole while
    somebody uses them. `gather = "bfloat16"` has a call and its backward pass gather them so, without their last 16
    bits, vectors excepted; it computes in the program's own format. All else (steps, gradients, files) has all digits.

    When it helps: models whose calls take long, beside what the rest of a step takes on every rank anyway (loading,
    loss, optimizer) and beside the exchange of gradients. In shares, models that do not fit one device.

    When it hurts: small models: a step of 5 ms takes 8 on two ranks of one machine, which meet some six times in it;
    models with many batch normalisations meet twice in each. Results that are large (a language model's logits) are
    gathered whole. What cannot be divided runs whole on every rank, and that is said: what a first call on parts does
    not do as the whole, compared in fp64; a model that carries hooks, keeps something of its batch or looks at its
    values. What its code sums over its batch (`x.mean(0)`) is over all ranks, in exchanges of their own. What it asks
    of integers and truth values (`mask.all()`, `lengths.max()`) is asked of all ranks, if it has few answers: each
    question is one more meeting, each new answer a call that is tried. Shares are gathered for each use and after each
    step; optimizers that look at more than one element keep their state whole.

    What it watches: before each divided call, anything that the model's code looks at, its hooks among it; after a
    change it is tried anew. What would escape: a model that begins to look at its whole batch by its values alone, and
    state that C code keeps; integers that mix samples (`mask & mask.roll(1, 0)`), if no batch that is tried shows it;
    a term whose weight is a tensor on a GPU, and 0 when it is tried.

    Contract: rounding. The same products are summed in another order. With `gather = "bfloat16"`, statistical.

    Source: Li et al., PyTorch Distributed, VLDB 2020 (averaged gradients, in buckets); Ioffe and Szegedy, Batch
    Normalization, 2015; `torch.nn.DataParallel`, whose border it has; Rajbhandari et al., ZeRO, SC 2020 (shares);
    Zhao et al., PyTorch FSDP, VLDB 2023 (its mixed precision, which computes so too: here `autocast` does)
    """

    name = "data_parallel"
    contract = Contract.ROUNDING
    targets = ("forward", "backward")
    conflicts = ("affinity", "threads")  # the cores are shared out among the ranks
    order = 95  # outside of all others, which act on this rank's part
    knobs = (
        Knob("ranks", 2, "as how many processes the program runs", low=2),
        Knob("shards", "nothing", "what each rank keeps its share of alone", choices=("nothing", "state", "all")),
        Knob("gather", _EXACT, 'how calls gather what shares = "all" divides', choices=(_EXACT, "bfloat16")),
    )

    def applies(self, facts: Facts) -> str | None:
        return "it takes several processes: `overdrive tune --ranks auto` tries it on top of the plan that it finds"

    def contract_with(self, settings: Settings) -> Contract:
        return self.contract if settings.get("gather", _EXACT) == _EXACT else Contract.STATISTICAL

    def ranks(self, settings: Settings) -> int:
        return int(settings["ranks"])

    def install(self, seams: Seams, settings: Settings) -> Handle:
        rank = this_rank()

        notes = _Notes()

        def arrived() -> None:
            from overdrive.techniques.parallel.data_parallel.calls import Divided

            sparing, rounds = settings["shards"] != "nothing", settings["gather"] != _EXACT
            if rounds and settings["shards"] != "all":
                rank.say('gather = "bfloat16" changes nothing: it is for parameters in shares (shards = "all")')
            sharding = _shard(seams, rank, settings["shards"] == "all", rounds) if sparing else None
            divided = Divided(lambda: rank.group, rank.say, rank.lockstep.aside, sharding, sparing)
            notes.told = divided.told
            seams.model_called.subscribe(divided.called, replays=True)  # who watches is to see the whole batch
            seams.random_drawn.subscribe(divided.chance.answer)
            divided.chance.others = partial(seams.random_drawn.ask_others, self.name)
            seams.operator_called("batch_norm").subscribe(divided.norms.answer)
            seams.moments_taken.subscribe(divided.norms.moments)
            seams.train_function_made.subscribe(divided.trained_by)
            seams.loss_computed.subscribe(divided.losses.answer)
            seams.gradients_asked.subscribe(divided.asked)
            seams.gradient_watched.subscribe(divided.watched)
            seams.on_undo(divided.close)

        seams.blameless.add(self.name)  # a call that fails in parts is made whole, as the program makes it
        seams.framework_arrived.subscribe(arrived)
        return seams.handle(notes=notes)


class _Notes:
    """What is said at the end of the run."""

    def __init__(self) -> None:
        self.told: Callable[[], str] = lambda: ""


def _shard(seams: Seams, rank: Rank, parameters: bool, rounds: bool) -> Sharding | None:
    """Have optimizers' state divided, and `parameters` with their gradients; `rounds`: see `Kept`."""
    from overdrive.model_state.sharded.sharing import share
    from overdrive.techniques.parallel.data_parallel.sharding import Sharding

    sharding = Sharding(lambda: rank.group, rank.say, rounds) if parameters else None
    kept, divide = (sharding.kept, sharding.called) if sharding else (None, None)
    share(seams, rank, lambda: rank.group, kept, divide)
    if sharding:
        rank.lockstep.differing.append(lambda parameter: sharding.kept.of(parameter) is not None)
        seams.optimizer_made.subscribe(sharding.made)
        if rounds:
            seams.call_checkpointed.subscribe(sharding.kept.again)
    return sharding
