"""A call of a block that lets go of what it made, and makes it again when the backward pass asks for it.

As `torch.utils.checkpoint`, but made again with all as it was in the call, and with its own tensors (arguments,
parameters, buffers) as they are now in the backward pass, as the program's author would find them there.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_flatten, tree_unflatten

from overdrive.core.rng import States
from overdrive.model_state.contents import Contents
from overdrive.model_state.quiet import quiet
from overdrive.model_state.saved import taken_over
from overdrive.model_state.state import State
from overdrive.seams.torch.internals import storage_id, version_of
from overdrive.seams.torch.moment import Circumstances, TorchSettings, chance_as

_CONSTANTS = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size, slice)


def can_be_given(args: Any, kwargs: Any) -> bool:
    """Whether a block that is called with these can be called with them again: tensors and constants alone."""
    return all(
        type(leaf) in (torch.Tensor, torch.nn.Parameter) and leaf.layout is torch.strided
        if isinstance(leaf, torch.Tensor)
        else isinstance(leaf, _CONSTANTS)
        for leaf in tree_flatten((args, kwargs))[0]
    )


class Frame:
    """One call. All that it needs to be made again lives as long as the graph that it has made."""

    def __init__(
        self, function: Callable[..., Any], state: State, failed: Callable[[str], object], args: Any, kwargs: Any
    ) -> None:
        self._function, self._state, self._failed = function, state, failed
        leaves, self._spec = tree_flatten((args, kwargs))
        self._given = [_Given(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        self._contents = Contents(state.reach)
        self._chance, self._circumstances, self._settings = States.now(), Circumstances(), TorchSettings()
        given = [each for each in self._given if isinstance(each, _Given)]
        # What is in these memories stays where it is.
        self._staying = {storage_id(each) for each in (*self._contents.tensors, *(one.tensor for one in given))}
        self._staying_again: set[int] = set()  # likewise, when the call is made again
        self._saved: set[int] = set()  # of these, whose content was saved
        self._packed: list[weakref.ref[_Gone]] = []
        self._number = 0

    def call(self, args: Any, kwargs: Any) -> Any:
        with taken_over(self._pack, _unpack, self._failed):
            result = self._function(*args, **kwargs)
        self._contents.call_ends(self._saved)
        return result

    def make_again(self) -> None:
        given = [each for each in self._given if isinstance(each, _Given)]
        for each in given:
            each.check()
        for tensor, version in self._contents.uncopied():
            _check(tensor, version)
        again = (*self._contents.standing_in, *(each.again for each in given))
        self._staying_again = {storage_id(each) for each in again}
        self._number = 0
        with ExitStack() as stack:
            stack.enter_context(self._state.as_it_was())
            stack.enter_context(self._contents.in_place())
            stack.enter_context(chance_as(self._chance))
            stack.enter_context(self._settings.again())
            stack.enter_context(self._circumstances.again())
            if self._state.reach.prints:
                stack.enter_context(quiet(self._state.reach.loggers))
            stack.enter_context(torch.enable_grad())
            stack.enter_context(saved_tensors_hooks(self._pack_again, _as_it_is))
            leaves = [each.leaf() if isinstance(each, _Given) else each for each in self._given]
            args, kwargs = tree_unflatten(leaves, self._spec)
            with suppress(_Enough):
                self._function(*args, **kwargs)
        if self._number < len(self._packed):
            raise RuntimeError("a block of the model that was called again has kept less than in its first call")

    def _pack(self, tensor: torch.Tensor) -> Any:
        memory = storage_id(tensor)
        if memory in self._staying:
            self._saved.add(memory)
            return _Staying(tensor)
        gone = _Gone(self)
        self._packed.append(weakref.ref(gone))
        return gone

    def _pack_again(self, tensor: torch.Tensor) -> Any:
        tensor = tensor.detach()  # with what made it, an operation that saves its own result would hold itself
        if storage_id(tensor) in self._staying_again or self._number == len(self._packed):
            return tensor
        gone = self._packed[self._number]()
        self._number += 1
        if gone is not None:
            gone.made = _Staying(tensor)
        if self._number == len(self._packed):
            raise _Enough
        return tensor


class _Enough(BaseException):
    """All has been made again."""


class _Given:
    """A tensor that a block was called with."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor, self._version, self._flag = tensor.detach(), version_of(tensor), tensor.requires_grad
        # What the model has made nobody else has at hand. What the program has given it may write to at any time,
        # through `data` or numpy, where no version counts.
        self.again = self.tensor if tensor.grad_fn is not None else self.tensor.clone()

    def check(self) -> None:
        if self.again is self.tensor:
            _check(self.tensor, self._version)

    def leaf(self) -> torch.Tensor:
        return self.again.detach().requires_grad_(self._flag)


class _Staying:
    """A saved tensor that is held."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor, self._version = tensor, version_of(tensor)

    def unpack(self) -> torch.Tensor:
        _check(self._tensor, self._version)
        return self._tensor


class _Gone:
    """A saved tensor that is made again."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self.made: _Staying | None = None

    def unpack(self) -> torch.Tensor:
        if self.made is None:
            self._frame.make_again()
        made, self.made = self.made, None
        assert made is not None
        return made.unpack()


def _unpack(packed: _Staying | _Gone) -> torch.Tensor:
    return packed.unpack()


def _as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _check(tensor: torch.Tensor, version: int) -> None:
    """As PyTorch does for what it saves itself."""
    if version_of(tensor) != version:
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace operation: "
            f"[{tensor.type()} {list(tensor.shape)}] is at version {version_of(tensor)}; expected version {version} "
            "instead. Hint: enable anomaly detection to find the operation that failed to compute its gradient, with "
            "torch.autograd.set_detect_anomaly(True)."
        )
