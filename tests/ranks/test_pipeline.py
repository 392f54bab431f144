"""Models in stages: where they are cut, how it is proved, what is refused, and programs on two ranks (gloo, here)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from overdrive.cli.layout import technique_of  # noqa: E402
from overdrive.model_state.division.call import CallToDivide  # noqa: E402
from overdrive.model_state.division.chance import Chance  # noqa: E402
from overdrive.model_state.division.norms import Norms  # noqa: E402
from overdrive.model_state.division.tree import flatten  # noqa: E402
from overdrive.model_state.sharded import kept, share  # noqa: E402
from overdrive.model_state.sharded.held import keepers  # noqa: E402
from overdrive.model_state.sharded.states import ShardedStates  # noqa: E402
from overdrive.seams.hub import Seams  # noqa: E402
from overdrive.seams.patch import Patches  # noqa: E402
from overdrive.seams.torch import draws, operators  # noqa: E402
from overdrive.techniques.parallel.pipeline_parallel import calling, finding, mailboxes, placed, stages, transfers  # noqa: E402
from overdrive.techniques.parallel.pipeline_parallel.uses import stages_of  # noqa: E402
from tests.conftest import Run  # noqa: E402
from tests.ranks.comparing import difference  # noqa: E402
from tests.ranks.tensor_models import GPT, MODELS, Dropped, mlp  # noqa: E402
from tests.ranks.test_sharded import USES, differing  # noqa: E402

HERE = Path(__file__).parent
ROUNDING = 1e-9  # of numbers in fp64, after eight steps
SMALL: dict[str, Any] = {
    "mlp": (mlp, lambda: (torch.randn(5, 6),)),
    "gpt": (GPT, lambda: (torch.randint(11, (4, 8)),)),
    "dropped": (Dropped, lambda: (torch.randn(5, 6),)),
}
EACH = {**MODELS, **SMALL}
UNSPLIT = {
    **dict.fromkeys(("resnet", "resnet of three", "unet", "mobile"), "takes the statistics of all of it"),
    **dict.fromkeys(("fused", "no optimizer", "grouped"), "it makes one value of the whole batch"),
}


class Answers(NamedTuple):
    chance: Chance
    norms: Norms


@pytest.fixture
def answers() -> Iterator[Answers]:
    """What answers for random numbers and batch norm in trials, as in a run."""
    before, hub, patches, chance, norms = torch.get_default_dtype(), Seams(), Patches(), Chance(), Norms(None)

    def drawn(*asked: Any) -> Any:
        running = stages.running()
        return (chance.answer if running is None else running.drawn)(*asked)

    hub.random_drawn.subscribe(drawn)
    hub.operator_called("batch_norm").subscribe(norms.answer)
    draws.enter(hub, patches)
    operators.enter(hub, patches)
    yield Answers(chance, norms)
    patches.restore()
    torch.set_default_dtype(before)


def found(
    answers: Answers, model: nn.Module, given: tuple[Any, ...], ranks: int = 2, replicas: int = 1
) -> dict[str, Any]:
    leaves, build = flatten((given, {}))
    return finding.found(CallToDivide(model, model, leaves, build, ranks, *answers), replicas)


def made(name: str) -> tuple[nn.Module, tuple[Any, ...]]:
    torch.manual_seed(1)
    make, given = EACH[name]
    return make(), given()


@pytest.mark.parametrize("name", EACH)
def test_models_as_people_write_them(name: str, answers: Answers) -> None:
    model, given = made(name)
    told = found(answers, model, given)
    assert "reason" not in told, told
    assert told["evaluates"] == (name != "encoder")  # which asks how its values are padded, before it takes a fast path
    assert {*told["stages"]} == {name for name, _ in model.named_parameters()}
    assert {stage for stage, _ in told["stages"].values()} == {0, 1}
    assert told["split"] == (name not in UNSPLIT), told
    assert told["split"] or UNSPLIT[name] in told["whole"]


def test_three_stages(answers: Answers) -> None:
    model, given = made("mlp")
    told = found(answers, model, given, ranks=3)
    assert told["split"] and {stage for stage, _ in told["stages"].values()} == {0, 1, 2}


def in_order(model: nn.Module) -> list[str]:
    return [name for name, _ in model.named_parameters()]


def test_stages_are_as_equal_as_can_be_and_cut_no_block() -> None:
    blocks = [nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 4)) for _ in range(4)]
    model = nn.Sequential(nn.Embedding(5, 4), nn.ModuleList(blocks), nn.Linear(4, 5))
    cut = stages_of(model, in_order(model), 2)
    assert [stage for stage, _ in cut.values()] == [0] + 2 * 4 * [0] + 2 * 4 * [1] + 2 * [1]
    assert all(alone for _, alone in cut.values())
    large = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 90))
    assert [stage for stage, _ in stages_of(large, in_order(large), 3).values()] == [0, 0, 1, 1, 2, 2]
    assert stages_of(large, in_order(large), 4) == {}


def test_a_weight_of_two_stages_is_sent() -> None:
    model = GPT()
    order = [*in_order(model), "tokens.weight"]  # which the head takes once more
    cut = stages_of(model, order, 2)
    assert cut["tokens.weight"] == (0, False) and all(alone for name, (_, alone) in cut.items() if name[0] != "t")


class Deciding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.one(x)
        return self.two(x if x.mean() > 0 else -x)


def test_code_that_looks_at_values_is_refused_by_layer(answers: Answers) -> None:
    told = found(answers, Deciding(), (torch.randn(5, 6),))
    assert told == {"reason": "one: its code looks at values that its layers make (`__bool__`)"}


class Keeping(nn.Module):
    """`how`: where it keeps what its first layer makes, `behind` the call or for its length alone."""

    def __init__(self, how: str, behind: bool) -> None:
        super().__init__()
        self.one, self.two, self.how, self.behind = nn.Linear(6, 8), nn.Linear(8, 3), how, behind
        self.register_buffer("state", torch.zeros(8))
        self.kept: Any = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.one(x)
        if self.how == "buffer":
            self.state = x.detach().mean(0)
        else:
            self.kept = {"last": [x]} if self.how == "dict" else x
        made = self.two(x + self.kept if self.how == "attribute" else x)
        if not self.behind:
            self.kept = []
        return made


@pytest.mark.parametrize(("how", "name"), [("attribute", "kept"), ("dict", "kept"), ("buffer", "state")])
def test_what_a_stage_makes_and_a_module_keeps_is_refused(how: str, name: str, answers: Answers) -> None:
    """The script may read it, or the next call; where the stage is not, it has no numbers."""
    told = found(answers, nn.Sequential(Keeping(how, behind=True)), (torch.randn(5, 6),))
    assert told["reason"].startswith(f"it keeps what one stage has made (0.{name})")
    if how != "buffer":
        assert "reason" not in found(answers, nn.Sequential(Keeping(how, behind=False)), (torch.randn(5, 6),))


def test_what_stays_whole_is_told(answers: Answers) -> None:
    assert "fewer layers" in found(answers, nn.Linear(6, 3), (torch.randn(5, 6),))["reason"]
    hooked, graded, shared = mlp(), mlp(), mlp()
    hooked[0].register_forward_hook(lambda *seen: None)
    graded[0].weight.register_hook(lambda gradient: gradient)
    shared[0].weight.data = torch.randn(9, 6)[:8]
    assert finding.refusal(hooked) == "the program has hooks on it"
    assert finding.refusal(graded) == "the program has hooks on the gradient of 0.weight"
    assert finding.refusal(shared) == "0.weight shares its memory"


class Written(nn.Module):
    """In place, in another stage than where it was made; and masks that no stage makes."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        room = torch.zeros(x.shape[0], 2, 6, dtype=x.dtype, device=x.device)
        kept = self.one(x)
        room[:, 0] = kept
        kept = torch.relu_(self.two(kept) + kept.to(kept.device))
        room[:, 1] = kept * (x > 0)
        return self.three(room).flatten(1)[..., : kept.size(-1)]


