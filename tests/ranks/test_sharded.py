"""State, gradients and parameters in parts: which ranks hold which, and programs on two ranks (gloo, this machine)."""

from __future__ import annotations

import copy
import pickle
import re
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from overdrive.cli.layout import technique_of  # noqa: E402
from overdrive.model_state.sharded import kept, share, units  # noqa: E402
from overdrive.model_state.sharded.held import Sharded, keepers  # noqa: E402
from overdrive.model_state.sharded.own_part import OwnPart  # noqa: E402
from overdrive.model_state.sharded.states import ShardedStates  # noqa: E402
from overdrive.seams.parameters import looks_at_more  # noqa: E402
from overdrive.techniques.parallel.data_parallel.sharding import Sharding  # noqa: E402
from tests.conftest import Run  # noqa: E402
from tests.ranks.comparing import difference  # noqa: E402
from tests.ranks.named import NAMES  # noqa: E402
from tests.ranks.test_ranks import acting  # noqa: E402

HERE = Path(__file__).parent
ROUNDING = 1e-9  # of numbers in fp64, after a dozen steps
USES = tuple(re.findall(r"^@use\ndef (\w+)", (HERE / "parameter_uses.py").read_text(), re.MULTILINE))
FEW_USES = ("deepcopy_for_an_average", "optimizer_loaded", "clipped", "alias_of_data_kept", "flat_vector")
_found = re.findall(r'^@defect\("(\w+)"\)\ndef (\w+)', (HERE / "sharded_defects.py").read_text(), re.MULTILINE)
DEFECTS = {name: program for program, name in _found}
cluster = pytest.mark.cluster


class OfTwo:
    """A group of two ranks, of which the other has, of everything, what this one has: all halves are the same."""

    rank, size = 0, 2

    def mine(self) -> bool:
        return True

    def gather(self, tensor: Any, dim: int, sizes: Any, what: str) -> Any:
        return torch.cat([tensor] * self.size, dim)

    def gather_into(self, whole: Any, own: Any, what: str) -> None:
        whole.copy_(torch.cat([own] * self.size))

    def of_all(self, numbers: Any, what: str) -> Any:
        return [list(numbers)] * self.size


