"""What programs do with layers that are divided: write to weights, look at gradients, make optimizers, share layers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from overdrive.techniques.parallel.tensor_parallel import dividing, layers, roles, shards  # noqa: E402
from overdrive.techniques.parallel.tensor_parallel.cuts import Cut  # noqa: E402
from overdrive.techniques.parallel.tensor_parallel.parts import whole_of  # noqa: E402
from overdrive.techniques.parallel.tensor_parallel.weights import refusal  # noqa: E402
from tests.conftest import Run  # noqa: E402
from tests.ranks.comparing import difference  # noqa: E402
from tests.ranks.test_tensor_parallel import ROUNDING, Live, Matrices  # noqa: E402

CUTS = {"0.weight": Cut(0, (8,)), "0.bias": Cut(0, (8,)), "2.weight": Cut(1, (8,))}


def small() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).double()


def on_both(model: nn.Module, work: Callable[[nn.Module], Any]) -> list[Any]:
    """What `work` returns as each of two ranks, of a model of its own that is divided."""

    def as_a_rank() -> Any:
        own = copy.deepcopy(model)
        layers.divide(own, CUTS)
        try:
            return work(own)
        finally:
            shards.call_over()

    end = shards.divided_by(ranks := Live(2, roles.Roles(2)))
    try:
        return ranks.run(as_a_rank)
    finally:
        end()


def some_set(weight: Any) -> None:
    weight.data[weight.abs() < 0.2] = 0


def rows_set(weight: Any) -> None:
    weight.data[:2] = weight.data[1:3] * 2


def set_under_no_grad(weight: Any) -> None:
    with torch.no_grad():
        weight[1, 2] = 5.0


def divided_in_place(weight: Any) -> None:
    held = weight.data
    held //= 0.01
    held %= 3


def a_mask_written(weight: Any) -> None:
    mask = weight.data > 0.1
    same = mask
    same |= weight.data < -0.2
    weight.data[mask] = 7.0


def data_set(weight: Any) -> None:
    weight.data *= 0.5
    weight.data = torch.ones(weight.shape, dtype=torch.float64).cumsum(0) + weight.data


def gradient_written(weight: Any) -> None:
    weight.grad[weight > 0] = 0
    weight.grad.mul_(0.5)
    weight.grad /= weight.grad.norm()


def gradient_set(weight: Any) -> None:
    weight.grad = weight.grad * 3


def gradient_clipped(weight: Any) -> None:
    nn.utils.clip_grad_norm_([weight], 0.01)


def gradient_deleted(weight: Any) -> None:
    weight.grad = None


def frozen(weight: Any) -> None:
    weight.requires_grad = False
    assert not weight.requires_grad and weight.requires_grad_() is weight and weight.requires_grad
    weight.requires_grad_(False)


def a_row_zeroed(weight: Any) -> None:
    weight.data[0].zero_()
    weight.data.select(1, 1).fill_(0.5)
    weight.grad[1].zero_()


def rows_scaled(weight: Any) -> None:
    for row in weight.data:
        row /= row.norm()
    weight.data.t()[2][:2].clamp_(-0.1, 0.1)


def begun_anew(weight: Any) -> None:
    torch.manual_seed(3)
    nn.init.normal_(weight, std=0.3)
    nn.init.constant_(weight.data[1], 0.2)


def a_corner_written(weight: Any) -> None:
    corner = weight.data[:2][:, :2]
    corner[0, 0] = 3.0
    nn.init.constant_(corner[1], 2.0)
    torch.mul(weight.data[2], 2.0, out=weight.data[0])
    with torch.no_grad():
        weight[2].add_(weight[:2][:, :2].sum())


USES = (
    *(a_row_zeroed, rows_scaled, a_corner_written, begun_anew),
    *(some_set, rows_set, set_under_no_grad, divided_in_place, a_mask_written, data_set),
    *(gradient_written, gradient_set, gradient_clipped, gradient_deleted, frozen),
)


@pytest.mark.parametrize("place", [0, 2])
@pytest.mark.parametrize("use", USES)
def test_what_programs_do_with_a_weight_is_done_to_all_of_it(use: Callable[[Any], None], place: int) -> None:
    model, x = small(), torch.randn(5, 6, dtype=torch.float64)

    def work(own: Any) -> list[Any]:
        whole_of(own(x)).square().sum().backward()
        use(own[place].weight)
        gradient = own[place].weight.grad
        optimizer = torch.optim.SGD(own.parameters(), lr=0.1)
        optimizer.step()
        optimizer.zero_grad()
        whole_of(own(x)).square().sum().backward()
        told = gradient, whole_of(own(x)).detach(), own[2 - place].weight.grad, own[place].weight.grad
        return [None if each is None else whole_of(each).clone() for each in told] + [*own.state_dict().values()]

    expected = work(copy.deepcopy(model))
    for made in on_both(model, work):
        for one, other in zip(made, expected, strict=True):
            assert one is other is None or torch.allclose(one, other, rtol=1e-12, atol=1e-12)


def test_a_view_of_what_a_layer_gives_can_be_written_to_within_a_call() -> None:
    model, x = small(), torch.randn(5, 6, dtype=torch.float64)

    def work(own: Any) -> list[Any]:
        hidden = own[0](x) * 2
        hidden[:, 2].mul_(3.0)
        hidden[1].add_(own[0](x)[2])
        whole_of(own[2](hidden)).square().sum().backward()
        return [whole_of(own[place].weight.grad).clone() for place in (0, 2)]

    expected = work(copy.deepcopy(model))
    for made in on_both(model, work):
        assert all(torch.allclose(one, other, rtol=1e-12) for one, other in zip(made, expected, strict=True))


def test_what_is_written_within_a_call_has_its_gradient() -> None:
    model, x = small(), torch.randn(5, 6, dtype=torch.float64)

    def work(own: Any) -> list[Any]:
        hidden = own[0](x) * 2
        hidden[:, 2:5] = own[0].weight.sum() * x[:, :3]
        hidden[hidden < 0] = 0.0
        whole_of(own[2](hidden)).square().sum().backward()
        return [whole_of(own[place].weight.grad).clone() for place in (0, 2)]

    expected = work(copy.deepcopy(model))
    for made in on_both(model, work):
        assert all(torch.allclose(one, other, rtol=1e-12) for one, other in zip(made, expected, strict=True))


def test_what_cannot_be_done_with_a_part_is_an_error() -> None:
    def work(own: Any) -> None:
        with pytest.raises(RuntimeError, match="`register_hook` cannot watch what ranks have parts of"):
            own[0].weight.register_hook(lambda gradient: gradient)
        row = own[0].weight.data[0]
        row.zero_()
        own[0].weight.data.mul_(2.0)
        own[0].weight.data[1] = 3.0
        with pytest.raises(RuntimeError, match="`zero_` cannot write to a layer's weight by a view of what it was"):
            row.zero_()
        with pytest.raises(RuntimeError, match="`data` of a layer's weight cannot be set"):
            own[0].weight.data = torch.ones(4, 6)

    on_both(small(), work)


# -- what comes after a model was divided -------------------------------------------------------------


class Halves:
    """Of two ranks the first; what the other one has is the same."""

    rank, size = 0, 2

    def gather(self, tensor: torch.Tensor, cut: Cut) -> torch.Tensor:
        return cut.joined(torch.cat((tensor, tensor), cut.dim), 2)

    def weight(self, parameter: torch.Tensor, cut: Cut) -> torch.Tensor:
        return parameter

    def gathered(self, makers: Any, why: str, segments: Any) -> None:
        pass


@pytest.fixture
def divided() -> Iterator[tuple[dividing.Dividing, nn.Module, list[str]]]:
    """What one rank knows, a model of which it has its half, and what it says."""
    said: list[str] = []
    group = SimpleNamespace(mine=lambda: True, tells=True)
    known = dividing.Dividing(SimpleNamespace(lockstep=SimpleNamespace(differing=[]), group=group, say=said.append))  # type: ignore[arg-type]
    known._live = halves = Halves()  # type: ignore[assignment]
    end = shards.divided_by(halves)  # type: ignore[arg-type]
    model = small()
    known._whole = {each: each.shape for each in model.parameters()}
    known._cuts = layers.divide(model, CUTS)
    yield known, model, said
    end()


Known = tuple[dividing.Dividing, nn.Module, list[str]]


def test_an_optimizer_that_is_made_later_has_a_whole_state_for_who_asks(divided: Known) -> None:
    known, model, _ = divided
    optimizer = torch.optim.AdamW(model.parameters())
    known.made(optimizer, [model])
    for each in model.parameters():
        each.grad = torch.ones_like(each)
    optimizer.step()
    told = optimizer.state_dict()
    assert [list(each["exp_avg"].shape) for each in told["state"].values()] == [[8, 6], [8], [3, 8], [3]]
    optimizer.load_state_dict(told)
    assert [list(optimizer.state[each]["exp_avg"].shape) for each in model.parameters()] == [[4, 6], [4], [3, 4], [3]]


def test_an_optimizer_that_is_given_divided_parameters_later_is_known_at_the_next_call(divided: Known) -> None:
    known, model, said = divided
    optimizer = torch.optim.AdamW(small().parameters())
    matrices = Matrices(small().parameters(), lr=0.1)
    for each in (optimizer, matrices):
        known.made(each, [])
    optimizer.add_param_group({"params": list(model.parameters())})
    known._seen.add(model)
    known.called(model, lambda: None)
    for each in model.parameters():
        each.grad = torch.ones_like(each)
    optimizer.step()
    assert next(list(each["exp_avg"].shape) for each in optimizer.state_dict()["state"].values()) == [8, 6]
    assert not said
    matrices.add_param_group({"params": list(model.parameters())})
    with pytest.raises(SystemExit):
        known.called(model, lambda: None)


@pytest.mark.parametrize("kind", ["register_hook", "register_post_accumulate_grad_hook"])
def test_a_model_whose_gradients_the_program_watches_is_not_divided(kind: str) -> None:
    model = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 5))  # of which there is no other one
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    handle = getattr(model[2].weight, kind)(lambda given: None)
    assert refusal(model, [optimizer]) == "the program has hooks on the gradient of 2.weight"
    handle.remove()
    assert not refusal(model, [optimizer])


@pytest.mark.parametrize("kind", [torch.optim.LBFGS, Matrices])
def test_an_optimizer_that_is_made_later_and_looks_at_more_ends_the_run(kind: Any, divided: Known) -> None:
    known, model, said = divided
    known.made(torch.optim.LBFGS(small().parameters()), [])
    assert not said
    with pytest.raises(SystemExit):
        known.made(kind(model.parameters(), lr=0.1), [model])
    assert len(said) == 1 and f"{kind.__name__} may look at more of a parameter than one element" in said[0]


def test_a_model_that_shares_layers_with_a_divided_one_is_called_as_it_is(
    divided: Known, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(*given: Any) -> Any:
        raise AssertionError("it is not tried")

    monkeypatch.setattr(dividing, "found", found)
    known, model, said = divided
    other = nn.Sequential(model[0], nn.Linear(8, 4).double())  # type: ignore[index]
    for each in (model, other):
        known.made(torch.optim.AdamW(each.parameters()), [each])
    for each in (other, model[0], other):  # type: ignore[index]
        assert known.called(each, each, torch.ones(5, 6, dtype=torch.float64)).shape in ((5, 4), (5, 8))
    assert said == ["Sequential shares layers that are divided: its others stay whole on every rank"]


LATER = """
import torch
from torch import nn
torch.manual_seed(1)
torch.set_default_dtype(torch.float64)
encoder = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU())
heads = [nn.Sequential(encoder, nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, count)) for count in (3, 4)]
def digest(state):
    if isinstance(state, torch.Tensor):
        return float((state.flatten() * torch.arange(1.0, 1 + state.numel()).sin()).sum())
    return sum(map(digest, state.values() if isinstance(state, dict) else ()))