def test_what_is_written_in_place_goes_where_it_is_written(answers: Answers) -> None:
    told = found(answers, Written(), (torch.randn(5, 6),))
    assert told.get("split"), told


# -- defects ------------------------------------------------------------------------------------------


def micro_batches_in_another_order(patch: pytest.MonkeyPatch) -> None:
    right = calling.part_of
    patch.setattr(calling, "part_of", lambda leaf, dim, number, sizes: right(leaf, dim, len(sizes) - 1 - number, sizes))


def stale_stage(patch: pytest.MonkeyPatch) -> None:
    """What came first is taken again for each micro-batch."""
    right, first = transfers.received, {}

    def received(links: Any, source: int, number: int, like: Any, device: Any) -> Any:
        now = right(links, source, number, like, device)
        return first.setdefault(like.shape, now).clone()

    patch.setattr(transfers, "received", received)


def a_stage_s_gradient_lost(patch: pytest.MonkeyPatch) -> None:
    right = mailboxes.Mailboxes.receive

    def receive(self: Any, room: Any, source: int, number: int, back: bool = False) -> None:
        right(self, room, source, number, back)
        if back:
            room.zero_()

    patch.setattr(mailboxes.Mailboxes, "receive", receive)


def a_micro_batch_s_gradient_lost(patch: pytest.MonkeyPatch) -> None:
    right = mailboxes.Mailboxes.send

    def send(self: Any, tensor: Any, to: int, number: int, back: bool = False) -> None:
        right(self, tensor * (number > 2) if back else tensor, to, number, back)

    patch.setattr(mailboxes.Mailboxes, "send", send)


