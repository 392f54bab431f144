"""Calls of a model to find out something, of which the program sees nothing.

They are made in a forked process, whose memory, output and files are its own, where there can be one. On a GPU there
can be none: there they are made here, and all that they can reach is put back; where not all can be, they are not made.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from overdrive.core.flag import FlagOfThread
from overdrive.core.rng import States
from overdrive.forks.effects import SideEffects
from overdrive.forks.forked import in_children
from overdrive.forks.layout import Unfit
from overdrive.model_state.quiet import quiet
from overdrive.model_state.state import State
from overdrive.seams.keras.layers_on_torch import buffers_of

_outer: SideEffects | None = None  # of the trial call that this process was forked for
_PATIENCE = 600.0  # seconds for a call on one core
_in_place_now = FlagOfThread()


def under_way() -> bool:
    """Whether a call in this thread is one of these, made here: no call of the program's, whoever comes to see it."""
    return bool(_in_place_now)


class NoTrial(Exception):
    """It was not made, or failed; the message is the reason, for people."""


@dataclass(frozen=True)
class TrialCallResult:
    made: Any  # what the work returned
    effect: str  # what the model does besides computing, in words; empty where it does nothing
    buffers: tuple[str, ...]  # names of the buffers that it wrote to, or put others in the place of


def tried(model: torch.nn.Module, work: Callable[[], Any]) -> TrialCallResult:
    """Does work that calls the model and returns what JSON can hold.

    Raises:
        NoTrial: it could not be done.
    """
    if not may_fork_with(model):
        return _in_place(model, work)

    def in_child(tick: Any) -> Any:
        global _outer
        effects = _outer = SideEffects()
        effects.stop()
        try:
            outcome = _observed(model, work, State([model]))
        except (Exception, SystemExit) as error:
            return {"error": effects.tried or _reason(error)}
        return {"made": outcome.made, "effect": effects.tried or outcome.effect, "buffers": outcome.buffers}

    tempfile.gettempdir()  # else PyTorch's compiler looks for it as it is imported, where nothing can be written to
    try:
        with _ours():
            told = in_children([in_child], patience=_PATIENCE)[0]
    except Unfit:
        raise NoTrial("the process in which its call was tried ended, or hung") from None
    if "error" in told:
        raise NoTrial(told["error"])
    return TrialCallResult(told["made"], told["effect"], tuple(told["buffers"]))


@contextlib.contextmanager
def _ours() -> Iterator[None]:
    """A technique's trial call may come to another technique, whose own trial is nothing that the model does."""
    outer = _outer
    before = outer.paused if outer else False
    try:
        if outer:
            outer.paused = True
        yield
    finally:
        if outer:
            outer.paused = before


def may_fork_with(model: torch.nn.Module) -> bool:
    """Whether a forked process can make calls of it: CUDA does not live through a fork."""
    if not hasattr(os, "fork") or sys.platform == "darwin" or torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return False
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return False
    return all(each.device.type in ("cpu", "meta") for each in (*model.parameters(), *model.buffers()))


def _in_place(model: torch.nn.Module, work: Callable[[], Any]) -> TrialCallResult:
    state = State([model])
    if what := state.reach.hidden or state.reach.outward:
        raise NoTrial(f"a trial call could not be undone: the model's code can reach {what}")
    chance = States.now()
    buffers = [(each, each.detach().clone()) for each in buffers_of(model)]
    try:
        with _in_place_now, quiet(state.reach.loggers) as said:
            outcome = _observed(model, work, state)
    except (Exception, SystemExit) as error:
        raise NoTrial(_reason(error)) from error
    finally:
        state.put_back()
        for buffer, before in buffers:
            # Through `data`, so that it does not count as a write: a graph of the program's may hold this buffer.
            buffer.data.copy_(before)
        chance.restore()
    return TrialCallResult(outcome.made, outcome.effect or ("it prints" if said else ""), outcome.buffers)


def _observed(model: torch.nn.Module, work: Callable[[], Any], state: State) -> TrialCallResult:
    buffers = {name: (each, each.detach().clone()) for name, each in model.named_buffers()}
    made = work()
    now = dict(model.named_buffers())
    changed = [
        name
        for name, (buffer, before) in buffers.items()
        if now.get(name) is not buffer or not torch.equal(buffer, before)
    ]
    effect = f"it changes {state.change()}" if state.changed() else ""
    return TrialCallResult(made, effect, tuple(changed))


def _reason(error: BaseException) -> str:
    first = str(error).strip().split("\n", 1)[0]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
