"""Programs that are double in different ways train in 32 bits, and see what they saw before."""

from __future__ import annotations

import copy
import textwrap
import weakref
from typing import Any

import pytest
import torch

from overdrive.core.facts import Facts
from overdrive.techniques.catalogue import catalogue
from overdrive.techniques.precision import fp32_from_fp64
from overdrive.worker.session import Session

BY_DEFAULT_TYPE = """
torch.set_default_dtype(torch.float64)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(4, 8, batch_first=True), nn.Linear(8, 1)
    def forward(self, x):
        state = torch.zeros(1, len(x), 8), torch.zeros(1, len(x), 8)
        dtypes.append(x.dtype)
        return self.head(self.lstm(x, state)[0][:, -1])
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(12):
    x = torch.randn(16, 5, 4)
    loss = ((model(x) - x.sum((1, 2))[:, None]) ** 2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    losses.append(loss.item())
seen = loss.dtype
"""

BY_NUMPY = """
x, y = np.random.default_rng(0).normal(size=(64, 6)), np.random.default_rng(1).normal(size=(64, 1))
model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 1)).double()
model.register_forward_pre_hook(lambda module, args: dtypes.append(args[0].dtype))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
criterion = nn.MSELoss()
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(y)), 16)
for epoch in range(3):
    for a, b in loader:
        out = model(a)
        loss = criterion(out, b)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        losses.append(loss.item())
model.eval()
with torch.no_grad():
    seen = model(torch.from_numpy(x)).dtype
assert np.asarray(out.detach()).dtype == np.float64
"""

AFTER_THE_OPTIMIZER = """
model = nn.Linear(6, 1)
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4)
model.double()
x = torch.randn(32, 6, dtype=torch.float64)
y = x.sum(1, keepdim=True)
def closure():
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y) + 1e-4 * sum(p.pow(2).sum() for p in model.parameters())
    loss.backward()
    losses.append(loss.item())
    return loss
model.register_forward_pre_hook(lambda module, args: dtypes.append(args[0].dtype))
for step in range(4):
    seen = optimizer.step(closure).dtype
"""

GAN = """
torch.set_default_dtype(torch.double)
G = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))
D = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
D.register_forward_pre_hook(lambda module, args: dtypes.append(args[0].dtype))
average = {name: value.clone() for name, value in G.state_dict().items()}
g, d = torch.optim.Adam(G.parameters(), 1e-3), torch.optim.Adam(D.parameters(), 1e-3)
bce = nn.BCEWithLogitsLoss(pos_weight=torch.ones(1))
for step in range(8):
    real, fake = torch.randn(16, 2), G(torch.randn(16, 2))
    loss = bce(D(real), torch.ones(16, 1)) + bce(D(fake.detach()), torch.zeros(16, 1))
    d.zero_grad(); loss.backward(); torch.nn.utils.clip_grad_norm_(D.parameters(), 1.0); d.step()
    fooled = bce(D(fake), torch.ones(16, 1))
    g.zero_grad(); fooled.backward(); g.step()
    with torch.no_grad():
        for name, value in G.state_dict().items():
            average[name].mul_(0.9).add_(value, alpha=0.1)
    losses += [loss.item(), fooled.item()]
seen = average[name].dtype
"""

PROGRAMS = {"default": BY_DEFAULT_TYPE, "numpy": BY_NUMPY, "lbfgs": AFTER_THE_OPTIMIZER, "gan": GAN}


def run(text: str, *techniques: Any) -> tuple[dict[str, Any], dict[str, str]]:
    space: dict[str, Any] = {"__name__": "script", "losses": [], "dtypes": []}
    torch.manual_seed(0)
    try:
        with Session(techniques) as session:
            exec("import numpy as np\nimport torch\nfrom torch import nn\n" + textwrap.dedent(text), space)
            left_out = dict(session.seams.left_out)
            space["parameters"] = {parameter.dtype for parameter in _first(space).parameters()}
    finally:
        torch.set_default_dtype(torch.float32)
    return space, left_out


def _first(space: dict[str, Any]) -> Any:
    return space.get("model") or space["G"]


