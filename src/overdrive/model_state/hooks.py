"""Hooks of the program on a model."""

from __future__ import annotations

import torch

from overdrive.seams.torch.internals import all_modules_have_hooks


def own_hooks(model: torch.nn.Module) -> bool:
    """Whether the program has put hooks on modules of this model, or on all, which see every call of them."""
    return all_modules_have_hooks() or any(
        each._forward_hooks or each._forward_pre_hooks or each._backward_hooks or each._backward_pre_hooks
        for each in model.modules()
    )
