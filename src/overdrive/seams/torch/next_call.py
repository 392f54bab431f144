"""The next outermost call of a model that records gradients, told once, before any technique acts on it.

For who needs it rarely: to have `nn.Module.__call__` patched for that would cost 0.8 us for every module within a
model, all the time. Where it is patched for others, they tell; where not, a hook of PyTorch's does, as long as it is
awaited.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_pre_hook

from overdrive.seams.hub import Seams
from overdrive.seams.points import reason_of
from overdrive.seams.torch import fetches
from overdrive.seams.torch.internals import in_backward
from overdrive.seams.torch.models import is_patched
from overdrive.seams.torch.modules import first_parameter
from overdrive.seams.torch.tracing import traced


def next_call(hub: Seams, act: Callable[[torch.nn.Module], None]) -> Callable[[], None]:
    """Have `act` called with the module. Returns what ends the waiting.

    It is over, too, where an optimizer's step begins first (it calls the model, in a closure) and a technique acts as
    steps begin: that one is in the midst of something, and cannot be switched off there.
    """
    ends: list[Callable[[], None]] = []
    owner = hub.owner

    def begins(module: torch.nn.Module, *_: Any) -> None:
        try:
            if records_gradients(module):
                end()
                act(module)
        except Exception as error:  # as a hook of PyTorch's it would be the program's
            end()
            hub.leave_out(owner, reason_of(error))

    def end() -> None:
        while ends:
            ends.pop()()

    def step_begins(*_: Any) -> None:
        if hub.step_begins.techniques:
            end()

    ends.append(register_optimizer_step_pre_hook(step_begins).remove)
    if is_patched(hub):
        hub.model_begins.subscribe(begins)
        ends.append(lambda: hub.model_begins.unsubscribe(begins))
    else:
        ends.append(register_module_forward_pre_hook(begins).remove)
    return end


def records_gradients(module: torch.nn.Module) -> bool:
    """A module with parameters (others are transforms, or losses) in training; and not called by a backward pass."""
    if not torch.is_grad_enabled() or traced() or in_backward() or fetches.under_way():
        return False
    first = first_parameter(module)
    return first is not None and not first.is_meta
