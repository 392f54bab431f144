"""Parameters in parts that a model's call gathers in bfloat16: what is rounded, what is not, and how plans say it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from overdrive.core.contract import Contract  # noqa: E402
from overdrive.core.plan import Plan, PlanError  # noqa: E402
from overdrive.model_state.sharded import kept, units  # noqa: E402
from overdrive.model_state.sharded.held import keepers  # noqa: E402
from overdrive.model_state.sharded.states import ShardedStates  # noqa: E402
from overdrive.techniques.catalogue import catalogue  # noqa: E402
from overdrive.tuner.strategies import Candidate  # noqa: E402
from tests.conftest import Run  # noqa: E402
from tests.ranks.test_sharded import HERE, differing  # noqa: E402

Write = Callable[[str], Path]
WEIGHTS, BIASES = (8 * 6 + 4 * 8) * 4, (8 + 4) * 4  # bytes


class OfTwo:
    """A group of two ranks, of which the other has, of everything, what this one has; it counts what is gathered.

    Attributes: `astray`: what the other says of whether the program has written to what was gathered before.
    """

    rank, size = 0, 2

    def __init__(self) -> None:
        self.bytes = self.astray = 0

    def mine(self) -> bool:
        return True

    def gather(self, tensor: Any, dim: int, sizes: Any, what: str) -> Any:
        self.bytes += 2 * tensor.nbytes
        others = tensor.clone()
        if what.endswith("rounded"):
            others[-1] |= self.astray
        return torch.cat([tensor, others], dim)

    def gather_into(self, whole: Any, own: Any, what: str) -> None:
        self.bytes += whole.nbytes
        whole.copy_(torch.cat([own] * self.size))

    def of_all(self, numbers: Any, what: str) -> Any:
        return [list(numbers)] * self.size


class Watched(nn.Linear):
    """Attributes: `act`: is called with it in each of its calls; `seen`: its parameters, as the last one found them."""

    act: Callable[[Any], Any] = staticmethod(lambda module: None)

    def forward(self, x: Any) -> Any:
        result = super().forward(x)
        self.seen = [each.detach().clone() for each in (self.weight, self.bias)]
        self.act(self)
        return result


class Case:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.group, self.model = OfTwo(), nn.Sequential(Watched(6, 8), nn.Tanh(), Watched(8, 4))
        for each in self.model.parameters():
            each.data.view(2, -1)[1] = each.data.view(2, -1)[0]
        self.whole = {name: each.clone() for name, each in self.model.state_dict().items()}
        self.kept = kept.Kept(lambda: self.group, rounds=True)  # type: ignore[arg-type, return-value]
        for unit in units.units(self.model):
            self.kept.take(unit)
        self.kept.give_back()

    def call(self) -> Any:
        with self.kept.calling():
            return self.model(torch.ones(2, 6))

    def of(self, parameter: Any) -> Any:
        return self.kept.of(parameter)


@pytest.fixture
def case() -> Iterator[Case]:
    made = Case()
    yield made
    keepers.remove(made.kept)


def rounded(tensor: Any) -> Any:
    return tensor.bfloat16().float()


def test_a_call_and_its_backward_pass_gather_half_and_everybody_else_finds_all_digits(case: Case) -> None:
    first, last = case.model[0], case.model[2]
    made = case.call()
    flags = 2 * 2  # a byte of each rank for each unit
    assert case.group.bytes == WEIGHTS // 2 + BIASES + flags
    for module, name in ((first, "0"), (last, "2")):
        weight, bias = module.seen
        assert torch.equal(weight, rounded(case.whole[f"{name}.weight"]))
        assert not torch.equal(weight, case.whole[f"{name}.weight"])
        assert torch.equal(bias, case.whole[f"{name}.bias"])  # vectors are sent as they are
    case.group.bytes = 0
    made.sum().backward()  # of the first layer nothing is asked, but what its input needs
    assert case.group.bytes <= WEIGHTS // 2 + BIASES + flags
    assert made.dtype == first.weight.grad.dtype == torch.float32
    case.kept.give_back()
    case.group.bytes = 0
    found = case.model.state_dict()
    assert case.group.bytes >= WEIGHTS + BIASES
    assert all(torch.equal(found[name], each) and found[name].dtype == each.dtype for name, each in case.whole.items())


def test_who_looks_right_after_a_call_finds_all_digits(case: Case) -> None:
    case.call()
    assert case.of(case.model[2].weight).unit.is_rounded
    assert torch.equal(case.model[2].weight.detach().clone(), case.whole["2.weight"])
    assert not case.of(case.model[2].weight).unit.is_rounded


def test_what_the_backward_pass_gathers_is_what_the_call_had(case: Case) -> None:
    x = torch.ones(2, 6, requires_grad=True)
    with case.kept.calling():
        made = case.model(x)
    case.kept.give_back()
    made.sum().backward()
    expected = torch.ones(2, 6, requires_grad=True)
    hidden = (expected @ rounded(case.whole["0.weight"]).T + case.whole["0.bias"]).tanh()
    (hidden @ rounded(case.whole["2.weight"]).T + case.whole["2.bias"]).sum().backward()
    assert torch.allclose(x.grad, expected.grad, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("write", ["data.mul_(0.5)", "data = module.weight.data * 0.5"])
def test_a_model_that_writes_to_its_parameters_is_gathered_with_all_digits_from_then_on(write: str, case: Case) -> None:
    module = case.model[2]
    module.act = lambda module: exec(f"module.weight.{write}", {"module": module})
    case.call()
    case.kept.give_back()
    expected = rounded(case.whole["2.weight"]) * 0.5
    assert torch.equal(module.weight.detach(), expected)
    module.act = lambda module: None
    with torch.no_grad():
        module.weight.add_(1e-4)  # of which a call with fewer digits would see nothing
        expected = expected + 1e-4
    case.kept.give_back()
    case.call()
    assert torch.equal(module.seen[0], expected) and case.of(module.weight).unit.in_full
    assert not case.of(case.model[0].weight).unit.in_full


def test_a_write_that_only_another_rank_has_seen_counts_for_all(case: Case) -> None:
    case.group.astray = 1
    case.call()
    assert torch.equal(case.model[2].seen[0], case.whole["2.weight"])


def test_memory_that_a_call_has_given_away_has_all_digits_after_a_step(case: Case) -> None:
    aliases: list[Any] = []
    module = case.model[2]
    module.act = lambda module: aliases.append(module.weight.detach().view(-1)) if not aliases else None
    states = ShardedStates(lambda: case.group, lambda said: None, case.kept)  # type: ignore[arg-type, return-value]
    optimizer = torch.optim.SGD(case.model.parameters(), lr=0.1)
    case.call()
    case.kept.give_back()
    of = case.of(module.weight)
    assert torch.equal(aliases[0], rounded(case.whole["2.weight"]).view(-1)) and of.rounded
    case.kept.gradients.add(of, torch.ones(32))
    states.stepped(optimizer, optimizer.step)
    expected = case.whole["2.weight"] - 0.1
    assert torch.equal(module.weight.detach(), expected) and torch.equal(aliases[0], expected.view(-1))
    module.seen.clear()
    case.call()
    assert torch.equal(module.seen[0], expected)  # on a rank where somebody holds it, it is used as it is


def test_a_checkpoint_calls_its_function_again_as_in_the_call(case: Case) -> None:
    from torch.utils.checkpoint import checkpoint

    again = case.kept.again(case.model)
    with case.kept.calling():
        made = checkpoint(again, torch.ones(2, 6, requires_grad=True), use_reentrant=False)
    case.kept.give_back()
    case.model[0].seen.clear()
    made.sum().backward()
    assert torch.equal(case.model[0].seen[0], rounded(case.whole["0.weight"]))


def test_another_format_than_fp32_is_sent_as_it_is() -> None:
    model = nn.Linear(6, 4, bias=False).to(torch.float64)
    held = kept.Kept(lambda: OfTwo(), rounds=True)  # type: ignore[arg-type, return-value]
    model.weight.data.view(2, -1)[1] = model.weight.data.view(2, -1)[0]
    whole = model.weight.detach().clone()
    held.take([*model.parameters()])
    held.give_back()
    with held.calling():
        found = model(torch.ones(1, 6, dtype=torch.float64)).detach()
    assert torch.equal(model.weight.detach(), whole) and found.dtype == torch.float64
    keepers.remove(held)


# -- plans ------------------------------------------------------------------------------------------

PLAN = """
overdrive = 1
program = "train.py"
contract = "{contract}"
{besides}
[[technique]]
name = "data_parallel"
settings = {{ ranks = 2, shards = "all", gather = "{gather}" }}
"""


def plan(gather: str, contract: str = "statistical", besides: str = "") -> str:
    return PLAN.format(gather=gather, contract=contract, besides=besides)


def test_a_plan_that_keeps_less_than_statistical_may_not_hold_it() -> None:
    (found,) = Plan.loads(plan("bfloat16"), catalogue()).techniques
    assert found.contract is Contract.STATISTICAL and found.settings["gather"] == "bfloat16"
    assert Plan.loads(plan("exact", "rounding"), catalogue()).techniques[0].contract is Contract.ROUNDING
    with pytest.raises(PlanError, match="keeps only statistical"):
        Plan.loads(plan("bfloat16", "rounding"), catalogue())
    with pytest.raises(PlanError, match="keeps statistical at best, not rounding"):
        Plan.loads(plan("bfloat16") + 'contract = "rounding"\n', catalogue())
    with pytest.raises(PlanError, match="must be one of 'exact', 'bfloat16'"):
        Plan.loads(plan("float8"), catalogue())


def test_a_candidate_with_it_is_judged_as_statistical() -> None:
    technique = catalogue()["data_parallel"]
    levels = [Candidate(((technique, {"ranks": 2, **more}),)).contract for more in ({}, {"gather": "bfloat16"})]
    assert levels == [Contract.ROUNDING, Contract.STATISTICAL]


TRAINING = """
import json, torch
from torch import nn
from overdrive.ranks.rank import current

