"""An engine with what was seen of its answers: whether it answers, and what it is compared by."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from overdrive.engines import closeness
from overdrive.engines.ranges import Ranges
from overdrive.engines.runtime import Engine
from overdrive.engines.signature import Signature
from overdrive.engines.tally import Compared, Tally
from overdrive.model_state.later_backward import Requiring
from overdrive.seams.torch.layouts import as_array


class Proved(Compared):
    """An engine for one size, with the form of the results that the model gave. `refused`: why it does not answer."""

    def __init__(
        self,
        engine: Engine | None,
        spec: Any,
        leaves: list[Any],
        tensors: list[torch.Tensor],
        refused: str = "",
        narrow: bool = False,
        tally: Tally | None = None,
        ranges: Ranges | None = None,
    ) -> None:
        """`tally`: of the answers for other sizes, too. `ranges`: the values of inputs that it answers."""
        super().__init__(tally)
        self._refused = refused
        self._narrow = narrow
        self.ranges = ranges or Ranges({}, ())
        self.requiring = Requiring()
        self._engine = engine
        self._spec = spec
        self._constants = leaves
        self._bare = spec is not None and spec.is_leaf()  # its result is a tensor, and nothing else
        self._forms = [(each.shape, each.dtype, each.stride()) for each in tensors]

    def answer(self, given: Signature) -> Any:
        if self._bare:
            return self._results(given)[0]
        made = iter(self._results(given))
        return tree_unflatten([next(made) if each is _TENSOR else each for each in self._constants], self._spec)

    def compare(self, result: Any, given: Signature) -> None:
        """With what the model came to; it is refused where they differ by more than its number format does."""
        if why := self._difference(result, given):
            self._refuse(why)
        else:
            self.compared += 1

    def try_beyond(self, result: Any, given: Signature) -> None:
        """The same of a call that has values outside of the ranges, which decides whether these are taken in."""
        self.ranges.try_beyond(given.arrays(), lambda: not self._difference(result, given))

    def _difference(self, result: Any, given: Signature) -> str:
        leaves, spec = tree_flatten(result)
        tensors = [each for each in leaves if isinstance(each, torch.Tensor)]
        if spec != self._spec or plain_of(leaves) != self._constants or len(tensors) != len(self._forms):
            return "the form of its results is not always the same"
        for one, other in zip(tensors, self._results(given), strict=True):
            if one.shape != other.shape or not close(one, other, self._narrow):
                return "an engine's answer was another one"
        return ""

    @property
    def refused(self) -> str:
        return self._refused or self.tally.refused

    def _refuse(self, why: str) -> None:
        """An engine that has answered is believed for no size any more."""
        self._refused = why
        if self.established:
            self.tally.refused = why

    def _results(self, given: Signature) -> list[torch.Tensor]:
        assert self._engine is not None
        made = self._engine([as_array(each) for each in given.tensors])
        return [_like(form, array) for form, array in zip(self._forms, made, strict=True)]


_TENSOR = object()


def plain_of(leaves: list[Any]) -> list[Any]:
    """All that is no tensor; in the place of each tensor a mark."""
    return [_TENSOR if isinstance(each, torch.Tensor) else each for each in leaves]


def _like(form: tuple[Any, ...], array: Any) -> torch.Tensor:
    """The result as the model would give it: its type, and its strides."""
    shape, dtype, strides = form
    made = torch.from_numpy(np.asarray(array, order="C")).to(dtype)  # ascontiguousarray() makes a row of a number
    if made.shape != shape or made.stride() == strides:
        return made
    return torch.empty_strided(shape, strides, dtype=dtype).copy_(made)


def close(one: torch.Tensor, other: torch.Tensor, narrow: bool = False) -> bool:
    """Whether they differ by rounding (see `closeness`); `one` is the model's."""
    return closeness.close(as_array(one), as_array(other), narrow)