def the_same_masks_for_all(patch: pytest.MonkeyPatch) -> None:
    right = Chance.begin
    patch.setattr(Chance, "begin", lambda self, known, first, rows, of: right(self, known, 0, rows, of))


def masks_drawn_one_after_the_other(patch: pytest.MonkeyPatch) -> None:
    kind = type("States", (), {"now": staticmethod(lambda: type("Now", (), {"restore": lambda self: None})())})
    patch.setattr(calling, "States", kind)


def nothing_drawn_for_others(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(stages.Stages, "_stand_in", lambda self, tensor: tensor)


def output_of_the_stage_before(patch: pytest.MonkeyPatch) -> None:
    """What is handed to the others is what this stage was sent, where it has the shape."""
    right = stages.Stages.value

    def value(self: Any, tensor: Any, known: Any) -> Any:
        last = getattr(self, "last", None)
        self.last = right(self, tensor, known)
        return last if not self._inside and last is not None and last.shape == self.last.shape else self.last

    patch.setattr(stages.Stages, "value", value)


def gradient_of_what_is_given_counted_for_each(patch: pytest.MonkeyPatch) -> None:
    right = mailboxes.Mailboxes.summed
    patch.setattr(mailboxes.Mailboxes, "summed", lambda self, tensor: right(self, tensor).mul_(2))


def written_unseen(patch: pytest.MonkeyPatch) -> None:
    """What was written to since is taken as it was sent."""
    patch.setattr(placed.Placed, "move", lambda self, stage, own, copy: None)


class Given(nn.Module):
    """With what it is given in both stages, all as wide as each other."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(torch.tanh(self.one(x))) + x


RANKS = {False: 2, True: 3}  # what is written in one stage is read in another one than it came from


def given() -> tuple[torch.Tensor, ...]:
    return (torch.randn(5, 6, requires_grad=True),)


@pytest.mark.parametrize(
    ("defect", "make", "of"),
    [
        (micro_batches_in_another_order, *SMALL["mlp"]),
        (stale_stage, *SMALL["mlp"]),
        (a_stage_s_gradient_lost, *SMALL["gpt"]),
        (a_micro_batch_s_gradient_lost, *SMALL["mlp"]),
        (the_same_masks_for_all, *SMALL["dropped"]),
        (masks_drawn_one_after_the_other, *SMALL["dropped"]),
        (nothing_drawn_for_others, *SMALL["gpt"]),
        (output_of_the_stage_before, Given, given),
        (gradient_of_what_is_given_counted_for_each, Given, given),
        (written_unseen, Written, SMALL["mlp"][1]),
    ],
)
def test_seeded_defects_are_caught(
    defect: Any, make: Any, of: Any, answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(1)
    assert found(answers, make(), of(), RANKS[make is Written])["split"]
    defect(monkeypatch)
    told = found(answers, make(), of(), RANKS[make is Written])
    assert "reason" in told or not told["split"], told


# -- replicas of stages -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpt", "dropped", "mlp", "resnet"])
def test_replicas_of_stages_are_proved(name: str, answers: Answers) -> None:
    model, of = made(name)
    told = found(answers, model, of, ranks=4, replicas=2)
    assert {stage for stage, _ in told["stages"].values()} == {0, 1}
    assert told["split"] == (name != "resnet"), told
    assert told["count" if told["split"] else "written"]


def test_each_replica_has_its_micro_batches() -> None:
    batches = calling.Batches(None, 10, 5)  # type: ignore[arg-type]
    assert batches.sizes == 5 * [2] and batches.of_replicas(1) == [range(5)]
    assert batches.of_replicas(2) == [range(2), range(2, 5)]


def the_samples_of_one_replica_for_all(patch: pytest.MonkeyPatch) -> None:
    right = calling.Batches.of_replicas
    patch.setattr(calling.Batches, "of_replicas", lambda self, count: count * [right(self, count)[0]])


def replicas_in_another_order(patch: pytest.MonkeyPatch) -> None:
    right = mailboxes._Replicas._exchanged
    patch.setattr(mailboxes._Replicas, "_exchanged", lambda self, tensor: right(self, tensor)[::-1])


def gathered_among_stages(patch: pytest.MonkeyPatch) -> None:
    """In the wrong group: what the stages of one replica have."""

    def exchanged(self: Any, tensor: Any) -> Any:
        first = self._boxes.turns.rank - self._boxes.rank
        return self._boxes.exchanged("row", tensor, range(first, first + self._boxes.size))

    patch.setattr(mailboxes._Replicas, "_exchanged", exchanged)


def a_mean_of_what_is_to_be_summed(patch: pytest.MonkeyPatch) -> None:
    right = calling.Gathered

    class Gathered:
        @staticmethod
        def apply(leaf: Any, replicas: Any, *more: Any) -> Any:
            if leaf.requires_grad:
                leaf.register_hook(lambda gradient: gradient / replicas.size)
            return right.apply(leaf, replicas, *more)

    patch.setattr(calling, "Gathered", Gathered)


def a_replica_s_gradient_of_what_is_given(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(calling, "Shared", type("Shared", (), {"apply": staticmethod(lambda leaf, replicas: leaf)}))


@pytest.mark.parametrize(
    "defect",
    [
        the_samples_of_one_replica_for_all,
        replicas_in_another_order,
        gathered_among_stages,
        a_mean_of_what_is_to_be_summed,
        a_replica_s_gradient_of_what_is_given,
    ],
)
def test_seeded_defects_of_replicas_are_caught(defect: Any, answers: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    four = torch.randn(4, 6, requires_grad=True)  # each replica has as many
    assert found(answers, Given(), (four,), ranks=4, replicas=2)["split"]
    defect(monkeypatch)
    told = found(answers, Given(), (four,), ranks=4, replicas=2)
    assert "reason" in told or not told["split"], told


@pytest.mark.cluster
def test_seeded_defects_of_gradients_over_replicas_change_the_numbers(python: Run, overdrive: Run) -> None:
    one = python("mesh_defects.py", "none", cwd=HERE)
    told = overdrive("run", "--ranks", "4", "--layout", "data=2,pipeline=2", "mesh_defects.py", cwd=HERE)
    assert one.returncode == told.returncode == 0, told.stderr
    none, *wrong = told.stdout.splitlines()
    assert not difference(one.stdout, none, ROUNDING) and len(wrong) == 3
    for line in wrong:
        assert difference(one.stdout, line.replace(line.split()[0], "none"), 1e-6), line


@pytest.mark.cluster
def test_replicas_that_differ_end_the_run(overdrive: Run) -> None:
    line = ("run", "--ranks", "4", "--layout", "data=2,pipeline=2", "mesh_defects.py", "guarded", "not_summed")
    told = overdrive(*line, cwd=HERE)
    assert told.returncode != 0 and "the parts of parameters of rank 2 differ from those of rank 0" in told.stderr


# -- what each rank keeps -----------------------------------------------------------------------------


class Second:
    """A group of two ranks, of which this is the second; what the first has is ones."""

    rank, size = 1, 2

    def mine(self) -> bool:
        return True

    def broadcast(self, tensor: Any, source: int, what: str) -> None:
        if source == 0:
            tensor.fill_(1.0)

    def of_all(self, numbers: Any, what: str) -> Any:
        return [list(numbers)] * self.size


@pytest.fixture
def owned() -> Iterator[tuple[nn.Module, kept.Kept]]:
    """The first layer is the other rank's, the second this one's."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    held = kept.Kept(lambda: Second())  # type: ignore[arg-type, return-value]
    for place in range(2):
        held.take([*model[place].parameters()], place)
    held.give_back()
    yield model, held
    keepers.remove(held)


def test_one_rank_has_all_of_a_parameter() -> None:
    whole = torch.arange(6.0).view(2, 3)
    mine, theirs = share.Share(whole, 1, 2, owner=1), share.Share(whole, 1, 2, owner=0)
    assert mine.sizes == [0, 6] and mine.is_whole and torch.equal(mine.seen_whole(mine.of(whole)), whole)
    assert theirs.sizes == [6, 0] and not theirs.is_whole and not theirs.of(whole).numel()


def test_what_is_a_rank_s_own_stays_in_its_memory(owned: tuple[nn.Module, kept.Kept]) -> None:
    model, held = owned
    place = held.of(model[1].weight).part.data_ptr()
    with held.staged():
        assert type(model[1].weight) is nn.Parameter and model[1].weight.data_ptr() == place
        with pytest.raises(RuntimeError, match="another stage"):
            model[0].weight.sum()
    assert held.of(model[0].weight).part.numel() == 0
    assert (
        float(model[0].weight.detach().sum()) == 12.0 and held.of(model[0].weight).part is None
    )  # from the other rank
    held.give_back()
    assert held.of(model[0].weight).part.numel() == 0
    assert float(model[1].weight.detach().sum()) != 8.0 and model[1].weight.data_ptr() == place


def test_a_step_is_of_what_is_a_rank_s_own_and_the_state_whole_for_who_asks(owned: tuple[nn.Module, kept.Kept]) -> None:
    model, held = owned
    said: list[str] = []
    states = ShardedStates(lambda: Second(), said.append, held)  # type: ignore[arg-type, return-value]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    before = held.of(model[1].weight).part.clone()
    for each in model.parameters():
        owner = held.of(each)
        owner.gradient = torch.ones(owner.share.size)
    states.stepped(optimizer, type(optimizer).step.__wrapped__.__get__(optimizer))
    assert torch.allclose(held.of(model[1].weight).part, before - 0.1)
    sizes = [optimizer.state[each]["exp_avg"].numel() for each in model.parameters()]
    assert sizes == [0, 0, 8, 2]
    states.asked(optimizer)
    shapes = [optimizer.state[each]["exp_avg"].shape for each in model.parameters()]
    assert shapes == [each.shape for each in model.parameters()]


def test_a_layout_of_stages() -> None:
    assert technique_of("pipeline=2", 2) == ("pipeline_parallel", {"replicas": 1})
    assert technique_of("data=3,pipeline=2", 6) == ("pipeline_parallel", {"replicas": 3})
    for layout in ("data=2,pipeline=2", "tensor=3,pipeline=2", "pipeline=2,pipeline=3", "data=6,", "shard=3,data=2"):
        with pytest.raises((click.UsageError, SystemExit)):
            technique_of(layout, 6)


# -- programs -----------------------------------------------------------------------------------------


def test_a_program_in_stages_prints_the_numbers_of_one_process(python: Run, overdrive: Run) -> None:
    same(python, overdrive, "gpt", "2 stages on 2 ranks (tokens to blocks.0.mlp.down, blocks.1.first_norm to norm)")


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("mlp", "in 4 micro-batches"),
        ("dropped", "in 4 micro-batches"),
        ("encoder", "in 4 micro-batches"),
        ("vit", "in 3 micro-batches"),
        ("resnet", "its batch is not split: 1 takes the statistics of all of it"),
        ("unet", "its batch is not split: down.1 takes the statistics of all of it"),
    ],
)
def test_programs_print_the_numbers_of_one_process(name: str, said: str, python: Run, overdrive: Run) -> None:
    same(python, overdrive, name, said)