torch.manual_seed(0)
blocks = [nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(4)]
model = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), *blocks, nn.Linear(64, 4))
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
losses = []
for step in range(12):
    x, y = torch.randn(24, 16), torch.randint(4, (24,))
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    if step == 11:
        dtypes = {str(each.grad.dtype) for each in model.parameters()}
    optimizer.step()
    losses.append(loss.item())
torch.save(model.state_dict(), "model.pt")
counts = current().exchanged().counts if current() else {}
gathered = sum(int(kind.split()[1]) * count for kind, count in counts.items() if kind.startswith("all_gather"))
print(json.dumps({"losses": losses, "gradients": [*dtypes], "bytes": gathered, "output": str(loss.dtype)}))
"""


def trained(text: str, path: Path, overdrive: Run) -> tuple[Any, Any, str]:
    path.with_name("plan.toml").write_text(text)
    done = overdrive("run", "--ranks", "2", "--plan", "plan.toml", "train.py", cwd=path.parent)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), torch.load(path.with_name("model.pt")), done.stderr


@pytest.mark.cluster
def test_two_ranks_train_under_such_a_plan(script: Write, python: Run, overdrive: Run) -> None:
    path = script(TRAINING)
    full, state, _ = trained(plan("exact"), path, overdrive)
    half, other, said = trained(plan("bfloat16"), path, overdrive)
    assert "gathered for calls in bfloat16" in said
    assert half["bytes"] < 0.75 * full["bytes"]
    assert half["losses"] != full["losses"] and half["losses"] == pytest.approx(full["losses"], rel=0.02)
    assert half["gradients"] == full["gradients"] == ["torch.float32"] and half["output"] == "torch.float32"
    assert [*other] == [*state] and all(other[name].dtype == each.dtype for name, each in state.items())
    name = "2.0.weight"
    assert not torch.equal(other[name], rounded(other[name]))  # what is saved has all digits
    one = python("train.py", cwd=path.parent)
    assert json.loads(one.stdout)["losses"] == pytest.approx(full["losses"], rel=1e-4)


AUTOCAST = """
[[technique]]
name = "autocast"
"""


@pytest.mark.cluster
def test_beside_autocast_only_what_that_leaves_alone_is_rounded_once_more(script: Write, overdrive: Run) -> None:
    """Its products take weights in bfloat16 anyway: here nothing else has any."""
    path = script(TRAINING)
    full, state, _ = trained(plan("exact", besides=AUTOCAST), path, overdrive)
    half, other, said = trained(plan("bfloat16", besides=AUTOCAST), path, overdrive)
    assert "left out" not in said and half["losses"] == full["losses"] and half["bytes"] < full["bytes"]
    assert all(torch.equal(other[name], each) for name, each in state.items())


@pytest.mark.cluster
@pytest.mark.parametrize("program", ["parameter_uses.py", "small_programs.py"])
def test_of_programs_in_fp64_all_numbers_stay(program: str, tmp_path: Path, python: Run, overdrive: Run) -> None:
    """Nothing of them is rounded; who keeps which memory, and what is gathered when, is as of others."""
    text = plan("bfloat16").replace("train.py", program)
    (tmp_path / "plan.toml").write_text(text)
    one = python(program, cwd=HERE)
    words = ("run", "--ranks", "2", "--plan", str(tmp_path / "plan.toml"), program)
    many = overdrive(*words, cwd=HERE, timeout=1200)
    assert many.returncode == 0 and differing(one.stdout, many.stdout) == {}, many.stderr
    assert "gathered for calls in bfloat16" in many.stderr
