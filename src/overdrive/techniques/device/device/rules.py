"""What a function needs where its tensors live in two places."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import cache
from typing import Any

import torch


class Rule(Enum):
    MEET = "meet"  # all its tensors go there
    WRITE = "write"  # its first tensor stays where it is, the others come to it
    COPY = "copy"  # it works across devices by itself
    READ = "read"  # it hands memory to something that knows no device: from a copy here
    TEXT = "text"  # it shows the device's name
    LENGTHS = "lengths"  # its second tensor must be here


_READ = {"numpy", "__array__", "__dlpack__", "pin_memory", "share_memory_"}
_LENGTHS = {"_pack_padded_sequence", "_pad_packed_sequence", "tensor_split"}
_RECURRENT = {"lstm", "gru", "rnn_tanh", "rnn_relu"}
_COPY = {"copy_", "to", "type_as", "type", "cpu", "cuda", "new_tensor", "as_tensor", "tensor", "is_same_size"}
_OPERATORS = ["add", "sub", "mul", "truediv", "floordiv", "div", "mod", "pow", "and", "or", "xor", "lshift", "rshift"]
_IN_PLACE = {"__setitem__", "__set__", *(f"__i{name}__" for name in _OPERATORS)}
# Functions of two numbers element by element: they take a single number from the CPU as it is.
ELEMENTWISE = frozenset(
    f"{before}{name}{after}"
    for name in ("add", "sub", "mul", "div", "truediv", "pow", "eq", "ne", "lt", "le", "gt", "ge")
    for before, after in (("", ""), ("__", "__"), ("__r", "__"))
)


@cache
def rule_of(name: str) -> Rule:
    """By the function's name: torch has thousands, and few that are special."""
    if name in _READ:
        return Rule.READ
    if name in ("__repr__", "__format__"):
        return Rule.TEXT
    if name in _LENGTHS or name in _RECURRENT:
        return Rule.LENGTHS
    if name in _COPY:
        return Rule.COPY
    if name in _IN_PLACE or name == "__getitem__" or (name.endswith("_") and not name.endswith("__")):
        return Rule.WRITE
    return Rule.MEET


def keeps_lengths_here(name: str, args: tuple[Any, ...]) -> bool:
    """Whether the second argument of this call is a tensor that must be on the CPU on every device."""
    if len(args) < 2 or not isinstance(args[1], torch.Tensor):
        return False
    # Recurrent layers take the packed form (data, batch_sizes, hidden, ...) or the plain (input, hidden, weights, ...).
    return name in _LENGTHS or name == "lstm" or (name in _RECURRENT and isinstance(args[2], torch.Tensor))


@cache
def plain_factories() -> frozenset[Callable[..., Any]]:
    """Factories that draw no random number: what they make is the same on every device."""
    return frozenset({
        torch.empty, torch.zeros, torch.ones, torch.full, torch.arange, torch.eye, torch.linspace, torch.logspace,
        torch.tril_indices, torch.triu_indices, torch.scalar_tensor, torch.tensor,
    })  # fmt: skip
