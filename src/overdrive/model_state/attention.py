"""Attention as PyTorch computes it where there is a dropout, on a CPU: no kernel drops for a part of the whole."""

from __future__ import annotations

import torch
from torch.nn import functional as F


def attention_weights(
    q: torch.Tensor, k: torch.Tensor, mask: torch.Tensor | None, is_causal: bool, scale: float | None
) -> torch.Tensor:
    """Of each query to each key, before the dropout. `mask`: of booleans, or of numbers that are added; or None."""
    scores = q @ k.transpose(-2, -1) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype is torch.bool else scores + mask
    return F.softmax(scores, -1)
