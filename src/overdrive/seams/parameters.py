"""What an optimizer of PyTorch trains. Imports no framework: techniques are installed before PyTorch is there."""

from __future__ import annotations

from typing import Any


def parameters_of(optimizer: Any) -> list[Any]:
    """All tensors of its groups, in their order."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