# Not on every rank an error: see docs/scale.md.
ENDED = {"gradients_asked_for", "written_between_forward_and_backward"}


@pytest.mark.cluster
def test_what_programs_do_with_parameters(python: Run, overdrive: Run) -> None:
    names = [each for each in USES if each not in ENDED]
    one = python("parameter_uses.py", *names, cwd=HERE)
    line = ("run", "--ranks", "2", "--layout", "pipeline=2", "parameter_uses.py", *names)
    many = overdrive(*line, cwd=HERE, timeout=1200)
    assert many.returncode == 0 and differing(one.stdout, many.stdout) == {}, many.stderr


SEVERAL = """
import torch
from torch import nn
class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 3)
    def forward(self, x):
        hidden = self.first(x)
        return self.second(hidden), hidden
model = Both()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
made, hidden = model(torch.randn(4, 6))
LINE
made.sum().backward()
print("went on")
"""


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("hidden.retain_grad()", "`retain_grad()` of one of several results"),
        ("hidden.register_hook(print)", "a hook on one of several results"),
        ("torch.autograd.grad(made.sum(), [hidden])", "with respect to one of several results"),
    ],
)
@pytest.mark.parametrize("layout", ["pipeline=2", "data=2,pipeline=2"])
def test_a_gradient_that_another_rank_may_have_ends_the_run_with_a_sentence(
    line: str, said: str, layout: str, script: Callable[[str], Path], overdrive: Run
) -> None:
    path = script(SEVERAL.replace("LINE", line))
    ranks = "4" if "data" in layout else "2"
    told = overdrive("run", "--ranks", ranks, "--layout", layout, path.name, cwd=path.parent)
    assert told.returncode == 1 and said in told.stderr and not told.stdout, told
    assert "Traceback" not in told.stderr


@pytest.mark.cluster
@pytest.mark.parametrize("name", ["gpt", "dropped"])
def test_replicas_of_stages_print_the_numbers_of_one_process(name: str, python: Run, overdrive: Run) -> None:
    same(python, overdrive, name, "2 replicas of 2 stages on 4 ranks", 4, "data=2,pipeline=2")


def same(python: Run, overdrive: Run, name: str, said: str, ranks: int = 2, layout: str = "pipeline=2") -> None:
    one = python("tensor_programs.py", name, cwd=HERE)
    many = overdrive("run", "--ranks", str(ranks), "--layout", layout, "tensor_programs.py", name, cwd=HERE)
    assert one.returncode == many.returncode == 0, many.stderr
    assert said in many.stderr
    assert not difference(one.stdout, many.stdout, ROUNDING)