@pytest.mark.parametrize("weights", ["narrowed", "copied"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_trains_in_32_bits_and_shows_64(name: str, weights: str) -> None:
    plain, _ = run(PROGRAMS[name])
    found, left_out = run(PROGRAMS[name], ("fp32_from_fp64", {"weights": weights}))
    assert not left_out
    training = found["dtypes"][: len(plain["dtypes"]) - (name == "numpy")]
    assert set(plain["dtypes"]) == {torch.float64} and set(training) == {torch.float32}
    assert found["seen"] is plain["seen"] is torch.float64
    assert found["parameters"] == {torch.float32 if weights == "narrowed" else torch.float64}
    assert found["losses"] == pytest.approx(plain["losses"], rel=1e-3)
    assert found["losses"] != plain["losses"], "nothing was computed in another type"
    for one, other in zip(_first(found).buffers(), _first(plain).buffers(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-6)  # running statistics, which nobody counts


@pytest.mark.parametrize("name", PROGRAMS)
def test_leaves_no_trace(name: str) -> None:
    found, _ = run(PROGRAMS[name], ("fp32_from_fp64", {}))
    model = _first(found)
    tensors = (*model.parameters(), *model.buffers())
    assert all(each.dtype is torch.float64 for each in tensors if each.is_floating_point())
    optimizer = found.get("optimizer") or found["g"]
    for state in optimizer.state.values():
        assert all(each.dtype is torch.float64 for each in state.values() if torch.is_tensor(each) and each.dim())
    if name != "lbfgs":  # the same optimizer goes on in 64 bits
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()


IN_DOUBLE_BY_HAND = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 1)
    def forward(self, x):
        dtypes.append(x.dtype)
        return self.two(self.one(x).to(torch.float64) + FIXED)
FIXED = torch.ones(4, dtype=torch.float64)
model = Net().double()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
for step in range(6):
    loss = model(torch.ones(3, 4, dtype=torch.float64)).pow(2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    losses.append(loss.item())
"""


@pytest.mark.parametrize("weights", ["narrowed", "copied"])
def test_is_left_out_where_the_model_makes_64_bits_itself(weights: str) -> None:
    plain, _ = run(IN_DOUBLE_BY_HAND)
    found, left_out = run(IN_DOUBLE_BY_HAND, ("fp32_from_fp64", {"weights": weights}))
    assert "model's call failed" in left_out["fp32_from_fp64"]
    assert found["parameters"] == {torch.float64}
    assert found["losses"] == pytest.approx(plain["losses"], rel=1e-6)  # it was rounded to 32 bits once


def test_is_left_out_in_mid_run_and_goes_on_in_64_bits() -> None:
    text = IN_DOUBLE_BY_HAND.replace("(torch.float64) + FIXED", "(x.dtype if len(x) == 3 else torch.float64)")
    text = text.replace("torch.ones(3, 4,", "torch.ones(3 if step < 4 else 2, 4,")
    plain, _ = run(text)
    found, left_out = run(text, ("fp32_from_fp64", {}))
    assert "model's call failed" in left_out["fp32_from_fp64"]
    assert found["parameters"] == {torch.float64} and len(found["losses"]) == 6
    assert found["losses"] == pytest.approx(plain["losses"], rel=1e-5)
    assert all(each["momentum_buffer"].dtype is torch.float64 for each in found["optimizer"].state.values())


def test_says_where_it_cannot_help() -> None:
    technique = catalogue()["fp32_from_fp64"]
    assert "not 64-bit" in str(technique.applies(Facts(parameter_dtypes=("torch.float32",))))
    assert technique.applies(Facts(parameter_dtypes=("torch.float64",))) is None
    assert "no nn.Module" in str(technique.applies(Facts(parameter_dtypes=("torch.float64",), modules=False)))


def test_a_tensor_with_the_id_of_one_that_is_gone_is_not_ours() -> None:
    narrowed = fp32_from_fp64._Narrowed()
    gone, new = torch.zeros(2), torch.nn.Linear(2, 2)
    narrowed._held[id(new.weight)] = weakref.ref(gone)
    del gone
    assert narrowed.call(new, new, torch.zeros(1, 2, dtype=torch.float32)).dtype == torch.float32
    assert not narrowed._is_ours(new)


def trained(model: Any) -> Any:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(2):
        model(torch.ones(3, 4, dtype=torch.float64)).square().mean().backward()
        optimizer.step()
    return optimizer


def net() -> Any:
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).double()


@pytest.mark.parametrize(
    "narrow",
    [lambda each: each.float(), lambda each: each.to(torch.float32), lambda each: each.to("cpu", dtype=torch.float32)],
)
def test_a_model_that_the_program_itself_gives_32_bits_is_its_own(narrow: Any) -> None:
    with Session([("fp32_from_fp64", {"weights": "narrowed"})]) as session:
        model = net()
        trained(model)
        copied = copy.deepcopy(model)
        for each in (model, copied):
            narrow(each)
            assert each(torch.ones(3, 4)).dtype is torch.float32
        session.handles["fp32_from_fp64"].off()
        assert {each.dtype for each in (*model.parameters(), *copied.parameters())} == {torch.float32}
        session.handles["fp32_from_fp64"].on()
        model.double()
        assert model(torch.ones(3, 4, dtype=torch.float64)).dtype is torch.float64
        assert model[0].weight.dtype is torch.float32 and not session.seams.left_out


@pytest.mark.parametrize("averaged", [False, True])
def test_a_copy_of_a_narrowed_model_is_called_as_that_is(averaged: bool) -> None:
    """The best so far, or an average of weights, which many programs call at their end."""
    with Session([("fp32_from_fp64", {"weights": "narrowed"})]) as session:
        model = net()
        trained(model)
        best: Any = torch.optim.swa_utils.AveragedModel(model) if averaged else copy.deepcopy(model)
        x = torch.ones(3, 4, dtype=torch.float64)
        assert torch.equal(best(x), model(x)) and best(x).dtype is torch.float64
        other = torch.nn.Linear(4, 1)
        assert other(torch.ones(3, 4)).dtype is torch.float32
        assert not session.seams.left_out
    assert {each.dtype for each in best.parameters()} == {torch.float64}
    assert other.weight.dtype is torch.float32


@pytest.mark.parametrize("weights", ["narrowed", "copied"])
def test_what_a_model_writes_to_its_input_is_the_programs(weights: str) -> None:
    class Masking(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x[:, 0] = 0
            return super().forward(x)

    with Session([("fp32_from_fp64", {"weights": weights})]) as session:
        model = Masking(4, 4).double()
        torch.optim.SGD(model.parameters(), lr=0.1)
        x = torch.ones(2, 4, dtype=torch.float64)
        assert model(x).dtype is torch.float64
        assert not x[:, 0].any() and "writes to what it is given" in session.seams.left_out["fp32_from_fp64"]
    assert model.weight.dtype is torch.float64
