"""Seams *norm taken*: of gradients together, which they are clipped by (`clip_grad_norm_`, `get_total_norm`); and
*gradients clipped*: `clip_grad_norm_` as a whole.

What a program computes from `.grad` by hand does not pass here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import GeneratorType
from typing import Any

import torch

from overdrive.seams.hub import Seams
from overdrive.seams.patch import Patches


def enter(hub: Seams, patches: Patches) -> list[Callable[[], None]]:
    if hub.norm_taken.wanted:
        seen = _seen(hub, torch.nn.utils.clip_grad._get_total_norm)
        patches.replace(torch.nn.utils.clip_grad, "_get_total_norm", seen)
        patches.replace(torch.nn.utils, "get_total_norm", seen)
    if hub.gradients_clipped.wanted:
        plain = torch.nn.utils.clip_grad_norm_

        @functools.wraps(plain)
        def clip_grad_norm_(parameters: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(parameters, GeneratorType):  # it may be read once only
                parameters = list(parameters) or parameters
            return hub.gradients_clipped.run(parameters, functools.partial(plain, parameters), *args, **kwargs)

        patches.replace(torch.nn.utils.clip_grad, "clip_grad_norm_", clip_grad_norm_)
        patches.replace(torch.nn.utils, "clip_grad_norm_", clip_grad_norm_)
    return []


def _seen(hub: Seams, plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def total_norm(
        tensors: Any, norm_type: float = 2.0, error_if_nonfinite: bool = False, foreach: bool | None = None
    ) -> Any:
        held = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        answer = hub.norm_taken.ask(plain, held, float(norm_type), foreach)
        if answer is None:
            return plain(held, norm_type, error_if_nonfinite, foreach)
        return plain([answer], norm_type, True, foreach) if error_if_nonfinite else answer

    return total_norm
