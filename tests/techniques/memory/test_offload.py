"""Activations laid aside and brought back: the same bits, within the room. Copies by a stand-in: here is no GPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from overdrive.core.facts import Facts
from overdrive.techniques.catalogue import catalogue
from overdrive.techniques.memory.offload.host import Away, NoStreams, Shelf, taken
from overdrive.worker.session import Session

CPU = torch.device("cpu")


class Noting(NoStreams):
    """Notes what is copied in which order, and who is told to wait for it."""

    def __init__(self) -> None:
        super().__init__(CPU)
        self.notes: list[Any] = []
        self.copies = 0

    def out(self, tensor: torch.Tensor, host: torch.Tensor) -> Any:
        super().out(tensor, host)
        self.copies += 1
        self.notes.append(("out", self.copies))
        return self.copies

    def back(self, host: torch.Tensor, copied_out: Any) -> tuple[torch.Tensor, Any]:
        self.notes.append(("back", copied_out))
        return super().back(host, copied_out)[0], -copied_out

    def wait_for(self, event: Any) -> None:
        self.notes.append(("wait", event))


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*[layer for _ in range(6) for layer in (nn.Linear(16, 16), nn.Tanh(), nn.Dropout(0.1))])


def gradients(shelf: Shelf | None, twice: bool = False) -> list[torch.Tensor]:
    model, x = net(), torch.randn(32, 16)
    own = {each.untyped_storage().data_ptr() for each in (*model.parameters(), *model.buffers())}
    if shelf is None:
        loss = model(x).sum()
    else:
        with shelf.hooks(own):
            loss = model(x).sum()
        shelf.end_of_call()
    if twice:
        loss.backward(retain_graph=True)
    loss.backward()
    return [each.grad for each in model.parameters() if each.grad is not None]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(one) == len(other) == 12 and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_gradients_are_the_same_bits_and_all_room_is_given_back() -> None:
    shelf = Shelf(NoStreams(CPU), room=1 << 30, least=0)
    assert same(gradients(None), gradients(shelf)) and shelf.laid > 0
    assert same(gradients(None, twice=True), gradients(shelf, twice=True))
    assert shelf._bytes == 0 and not shelf._leaving


def test_no_more_is_laid_aside_than_there_is_room_for() -> None:
    most = 0

    class Counting(Shelf):
        def _lay(self, tensor: torch.Tensor) -> Any:
            nonlocal most
            found = super()._lay(tensor)
            most = max(most, self._bytes)
            return found

    shelf = Counting(NoStreams(CPU), room=3 * taken(torch.empty(32, 16)), least=0)
    assert same(gradients(None), gradients(shelf))
    assert 0 < most <= 3 * taken(torch.empty(32, 16))
    assert same(gradients(None), gradients(Shelf(NoStreams(CPU), room=0, least=0)))


def test_parameters_small_tensors_and_overlapping_ones_stay() -> None:
    shelf = Shelf(NoStreams(CPU), room=1 << 30, least=1024)
    weight = nn.Parameter(torch.randn(64, 64))
    small, large = torch.randn(4, requires_grad=True), torch.randn(64, 64, requires_grad=True)
    with shelf.hooks({weight.untyped_storage().data_ptr()}):
        (small * small.detach()).sum()
        (large @ weight).sum()  # saves both
        (large[:1].expand(64, 64) * large.detach()[:1].expand(64, 64)).sum()
    assert shelf.laid == large.nbytes


def test_what_two_operations_save_goes_once_and_a_written_tensor_again() -> None:
    shelf = Shelf(NoStreams(CPU), room=1 << 30, least=0)
    x, one, other = torch.randn(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
    own = {each.untyped_storage().data_ptr() for each in (*one.parameters(), *other.parameters())}
    with shelf.hooks(own):
        first = one(x), other(x)
        assert shelf.laid == x.nbytes
        x.mul_(2)
        second = one(x)
        assert shelf.laid == 2 * x.nbytes
    (first[0].sum() + first[1].sum() + second.sum()).backward()
    assert one.weight.grad is not None and other.weight.grad is not None
    torch.testing.assert_close(one.weight.grad, 3 * other.weight.grad)


def test_the_backward_pass_finds_its_tensors_on_their_way() -> None:
    streams = Noting()
    gradients(Shelf(streams, room=1 << 30, least=0))
    notes = streams.notes
    outs = [number for kind, number in notes if kind == "out"]
    backs = [number for kind, number in notes if kind == "back"]
    assert backs[:4] == sorted(outs, reverse=True)[:4]  # last first
    first_use = notes.index(("wait", -backs[1]))
    assert all(notes.index(("back", number)) < first_use for number in backs[1:4])  # before it is asked for
    # Nothing is let go of that the computing was not told to wait for, nor used before it has arrived.
    for number in outs:
        assert notes.index(("wait", number)) > notes.index(("out", number))
    for number in set(backs):
        assert notes.index(("wait", -number)) > notes.index(("back", number))


def test_what_is_dropped_on_its_way_back_is_waited_for() -> None:
    streams = Noting()
    shelf = Shelf(streams, room=1 << 30, least=0)
    away = shelf._lay(torch.randn(4, 4))
    assert isinstance(away, Away)
    away.bring()
    shelf.end_of_call()
    del away
    assert streams.notes[-1] == ("wait", -1) and shelf._bytes == 0


def test_on_the_processor_it_says_why_it_is_left_out() -> None:
    assert "main memory" in (catalogue()["offload"].applies(Facts()) or "")
    with Session([("offload", {"least_mib": 0})]) as session:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.randn(4, 16)).sum().backward()
        optimizer.step()
    assert "no model on a GPU" in session.seams.left_out["offload"]


def test_it_stands_aside_where_the_program_takes_what_is_saved(monkeypatch: Any) -> None:
    from overdrive.techniques.memory.offload import host, technique

    monkeypatch.setattr(technique, "DEVICE", "cpu")
    monkeypatch.setattr(host, "Streams", NoStreams)
    found = []
    for chosen in ([], [("offload", {"least_mib": 0})]):
        torch.manual_seed(0)
        saved: list[torch.Size] = []
        with (
            Session(chosen),
            torch.autograd.graph.saved_tensors_hooks(
                lambda each, saved=saved: saved.append(each.shape) or each,
                lambda each: each,  # type: ignore[misc]
            ),
        ):
            net()(torch.randn(4, 16)).sum().backward()
        found.append(saved)
    assert found[0] == found[1] and found[0]
