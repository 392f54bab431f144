"""`channels_last`: whenever a program needs the usual format, it has it, and its run goes on."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

from overdrive.worker.session import Session


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.last = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 5, 3)
        self.late = ""

    def forward(self, x: torch.Tensor) -> Any:
        z = F.relu(self.conv(x))
        self.seen = z
        if self.late == "view":
            z = z.view(-1).view(z.shape) * 1.0
        if self.late == "as_strided":
            z = torch.as_strided(z, z.shape, (144, 36, 6, 1))
        if self.late == "flatten":
            self.last.weight.data.flatten().mul_(0.9)
        return self.last(z)


def weights_as_one(model: Any) -> None:
    vector = nn.utils.parameters_to_vector(model.parameters())
    nn.utils.vector_to_parameters(vector * 0.99, model.parameters())


def gradients_as_one(model: Any) -> None:
    flat = torch.cat([each.grad.view(-1) for each in model.parameters() if each.grad is not None])
    for each in model.parameters():
        if each.grad is not None:
            each.grad.view(-1).mul_(min(1.0, 1.0 / float(flat.norm())))


def data_in_place(model: Any) -> None:
    model.conv.weight.data.view(-1).mul_(0.9)
    model.conv.weight.detach().view(-1).add_(0.01)


def state_in_place(model: Any) -> None:
    model.optimizer.state[model.conv.weight]["momentum_buffer"].view(-1).mul_(0.5)


def without_gradients(model: Any) -> None:
    with torch.no_grad():
        model.last.weight.flatten()[:40] = 0


def flattened_in_forward(model: Any) -> None:
    model.late = "flatten"


LATE: dict[str, Callable[[Any], Any]] = {
    "weights": weights_as_one,
    "gradients": gradients_as_one,
    "data": data_in_place,
    "state": state_in_place,
    "kept": lambda model: model.seen.view(-1).sum(),
    "in forward": lambda model: setattr(model, "late", "view"),
    "strided in forward": lambda model: setattr(model, "late", "as_strided"),
    "written in forward": flattened_in_forward,
    "one filter": lambda model: model.last.weight.data[1].view(-1).mul_(0.5),
    "some filters": lambda model: model.last.weight.data[1:3].view(-1).mul_(0.5),
    "one image": lambda model: model.seen[1].view(-1).mul_(0.5),
    "flatten": lambda model: model.last.weight.data.flatten()[:40].zero_(),
    "flatten to rows": lambda model: model.last.weight.data.flatten(1).mul_(0.5),
    "flatten, without gradients": without_gradients,
    "torch.flatten": lambda model: torch.flatten(model.last.weight.data).mul_(0.5),
    "reshape": lambda model: model.last.weight.data.reshape(-1).mul_(0.5),
    "reshape of one filter": lambda model: model.last.weight.data[1].reshape(-1).mul_(0.5),
    "ravel": lambda model: model.last.weight.data.ravel().mul_(0.5),
    "contiguous": lambda model: model.last.weight.data.contiguous().view(-1).mul_(0.5),
    "gradient, flatten": lambda model: model.last.weight.grad.flatten()[:40].zero_(),
    "state, reshape": lambda model: model.optimizer.state[model.last.weight]["momentum_buffer"].reshape(-1).mul_(0.5),
    "a hook": lambda model: model.conv.register_forward_hook(lambda module, given, made: made.view(-1).sum() and None),
}


def train(technique: bool, late: Callable[[Any], Any]) -> tuple[list[float], dict[str, str]]:
    torch.manual_seed(0)
    found = []
    with Session([("channels_last", {})] if technique else []) as session:
        model: Any = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        object.__setattr__(model, "optimizer", optimizer)
        for step in range(10):
            optimizer.zero_grad(set_to_none=False)
            result = model(torch.randn(4, 3, 8, 8))
            loss = result.square().mean() * 0.1
            if late is LATE["kept"] and step >= 5:
                loss = loss + late(model) * 1e-3
            loss.backward()
            if step == 5 and late is not LATE["kept"]:
                late(model)
            optimizer.step()
            found.append(loss.item())
        assert model.conv.weight.is_contiguous() or not session.seams.left_out
    return found, session.seams.left_out


@pytest.mark.parametrize("how", LATE)
def test_a_program_that_begins_to_need_the_usual_format_goes_on(how: str) -> None:
    plain, _ = train(False, LATE[how])
    found, left_out = train(True, LATE[how])
    assert found == pytest.approx(plain, rel=1e-4) and left_out


def test_lbfgs_looks_at_all_gradients_as_one() -> None:
    def run(technique: bool) -> list[float]:
        torch.manual_seed(0)
        found = []
        with Session([("channels_last", {})] if technique else []):
            model = Net()
            optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
            x = torch.randn(4, 3, 8, 8)

            def closure() -> Any:
                optimizer.zero_grad()
                loss = model(x).square().mean()
                loss.backward()
                return loss

            for _ in range(3):
                found.append(float(optimizer.step(closure)))
        return found

    assert run(True) == pytest.approx(run(False), rel=1e-3)


def test_weights_that_somebody_else_refers_to_stay_as_they_are() -> None:
    with Session([("channels_last", {})]):
        model = Net()
        held, array = model.conv.weight.data, model.last.weight.data.numpy()
        torch.optim.SGD(model.parameters(), lr=0.1)
        held.zero_()
        array[:] = 1
        assert float(model.conv.weight.detach().abs().sum()) == 0 and bool((model.last.weight == 1).all())


def test_what_the_compiler_asks_of_a_tensor_is_no_view_of_the_programs() -> None:
    """On an H100 it was left out in the midst of a compiled step, and its tensors came to lie in the memory of CUDA
    graphs: "Detected 20 tensor(s) in the cudagraph pool not tracked as outputs" ended the program."""
    from torch._inductor.utils import clone_preserve_strides

    with Session([("channels_last", {})]) as session:
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            model(torch.randn(2, 3, 8, 8)).sum().backward()
            copy = clone_preserve_strides(model.last.weight)
            assert copy.stride() == model.last.weight.stride() != torch.empty(5, 4, 3, 3).stride()
            optimizer.step()
    assert not session.seams.left_out


def test_copies_that_are_only_read_are_no_reason_to_leave_it_out() -> None:
    """Of activations, of weights within a graph, and where PyTorch itself makes them."""
    from torch.nn.utils.parametrizations import spectral_norm

    def run(technique: bool) -> list[float]:
        torch.manual_seed(0)
        found = []
        with Session([("channels_last", {})] if technique else []) as session:
            model = nn.Sequential(spectral_norm(nn.Conv2d(3, 4, 3)), nn.ReLU(), nn.Conv2d(4, 5, 3))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(3):
                result = model(torch.randn(4, 3, 8, 8))
                loss = result.flatten(1).square().mean() + 0.1 * torch.flatten(model[2].weight).abs().sum()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                assert str(model[2].weight.data) and result.reshape(-1).detach().numel()
                found.append(loss.item())
            with torch.no_grad():
                found += [float(each.flatten().sum()) for each in model.eval()(torch.randn(2, 3, 8, 8))]
        assert not session.seams.left_out
        return found

    assert run(True) == pytest.approx(run(False), rel=1e-4)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_gradients_made_by_hand_are_stepped_by_the_programs_own_fused_optimizer(kind: Any, shared: bool) -> None:
    """Its kernel goes through the memory of weights and gradients in order. `shared`: one tensor has all gradients."""

    def weights() -> list[Any]:
        torch.manual_seed(0)
        model = Net()
        optimizer = kind(model.parameters(), lr=0.01, fused=True)
        for _ in range(4):
            model(torch.randn(4, 3, 8, 8)).square().mean().backward()
            together = torch.randn(sum(each.numel() for each in model.parameters()))
            parts = together.split([each.numel() for each in model.parameters()])
            for each, part in zip(model.parameters(), parts, strict=True):
                each.grad = part.view(each.shape) if shared else part.view(each.shape).clone()
            optimizer.step()
        return [each.detach() for each in model.parameters()]

    plain = weights()
    with Session([("channels_last", {})]) as session:
        for ours, theirs in zip(weights(), plain, strict=True):
            assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-6)
    assert not session.seams.left_out


def test_a_model_that_reshapes_is_compiled_and_scripted_beside_it() -> None:
    class Flat(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.flatten(F.relu(self.conv(x)), 1).reshape(-1).contiguous()

    torch._dynamo.reset()  # it does not forget by itself what another test's session had it skip
    with Session([("channels_last", {})]) as session:
        model = Flat()
        torch.optim.SGD(model.parameters(), lr=0.1)
        x = torch.randn(2, 3, 8, 8)
        plain = model(x)
        assert torch.allclose(torch.jit.trace(model, x)(x), plain, atol=1e-6)
        assert torch.allclose(torch.compile(model, backend="eager", fullgraph=True)(x), plain, atol=1e-6)
        flatten = torch.jit.script(_flat)
        assert flatten(x).shape == (384,)
    assert not session.seams.left_out


def _flat(x: torch.Tensor) -> torch.Tensor:
    return torch.ravel(torch.reshape(torch.flatten(x, 1), [-1])).contiguous()


class Flattening(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.last = nn.Conv2d(3, 4, 3), nn.Linear(144, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = F.relu(self.conv(x))
        return self.last(z.view(z.size(0), -1))


def test_a_view_within_the_model_costs_no_other_technique() -> None:
    with Session([("channels_last", {}), ("autocast", {"dtype": "bfloat16"})]) as session:
        model = Flattening()
        torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.randn(2, 3, 8, 8)).sum().backward()
        assert model.conv.weight.is_contiguous()
    assert list(session.seams.left_out) == ["channels_last"]


def test_view_as_is_a_view() -> None:
    def losses(technique: bool) -> list[float]:
        torch.manual_seed(0)
        with Session([("channels_last", {})] if technique else []) as session:
            model = Net()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            found = []
            for step in range(3):
                result = model(torch.randn(4, 3, 8, 8))
                loss = (result if step < 1 else result.view_as(torch.empty(4, 80))).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                found.append(loss.item())
            assert bool(session.seams.left_out) is technique
        return found

    assert losses(True) == pytest.approx(losses(False), rel=1e-4)


class Two(nn.Sequential):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.act, self.last = nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 5, 3)


def trained(model: Any, steps: int = 2) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(steps):
        step(model, optimizer)
    return optimizer


def step(model: Any, optimizer: Any) -> None:
    model(torch.randn(4, 3, 8, 8)).square().mean().backward()
    optimizer.step()


def is_usual(held: Any) -> bool:
    return all(each.is_contiguous() for each in tree_leaves(held) if isinstance(each, torch.Tensor))


def test_what_is_saved_or_copied_is_in_the_usual_format() -> None:
    """safetensors refuses tensors in another one, when a run of hours comes to save its model."""
    with Session([("channels_last", {})]) as session:
        model: Any = Two()
        optimizer = trained(model)
        assert not model.conv.weight.is_contiguous() and not model.conv.weight.grad.is_contiguous()
        address = model.conv.weight.data_ptr()
        for save in (
            lambda: model.state_dict(),
            lambda: dict(optimizer.state_dict()["state"]),
            lambda: [*copy.deepcopy(model).parameters()],
            lambda: dict(copy.deepcopy(optimizer).state),
            lambda: [*pickle.loads(pickle.dumps(model)).parameters()],
        ):
            assert is_usual(save())
            step(model, optimizer)
            assert not model.conv.weight.is_contiguous() and model.conv.weight.data_ptr() == address
            assert model.conv.weight.grad.stride() == model.conv.weight.stride()
    assert not session.seams.left_out and model.conv.weight.is_contiguous()


def test_what_a_program_holds_of_a_state_dict_goes_on_to_be_the_weights() -> None:
    with Session([("channels_last", {})]) as session:
        model: Any = Two()
        optimizer = trained(model)
        held = model.state_dict()
        step(model, optimizer)
        assert torch.equal(held["conv.weight"], model.conv.weight.detach()) and is_usual(held)
        held["conv.weight"].zero_()
        assert not model.conv.weight.detach().any()
        step(model, optimizer)
        del held  # by then the model was called, and the weights stayed as they were for the rest of the run
        step(model, optimizer)
        assert not model.conv.weight.is_contiguous() and not model.last.weight.is_contiguous()
    assert not session.seams.left_out


def test_a_run_that_saves_trains_as_one_that_does_not() -> None:
    def losses(*techniques: Any, saves: bool = True) -> list[float]:
        torch.manual_seed(0)
        found, held = [], {}
        with Session(techniques):
            model = Net()
            optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
            for _ in range(6):
                loss = model(torch.randn(4, 3, 8, 8)).square().mean()
                if saves:
                    held = {"between": model.state_dict()}
                loss.backward()
                if saves:
                    held["state"] = optimizer.state_dict()
                optimizer.step()
                optimizer.zero_grad()
                found.append(loss.item())
        return found

    both = [("channels_last", {}), ("fused_optimizer", {})]
    assert losses(*both) == pytest.approx(losses(saves=False), rel=1e-4)


@pytest.mark.parametrize("kernels", [1, 6])
def test_a_weight_that_was_cut_or_enlarged_lies_as_usual_afterwards(kernels: int) -> None:
    with Session([("channels_last", {})]) as session:
        model: Any = Two()
        optimizer = trained(model)
        model.conv.weight.data = torch.randn(4, kernels, 3, 3)
        model.conv.weight.grad = None
        optimizer.state.clear()
        model(torch.randn(4, kernels, 8, 8))
        session.handles["channels_last"].off()
        assert model.conv.weight.is_contiguous() and model.last.weight.is_contiguous()
    assert not session.seams.left_out


@pytest.mark.parametrize("graph", [False, True])
def test_what_a_model_writes_to_its_input_is_the_programs(graph: bool) -> None:
    class Masking(Net):
        def forward(self, x: torch.Tensor) -> Any:
            x[:, 0] = self.conv.bias[0] if graph else 0
            return super().forward(x)

    with Session([("channels_last", {})]) as session:
        model = Masking()
        torch.optim.SGD(model.parameters(), lr=0.1)
        x = torch.randn(2, 3, 8, 8)
        model(x)
        assert (x[:, 0] == (model.conv.bias[0] if graph else 0)).all() and x[:, 1].any()
        assert x.requires_grad is graph and bool(session.seams.left_out) is graph
