"""What a step came to is told of tensors of all layouts: a sentinel compares it with a copy's."""

from __future__ import annotations

import torch
from torch import nn

from overdrive.worker.torch.picture import Subject


def test_sparse_gradients_and_buffers_are_told_in_bits() -> None:
    """They failed, so that no step of such a program could be compared."""
    torch.manual_seed(0)
    model = nn.Module()
    model.words = nn.Embedding(6, 3, sparse=True)
    model.register_buffer("adjacency", torch.eye(4).to_sparse())
    optimizer, subject = torch.optim.SparseAdam(model.parameters()), Subject()
    subject.made(optimizer, None)
    subject.look()

    def after(words: list[int]) -> dict[str, str]:
        optimizer.zero_grad()
        model.words(torch.tensor(words)).square().sum().backward()
        return subject.bits()

    one, same, other = after([1, 2, 4]), after([1, 2, 4]), after([1, 2, 5])
    gradient = "the gradient of words.weight"
    assert one == same and one[gradient] != other[gradient]
    assert one["the buffer adjacency"] == other["the buffer adjacency"]
    assert gradient not in subject.values()


def test_of_complex_gradients_both_parts_are_told_in_numbers() -> None:
    model = nn.Module()
    model.weight = nn.Parameter(torch.tensor([1 + 2j, 3 - 1j]))
    optimizer, subject = torch.optim.SGD(model.parameters(), lr=0.5), Subject()
    subject.made(optimizer, None)
    subject.look()
    subject.note()
    torch.view_as_real(model.weight).square().sum().backward()
    optimizer.step()
    told = subject.values()
    assert told["the gradient of weight"].tolist() == [2, 4, 6, -2]
    assert told["the update of weight"].tolist() == [-1, -2, -3, 1]
