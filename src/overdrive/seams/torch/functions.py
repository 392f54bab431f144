"""Seam *function called*: every call of a PyTorch function from Python, where something listens.

A `TorchFunctionMode`, as `torch.set_default_device` is one. What a function calls in its turn does not pass here, nor
do other threads of the program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch._C import _len_torch_function_stack
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.overrides import TorchFunctionMode, _pop_mode, _push_mode

from overdrive.seams.hub import Seams
from overdrive.seams.patch import Patches


class _Calls(TorchFunctionMode):
    def __init__(self, hub: Seams) -> None:
        self._point = hub.function_called

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._point.subscribers:
            func, args, kwargs = self._point.apply((func, args, kwargs or {}))
        return func(*args, **(kwargs or {}))


def enter(hub: Seams, patches: Patches) -> list[Callable[[], None]]:
    if not hub.function_called.wanted:
        return [_remove_late]
    calls = _Calls(hub)
    push(calls)
    return [_remove_late, lambda: remove(calls)]


@contextmanager
def unseen() -> Iterator[None]:
    """Calls inside do not pass the seam, and no compiler finds its mode."""
    modes = _popped(lambda mode: isinstance(mode, _Calls))
    _push(modes[:-1] if modes and isinstance(modes[-1], _Calls) else modes)
    try:
        yield
    finally:
        if modes and isinstance(modes[-1], _Calls):
            for _ in modes[:-1]:
                _pop_mode()  # type: ignore[no-untyped-call]
            _push(modes)


def push(mode: TorchFunctionMode) -> None:
    """From now on, in this thread, it is told of all functions, until it is removed."""
    _push_mode(mode)  # type: ignore[no-untyped-call]


def remove(mode: TorchFunctionMode) -> None:
    """Take the mode away from wherever it is: the program may have put others on top of it."""
    if _len_torch_function_stack():
        if (uppermost := _pop_mode()) is mode:  # type: ignore[no-untyped-call]
            return
        _push_mode(uppermost)  # type: ignore[no-untyped-call]
    if not _taken_out(mode):  # it is being told of a function, and PyTorch puts it back after that
        _late.append(mode)

        def later(*_: object) -> None:
            handle.remove()
            _remove_late()

        handle = register_optimizer_step_pre_hook(later)


_late: list[TorchFunctionMode] = []  # modes that could not be removed yet


def _remove_late() -> None:
    """At the next step of an optimizer, or when the session ends."""
    while _late:
        _taken_out(_late.pop())


def _taken_out(mode: TorchFunctionMode) -> bool:
    """Whether it was there; those above it stay."""
    modes = _popped(lambda each: each is mode)
    found = bool(modes) and modes[-1] is mode
    _push(modes[:-1] if found else modes)
    return found


def _popped(is_last: Callable[[Any], bool]) -> list[Any]:
    """Modes from the top of the stack down to the first that `is_last`, or all of them."""
    modes: list[Any] = []
    while _len_torch_function_stack() and not (modes and is_last(modes[-1])):
        modes.append(_pop_mode())  # type: ignore[no-untyped-call]
    return modes


def _push(modes: list[Any]) -> None:
    """Put them back, the last that was popped first."""
    for mode in reversed(modes):
        _push_mode(mode)  # type: ignore[no-untyped-call]