@pytest.fixture
def sharded() -> Iterator[tuple[nn.Module, kept.Kept]]:
    """A model whose parameters are given back; the halves of each are the same."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    for each in model.parameters():
        each.data.view(2, -1)[1] = each.data.view(2, -1)[0]
    held = kept.Kept(lambda: OfTwo())  # type: ignore[arg-type, return-value]
    for unit in units.units(model):
        held.take(unit)
    del each, unit  # else they live on
    held.give_back()
    yield model, held
    keepers.remove(held)


@pytest.mark.parametrize(("elements", "ranks", "sizes"), [(7, 2, [3, 4]), (6, 3, [2, 2, 2]), (5, 4, [1, 1, 1, 2])])
def test_every_element_is_somebodys(elements: int, ranks: int, sizes: list[int]) -> None:
    whole = torch.arange(float(elements))
    parts = [share.Share(whole, rank, ranks) for rank in range(ranks)]
    assert [each.size for each in parts] == sizes
    assert torch.equal(torch.cat([each.of(whole) for each in parts]), whole)
    assert torch.equal(parts[0].of(whole, ranks - 1), parts[-1].of(whole))


def test_shares_lie_as_the_memory_does() -> None:
    pictures = torch.arange(48.0).view(2, 3, 2, 4).to(memory_format=torch.channels_last)
    assert share.is_dense(pictures) and not share.is_dense(pictures[:, :, :, ::2])
    part = share.Share(pictures, 0, 2)
    assert torch.equal(share.flat(part.laid(pictures.contiguous())), share.flat(pictures))
    assert part.blank(pictures).stride() == pictures.stride()


def test_units_are_blocks_that_are_repeated() -> None:
    block = [nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 4)) for _ in range(3)]
    model = nn.Sequential(nn.Embedding(5, 4), nn.ModuleList(block), nn.LayerNorm(4), nn.Linear(4, 5, bias=False))
    model[3].weight = model[0].weight
    found = [[tuple(each.shape) for each in unit] for unit in units.units(model)]
    assert found == [[(5, 4)], *[[(8, 4), (8,), (4, 8), (4,)]] * 3, [(4,), (4,)]]


def test_which_optimizers_look_at_one_element() -> None:
    parameters = [nn.Parameter(torch.ones(3))]
    own = type("Own", (torch.optim.SGD,), {})
    assert looks_at_more(torch.optim.AdamW(parameters)) == ""
    assert looks_at_more(torch.optim.LBFGS(parameters)) == "LBFGS" and looks_at_more(own(parameters, lr=1)).endswith(
        "Own"
    )


def test_what_asks_for_values_has_them_and_nothing_else_gathers(sharded: tuple[nn.Module, kept.Kept]) -> None:
    model, held = sharded
    weight = model[0].weight
    assert type(weight) is Sharded and isinstance(weight, nn.Parameter)
    assert weight.shape == (4, 3) and weight.numel() == 12 and weight.is_leaf and weight.requires_grad
    assert sum(each.numel() for each in model.parameters()) == 26 and not held.of(weight).unit.is_open
    assert weight.square().sum() > 0 and held.of(weight).unit.is_open
    assert model[2].weight.sum() == model[2].weight.sum() and not held.of(weight).unit.is_open
    with torch._C.DisableTorchFunctionSubclass():
        assert weight.isnan().all()  # what slips past is seen


def test_what_is_whole_stays_so_while_it_is_used_together_with_what_is_not(
    sharded: tuple[nn.Module, kept.Kept],
) -> None:
    model, held = sharded
    expected = model[2].weight.detach().clone() @ model[0].weight.detach().clone()
    assert held.of(model[0].weight).unit.is_open and not held.of(model[2].weight).unit.is_open
    assert torch.equal(torch.matmul(model[2].weight, model[0].weight), expected)


def test_memory_that_somebody_holds_stays_the_parameters(sharded: tuple[nn.Module, kept.Kept]) -> None:
    model, held = sharded
    weight = model[0].weight
    alias = weight.data
    held.give_back()
    assert held.of(weight).part is None and type(weight) is Sharded
    with torch.no_grad():
        weight.mul_(2)
    assert torch.equal(alias, weight)
    del alias
    held.give_back_the_rest()
    assert held.of(weight).part.shape == (6,)


def test_copies_and_pickles_are_plain_and_whole(sharded: tuple[nn.Module, kept.Kept]) -> None:
    model, held = sharded
    expected = model(torch.ones(1, 3))
    held.give_back()
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert {type(each) for each in other.parameters()} == {nn.Parameter}
        assert torch.equal(other(torch.ones(1, 3)), expected)
    assert all(type(each) is torch.Tensor for each in model.state_dict().values())
    assert {type(each) for each in model.parameters()} == {Sharded}


def test_a_graph_keeps_no_parameters_and_leaks_nothing(sharded: tuple[nn.Module, kept.Kept]) -> None:
    model, held = sharded
    between: list[Any] = []
    model[1].register_forward_hook(lambda module, given, result: between.append(weakref.ref(result)))
    with held.calling():
        made = model(torch.ones(2, 3))
    held.give_back()
    assert all(held.of(each).part is not None for each in model.parameters())  # nobody holds their memory
    made.sum().backward()
    held.give_back()
    assert model[0].weight.grad.shape == (4, 3)
    del made
    assert between[0]() is None  # without the garbage collector


def test_who_writes_between_forward_and_backward_is_told_so(sharded: tuple[nn.Module, kept.Kept]) -> None:
    model, held = sharded
    with held.calling():
        made = model(torch.ones(2, 3))
    with torch.no_grad():
        model[2].weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        made.sum().backward()


def test_a_dropped_model_is_forgotten(sharded: tuple[nn.Module, kept.Kept]) -> None:
    model, held = sharded
    assert len(held) == 4
    del model[2]
    assert len(held) == 2


def test_nothing_is_gathered_in_a_step(sharded: tuple[nn.Module, kept.Kept]) -> None:
    model, held = sharded
    held.in_step = True
    with pytest.raises(RuntimeError, match="within an optimizer's step"):
        model[0].weight.sum()


def test_gradients_in_parts_are_whole_for_who_looks(sharded: tuple[nn.Module, kept.Kept]) -> None:
    model, held = sharded
    weight, parts = model[0].weight, held.gradients
    parts.add(held.of(weight), torch.arange(12.0))
    parts.add(held.of(weight), torch.ones(12))
    assert parts.takes(weight) is held.of(weight) and torch.equal(held.of(weight).gradient, torch.arange(6.0) + 1)
    with parts.aside():
        assert weight.grad is None
    assert weight.grad.shape == (4, 3) and held.of(weight).gradient is None and parts.takes(weight) is None
    parts.zeroed(model, model.zero_grad)
    assert weight.grad is None and parts.takes(weight) is not None


def test_what_a_rank_has_is_taken_and_put_back_and_nothing_is_gathered(sharded: tuple[nn.Module, kept.Kept]) -> None:
    """By a run that survives: values, gradients, and which states are in parts."""
    from overdrive.survive import state
    from overdrive.survive.optimizer_states import OptimizerStates

    model, held = sharded
    optimizer = torch.optim.Adam(model.parameters())
    states = ShardedStates(lambda: OfTwo(), lambda told: None, held)  # type: ignore[arg-type, return-value]
    parts = OwnPart(lambda: OfTwo(), held, states, lambda model: None)  # type: ignore[arg-type, return-value]
    of = [held.of(each) for each in model.parameters()]
    for each in of[1:]:
        held.gradients.add(each, torch.arange(2.0 * each.share.size))
    states.stepped(optimizer, optimizer.step)
    found = SimpleNamespace(compiled="", hidden="", unordered="", generators=[], optimizers=[optimizer])
    found.tensors = [(f"no. {place}", each) for place, each in enumerate(model.parameters())]
    found.digest = lambda: [parts.told(each) for _, each in found.tensors]
    with parts.as_it_is():
        taken = state.Taking(found, OptimizerStates(), parts)
        blocks, then = [bytes(each) for each in taken.blocks], [(each.part.clone(), each.gradient) for each in of]
        in_parts = states.told(optimizer)
        assert [place for place, _ in in_parts] == [1, 2, 3] and in_parts[0][1] == ["exp_avg", "exp_avg_sq"]
        for each in of:
            each.part.add_(1)
            each.gradient, each.looked = None, True
        states.take_back(optimizer, [])
        state.put_back(found, taken.header, blocks.__getitem__, parts)
    assert states.told(optimizer) == in_parts and not any(each.looked or each.unit.is_open for each in of)
    for each, (part, gradient) in zip(of, then, strict=True):
        assert torch.equal(each.part, part)
        assert each.gradient is gradient is None or torch.equal(each.gradient, gradient)


def test_a_model_is_divided_where_its_first_call_is_left_out() -> None:
    """As a run that survives leaves out calls when it is made again: later ones find it divided, and say nothing."""
    said: list[str] = []
    sharding = Sharding(lambda: OfTwo(), said.append)  # type: ignore[arg-type, return-value]
    model = nn.Linear(3, 4)
    states = ShardedStates(lambda: OfTwo(), said.append, sharding.kept)  # type: ignore[arg-type, return-value]
    parts = OwnPart(lambda: OfTwo(), sharding.kept, states, sharding.called)  # type: ignore[arg-type, return-value]
    sharding.made(optimizer := torch.optim.SGD(model.parameters(), lr=0.1), ())
    assert all(map(parts.lacks_gradient, model.parameters())) and not parts.zero_gradient(model.weight)
    for _ in range(2):
        parts.called(model)
    keepers.remove(sharding.kept)
    assert {type(each) for each in model.parameters()} == {Sharded} and len(said) == 1 and optimizer
    assert parts.zero_gradient(model.weight) and not parts.lacks_gradient(model.weight)
    assert sharding.kept.of(model.weight).gradient.tolist() == [0.0] * 6


def test_layouts_are_told_apart() -> None:
    assert technique_of("zero1=2", 2) == ("data_parallel", {"ranks": 2, "shards": "state"})
    assert technique_of("shard=2", 2) == ("data_parallel", {"ranks": 2, "shards": "all"})
    for layout in ("shard", "zero=2", "shard=3"):
        with pytest.raises((click.UsageError, SystemExit)):
            technique_of(layout, 2)


def numbers_of(output: str) -> dict[str, str]:
    return dict(line.split(": ", 1) for line in output.splitlines())


def differing(one: str, many: str) -> dict[str, str]:
    expected, got = numbers_of(one), numbers_of(many)
    assert expected.keys() == got.keys() and not any("Error" in each for each in expected.values())
    return {name: told for name in expected if (told := difference(expected[name], got[name], ROUNDING))}


def test_programs_in_parts_print_the_numbers_of_one_process(python: Run, overdrive: Run) -> None:
    one = python("parameter_uses.py", *FEW_USES, cwd=HERE)
    many = overdrive("run", "--ranks", "2", "--layout", "shard=2", "parameter_uses.py", *FEW_USES, cwd=HERE)
    assert many.returncode == 0 and differing(one.stdout, many.stdout) == {}, many.stderr
    assert "parameters and gradients are divided over 2 ranks" in many.stderr
    assert "the state of AdamW is divided over 2 ranks" in many.stderr


def test_a_step_in_parts_has_every_bit_of_a_whole_one(overdrive: Run) -> None:
    told = [
        overdrive("run", "--ranks", "2", "--layout", f"{layout}=2", "parameter_uses.py", "other_optimizers", cwd=HERE)
        for layout in ("data", "zero1")
    ]
    assert told[0].returncode == 0 and told[0].stdout == told[1].stdout, told[1].stderr


@cluster
@pytest.mark.parametrize("layout", ["zero1=2", "shard=2", "shard=3"])
@pytest.mark.parametrize("program", ["parameter_uses.py", "small_programs.py"])
def test_all_programs_do(layout: str, program: str, python: Run, overdrive: Run) -> None:
    one = python(program, cwd=HERE)
    ranks = layout.partition("=")[2]
    many = overdrive("run", "--ranks", ranks, "--layout", layout, program, cwd=HERE, timeout=1200)
    assert many.returncode == 0 and differing(one.stdout, many.stdout) == {}, many.stderr


@cluster
@pytest.mark.fault(19)
def test_seeded_defects_change_the_numbers(python: Run, overdrive: Run) -> None:
    programs = set(DEFECTS.values())
    right = numbers_of(python("small_programs.py", *programs & {*NAMES}, cwd=HERE).stdout)
    right |= numbers_of(python("parameter_uses.py", *programs & {*USES}, cwd=HERE).stdout)
    told = overdrive("run", "--ranks", "2", "--layout", "shard=2", "sharded_defects.py", cwd=HERE, timeout=600)
    got = numbers_of(told.stdout)
    assert got.keys() == DEFECTS.keys(), told.stderr
    assert not [name for name, program in DEFECTS.items() if not difference(right[program], got[name], 1e-6)]


@cluster
@pytest.mark.fault(17)
@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("if rank: raise ValueError('alone')", "ValueError: alone"),
        ("if rank: os.kill(os.getpid(), 9)", "rank"),
        ("if rank: print([p.grad for p in model.parameters()])", "rank 1 for a gradient that is looked at in step 4"),
        ("if rank: print(optimizer.state_dict())", "rank 1 for an optimizer's state in step 4"),
    ],
)
def test_a_rank_that_goes_astray_ends_all(line: str, said: str, script: Callable[[str], Path], overdrive: Run) -> None:
    path = script(acting(line).replace("lr=0.1", "lr=0.1, momentum=0.9"))
    told = overdrive("run", "--ranks", "2", "--layout", "shard=2", "train.py", cwd=path.parent, timeout=60)
    assert told.returncode != 0 and said in told.stderr, told.stderr


def test_there_are_enough_uses_and_defects() -> None:
    assert len(USES) >= 30 and len(DEFECTS) >= 15
    assert {*DEFECTS.values()} <= {*NAMES, *USES} and {*FEW_USES} <= {*USES}
