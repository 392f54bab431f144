"""Seam *step spared*: an optimizer's step whose arithmetic is done already. The hooks around it are called as usual.

The arithmetic of a step without a gradient does nothing either, in 13 us; the profiler's mark takes 5 more, and is left
out where nobody profiles.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from itertools import chain
from typing import Any

from torch._C._dynamo.eval_frame import get_eval_frame_callback
from torch.compiler import is_compiling
from torch.optim import Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from overdrive.seams.hub import Seams
from overdrive.seams.patch import Patches
from overdrive.seams.torch.internals import is_profiled
from overdrive.seams.torch.optimizers import has_steps_within


def enter(hub: Seams, patches: Patches) -> list[Callable[[], None]]:
    point = hub.step_spared
    if point.wanted:
        hook = Optimizer.profile_hook_step

        def profile_hook_step(step: Callable[..., Any]) -> Callable[..., Any]:
            """PyTorch puts this around the `step` of each class of optimizers, at the first one that is made."""
            hooked = hook(step)

            @functools.wraps(hooked)
            def around(self: Any, *args: Any, **kwargs: Any) -> Any:
                if args or kwargs or not point.subscribers or _is_looked_at(self):
                    return hooked(self, *args, **kwargs)
                args, hub.sparing = (self,), self
                try:
                    for each in chain(_global_optimizer_pre_hooks.values(), self._optimizer_step_pre_hooks.values()):
                        if (others := each(self, args, kwargs)) is not None:
                            args, kwargs = others
                finally:
                    hub.sparing = None
                result = None if point.ask(self) else step(*args, **kwargs)
                for each in chain(self._optimizer_step_post_hooks.values(), _global_optimizer_post_hooks.values()):
                    each(self, args, kwargs)
                return result

            around.__wrapped__ = step
            return around

        patches.replace(Optimizer, "profile_hook_step", staticmethod(profile_hook_step))
    return []


def _is_looked_at(optimizer: Any) -> bool:
    """Whether somebody looks for PyTorch's own function here: a profiler, a compiler, or we (see `optimizers`)."""
    return is_compiling() or get_eval_frame_callback() is not None or is_profiled() or has_steps_within(type(optimizer))
