"""`device`: what is moved, when, what comes back, and that the program is as it was afterwards."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from overdrive.core.facts import Facts
from overdrive.techniques.catalogue import catalogue
from overdrive.techniques.device.device.memo import Memo
from overdrive.worker.session import Session
from tests.techniques.device.standin import There


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[There]:
    found = There()
    monkeypatch.setattr(type(catalogue()["device"]), "place", staticmethod(lambda: found))
    with found:
        yield found


@pytest.fixture
def session(place: There) -> Iterator[Session]:
    with Session([("device", {})]) as found:
        yield found
    assert not found.seams.left_out


def model_and_optimizer() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2))
    return model, torch.optim.Adam(model.parameters(), lr=0.01)


def test_the_stand_in_refuses_what_a_gpu_refuses(place: There) -> None:
    there, here = place.send(torch.ones(3)), torch.ones(3)
    with pytest.raises(RuntimeError, match="same device"):
        there + here
    with pytest.raises(RuntimeError, match="same device"):
        torch.cat([there, here])
    assert place.has(there * 2) and place.has(there[1:]) and not place.has(here * 2)
    assert place.has(there + torch.tensor(1.0))
    weight = torch.ones(3, requires_grad=True)
    place.send(weight).sum().backward()  # type: ignore[no-untyped-call]
    assert weight.grad is not None and not place.has(weight.grad)


def test_nothing_is_moved_before_an_optimizer_is_made(place: There, session: Session) -> None:
    model = nn.Linear(4, 2)
    model(torch.randn(3, 4))
    assert place.sent == 0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert all(place.has(each) for each in model.parameters())
    assert optimizer.param_groups[0]["params"][0] is model.weight


def test_a_step_is_made_there_and_the_data_stay_here(place: There, session: Session) -> None:
    model, optimizer = model_and_optimizer()
    x, y = torch.randn(16, 4), torch.randint(2, (16,))
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    assert place.has(loss) and not place.has(x) and not place.has(y)
    assert all(place.has(each) for each in (*model.parameters(), model[1].running_mean))
    assert all(place.has(each.grad) for each in model.parameters())
    states = [value for state in optimizer.state.values() for key, value in state.items() if key != "step"]
    assert states and all(place.has(each) for each in states)


def test_afterwards_all_is_on_the_cpu_and_goes_on(place: There) -> None:
    with Session([("device", {})]):
        model, optimizer = model_and_optimizer()
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(16, 4)).sum().backward()
            optimizer.step()
    tensors = [*model.parameters(), *model.buffers(), *(each.grad for each in model.parameters())]
    tensors += [value for state in optimizer.state.values() for value in state.values()]
    assert not any(place.has(each) for each in tensors)
    assert torch.overrides._len_torch_function_stack() == 0
    model(torch.randn(16, 4)).sum().backward()
    optimizer.step()


def test_left_out_in_mid_run_the_program_goes_on_here(place: There) -> None:
    losses = []
    for stops in (False, True):
        with Session([("device", {})]) as session:
            model, optimizer = model_and_optimizer()
            hidden = torch.zeros(16, 2)
            for step in range(4):
                out = model(torch.randn(16, 4)) + hidden
                hidden = out.detach()  # carried over from there to here
                optimizer.zero_grad()
                loss = out.square().mean()
                loss.backward()
                optimizer.step()
                if stops and step == 1:
                    session.seams.leave_out("device", "for the test")
                losses.append(loss.item())
            assert place.has(loss) is not stops
    assert losses[:4] == losses[4:]


def test_results_leave_torch_by_a_copy(place: There, session: Session) -> None:
    model, _ = model_and_optimizer()
    out = model(torch.randn(5, 4)).detach()
    before = place.brought
    assert out.numpy().shape == (5, 2) and np.asarray(out).shape == (5, 2) and np.mean(out.numpy()) is not None
    assert place.brought - before == 3
    assert "tensor(" in repr(out) and len(out.tolist()) == 5 and f"{out[0, 0]:.3f}"
    with pytest.raises(RuntimeError, match="requires grad"):
        model(torch.randn(5, 4)).numpy()


def test_writes_go_to_where_their_target_lives(place: There, session: Session) -> None:
    model, _ = model_and_optimizer()
    out = model(torch.randn(5, 4)).detach()
    table = torch.zeros(10, 2)
    table[:5] = out
    table += out.sum()
    table[out[:, 0].argmax()] += 1
    torch.add(out, 1, out=(filled := torch.empty(5, 2)))
    assert not place.has(table) and not place.has(filled) and torch.equal(filled, out + 1)
    out += torch.ones(5, 2)
    out[torch.tensor([0, 2])] = torch.zeros(2, 2)
    assert place.has(out) and out[2].tolist() == [0, 0]
    assert not place.has(table[torch.arange(3)]) and place.has(out[torch.arange(3)])


def test_a_write_by_an_operators_own_name_goes_there_as_well(place: There, session: Session) -> None:
    """Seen by a list: a comparison with what is there would be one with the copy that was written to."""
    model, _ = model_and_optimizer()
    total, out = torch.zeros(2), model(torch.randn(3, 4)).detach().sum(0)
    torch.ops.aten.add_.Tensor(total, out)
    assert total.tolist() == out.tolist()
    torch.ops.aten.copy_.default(total, out * 2)
    assert total.tolist() == (out * 2).tolist() and not place.has(total)


def test_a_second_model_follows_when_it_is_called_and_an_average_when_it_is_written(
    place: There, session: Session
) -> None:
    model, _ = model_and_optimizer()
    average, judge = copy.deepcopy(model), nn.Linear(2, 1)
    twin = nn.Linear(4, 8)
    with torch.no_grad():
        for mine, other in zip(twin.parameters(), model[0].parameters(), strict=True):
            mine.mul_(0.9).add_(other, alpha=0.1)
    assert all(place.has(each) for each in twin.parameters())
    assert not place.has(judge.weight)
    judge(model(torch.randn(3, 4)))
    assert place.has(judge.weight) and place.has(average[0].weight)
    weighted = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0]))
    assert place.has(weighted(model(torch.randn(3, 4)), torch.tensor([0, 1, 1])))


def test_constants_made_within_a_model_are_made_there_and_random_ones_here(place: There, session: Session) -> None:
    seen = {}

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen["zeros"], seen["noise"] = torch.zeros(x.size(0), 4), torch.randn(x.size(0), 4)
            return self.fc(x) + seen["zeros"] + seen["noise"]

    model = Model()
    torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(3)
    model(torch.ones(2, 4))
    assert place.has(seen["zeros"]) and not place.has(seen["noise"])
    torch.manual_seed(3)
    assert torch.equal(seen["noise"], torch.randn(2, 4))
    assert not place.has(torch.zeros(2))


def test_packed_sequences_keep_their_lengths_here(place: There, session: Session) -> None:
    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.gru = nn.LSTM(4, 3, batch_first=True), nn.GRU(3, 2, batch_first=True)

        def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Any:
            packed, _ = self.lstm(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
            out, _ = pad_packed_sequence(self.gru(packed)[0], batch_first=True)
            return out

    model = Reader()
    torch.optim.SGD(model.parameters(), lr=0.1)
    assert place.has(model(torch.randn(3, 5, 4), torch.tensor([5, 2, 4])))


def test_what_the_device_cannot_do_is_done_here(
    place: There, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _ = model_and_optimizer()
    out = model(torch.randn(6, 4)).detach()
    refuse = There._refuse

    def lacking(self: There, func: Any, args: Any, tensors: Any) -> None:
        if "histc" in str(func):
            raise NotImplementedError("Could not run 'aten::histc' with arguments from the 'CUDA' backend")
        refuse(self, func, args, tensors)

    monkeypatch.setattr(There, "_refuse", lacking)
    assert torch.histc(out, bins=4).sum() == 12
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        out @ out


def test_a_batch_is_sent_once_until_it_is_written_to(place: There, session: Session) -> None:
    model, _ = model_and_optimizer()
    x = torch.randn(6, 4)
    model(x)
    sent = place.sent
    first = model(x)
    assert place.sent == sent
    x += 1
    second = model(x)
    assert place.sent == sent + 1 and not torch.equal(first, second)


def test_memory_that_others_write_to_is_never_kept(place: There, session: Session) -> None:
    model, _ = model_and_optimizer()
    array = np.ones((6, 4), dtype=np.float32)
    x = torch.from_numpy(array)
    y = torch.ones(6, 4)
    view = y.numpy()
    model.eval()
    before = [model(x), model(y)]
    array *= 2
    view *= 2
    assert not torch.equal(before[0], model(x)) and not torch.equal(before[1], model(y))


def test_what_is_written_through_data_is_never_kept(place: There, session: Session) -> None:
    early = torch.ones(6, 4)
    alias = early.data
    model, _ = model_and_optimizer()
    model.eval()
    before = model(early)
    alias *= 2
    assert not torch.equal(before, model(early))
    ways: list[Any] = [
        lambda x, other: x.data.mul_(2),
        lambda x, other: setattr(x, "data", x.data * 2),
        lambda x, other: (setattr(x, "data", other), model(x), other.mul_(2)),
    ]
    for write in ways:
        x, other = torch.ones(6, 4), torch.ones(6, 4)
        before = model(x)
        write(x, other)
        assert x[0, 0] == 2 and not torch.equal(before, model(x))


def test_the_memo_keeps_within_its_bytes_and_forgets_what_is_gone() -> None:
    memo = Memo()
    memo.most = 800
    tensors = [torch.zeros(100) for _ in range(3)]  # 400 bytes each
    for each in tensors:
        memo.put(each, each.clone())
    assert memo.get(tensors[0]) is None and memo.get(tensors[2]) is not None
    del each, tensors[1:]
    assert not memo._copies and memo._bytes == 0


def test_the_programs_own_errors_pass(place: There, session: Session) -> None:
    model, _ = model_and_optimizer()
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        nn.functional.linear(torch.randn(2, 5), model[0].weight)


def test_programs_modes_stay_where_they_are(place: There) -> None:
    from torch.overrides import TorchFunctionMode

    class Own(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    session = Session([("device", {})])
    session.__enter__()
    own = Own()
    with own:
        model, _ = model_and_optimizer()
        model(torch.randn(3, 4))
        session.__exit__(None, None, None)
        assert torch.overrides._get_current_function_mode() is own
    assert torch.overrides._len_torch_function_stack() == 0


def test_a_machine_without_a_gpu_leaves_it_out_with_the_reason() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with Session([("device", {})]) as session:
        torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    assert "GPU" in session.seams.left_out["device"]


GPU = ({"name": "H200"},)


@pytest.mark.parametrize(
    ("gpus", "facts", "reason"),
    [
        (GPU, Facts(device="cuda"), "already"),
        ((), Facts(), "no GPU on this machine"),
        (GPU, Facts(own={"device": {"built_for_gpus": False}}), "without a GPU"),
        (GPU, Facts(own={"device": {"gpus": 0}}), "finds no GPU"),
        (GPU, Facts(own={"device": {"gpus": 1}}), None),
    ],
)
def test_says_where_it_cannot_help(gpus: Any, facts: Facts, reason: str | None, monkeypatch: Any) -> None:
    from overdrive.techniques.device.device import technique as device

    monkeypatch.setattr(device, "gpus", lambda: gpus)
    told = catalogue()["device"].applies(facts)
    assert told is None if reason is None else reason in str(told)
