"""A parameter of which each rank keeps its share, and the class that it has while it is not whole."""

from __future__ import annotations

import copy
import weakref
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import nn

from overdrive.model_state.sharded.rounded import as_sent, same_bits
from overdrive.model_state.sharded.share import Share


class Keeper(Protocol):
    """Who knows of the parameters of this process."""

    def asked(self, function: Any, args: Any, kwargs: Any) -> Any:
        """A function is called with some that are not whole; returns what it returns."""

    def as_it_was(self, parameter: Any) -> AbstractContextManager[None]:
        """Within it, this one is whole, and of its own class."""


keepers: list[Keeper] = []  # the last counts: no parameter holds it, so that parameters can be copied


class Sharded(nn.Parameter):
    """PyTorch tells it of each function that is called with it."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return keepers[-1].asked(function, args, kwargs or {})

    def __deepcopy__(self, memo: Any) -> Any:
        with keepers[-1].as_it_was(self):
            return copy.deepcopy(self, memo)


class Unit:
    """Parameters that are gathered together.

    Attributes:
        is_open: they are whole.
        is_rounded: with fewer digits (see `rounded`).
        written: the program has written to what was gathered so, on this rank.
        in_full: it did so on some rank, and they are gathered with all digits from then on.
    """

    def __init__(self) -> None:
        self.all: list[Held] = []
        self.is_open = True
        self.is_rounded = self.written = self.in_full = False

    def serves(self, for_call: bool) -> bool:
        """Whether who asks finds them as needed; a model's call takes fewer digits."""
        return self.is_open and (for_call or not self.is_rounded)


class Held:
    """
    Attributes:
        like: an empty tensor of its type and device.
        part: this rank's share of it; None where all of it is in memory.
        rounded: all of it is in memory with fewer digits, and `part` has all of this rank's.
        gradient: this rank's share of it; None where there is no gradient, or it is in its place, whole.
        looked: the program has seen its gradient, which is in its place since.
    """

    def __init__(self, parameter: nn.Parameter, share: Share, unit: Unit, gone: Any) -> None:
        self._parameter = weakref.ref(parameter, gone)
        self.share, self.unit = share, unit
        self.like = parameter.detach().new_empty(0)
        self.part: torch.Tensor | None = None
        self.rounded = False
        self.gradient: torch.Tensor | None = None
        self.looked = False

    @property
    def parameter(self) -> Any:
        """None where the program has dropped it."""
        return self._parameter()

    def room(self) -> torch.Tensor:
        """For all of it, with this rank's share: where it is in memory, somebody may hold that, and it is that."""
        parameter = self.parameter
        if parameter is not None and (self.part is None or self.rounded):
            whole: torch.Tensor = parameter.data
        elif self.part is not None and self.share.is_whole:
            return self.share.seen_whole(self.part)
        else:
            whole = self.share.blank(self.like)
        if self.part is not None:
            self.share.of(whole).copy_(self.part)
        return whole

    def is_written(self) -> bool:
        """Whether the program has changed what was gathered with fewer digits."""
        assert self.part is not None
        data = self.parameter.data
        if data.shape != self.share.shape or data.stride() != self.share.stride or data.device != self.part.device:
            return True
        return not same_bits(self.share.of(data), as_sent(self.part, self.share))

    def take_back_digits(self) -> None:
        """This rank's share has all digits again, in the memory that somebody holds; the next exchange brings the
        others'."""
        if self.rounded:
            self.room()
            self.part, self.rounded = None, False

    def settle(self, within: bool) -> None:
        """Have the class that its state asks for.

        Args:
            within: a model's call. Outside of one it tells of all functions: graphs are to hold it as calls' do.
        """
        if (parameter := self.parameter) is not None:
            whole = within and self.unit.is_open and self.gradient is None
            parameter.__class__ = nn.Parameter if whole else Sharded

    def hide(self) -> None:
        """Where its values would be is not-a-number, of the whole's shape: who comes past its class sees that.

        Where this rank has all of them, they are there.
        """
        assert self.part is not None
        if (parameter := self.parameter) is None:
            return
        if self.share.is_whole:
            set_data(parameter, self.share.seen_whole(self.part))
        else:
            set_data(parameter, self.part.new_full((1,), float("nan")).expand(self.share.shape))


def set_data(parameter: Any, data: Any) -> None:
    """It is of its own class afterwards."""
    if isinstance(parameter, Sharded):
        parameter.__class__ = nn.Parameter  # type: ignore[assignment]
    parameter.data = data