for task, model in enumerate((*heads, *heads)):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)  # the later ones when layers are divided
    for step in range(3):
        optimizer.zero_grad()
        loss = model(torch.randn(5, 6)).square().mean()
        loss.backward()
        weight = encoder[0].weight
        print(task, step, repr(loss.item()), repr(weight.grad.abs().mean().item()))
        weight.grad[:3] = 0
        optimizer.step()
        weight.data[weight.abs() < 0.1] = 0
    kept = optimizer.state_dict()
    print(task, [list(each["exp_avg"].shape) for each in kept["state"].values()], repr(digest(kept["state"])))
    optimizer.load_state_dict(kept)
    print(task, repr(digest(model.state_dict())))
"""


@pytest.mark.cluster
def test_tasks_that_share_layers_print_the_numbers_of_one_process(
    script: Callable[[str], Path], python: Run, overdrive: Run
) -> None:
    path = script(LATER)
    one = python(path.name, cwd=path.parent)
    many = overdrive("run", "--ranks", "2", "--layout", "tensor=2", path.name, cwd=path.parent)
    assert one.returncode == many.returncode == 0, many.stderr
    assert "divided over 2 ranks" in many.stderr and "shares layers that are divided" in many.stderr
    assert not difference(one.stdout, many.stdout, ROUNDING)


ENDED = """
import torch
from torch import nn
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
optimizer = torch.optim.AdamW(model.parameters())
model(torch.randn(5, 6)).sum().backward()
optimizer.step()
print("second phase")
torch.optim.LBFGS(model.parameters())
print("not come to")
"""


@pytest.mark.cluster
def test_a_later_optimizer_of_whole_matrices_ends_all_ranks(script: Callable[[str], Path], overdrive: Run) -> None:
    path = script(ENDED)
    told = overdrive("run", "--ranks", "2", "--layout", "tensor=2", path.name, cwd=path.parent)
    assert told.returncode == 1 and told.stdout.splitlines() == ["second phase"], told
    assert "LBFGS may look at more" in told.stderr and "Traceback" not in told.stderr
