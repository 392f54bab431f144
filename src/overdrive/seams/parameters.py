"""What an optimizer of PyTorch trains. Imports no framework: techniques are installed before PyTorch is there."""

from __future__ import annotations

from typing import Any


def parameters_of(optimizer: Any) -> list[Any]:
    """All tensors of its groups, in their order."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


# Each looks at one element of a parameter after the other: a part's step is the part of the whole's step.
_ELEMENTWISE = ("SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Adagrad", "Adadelta", "ASGD", "Rprop")


def looks_at_more(optimizer: Any) -> str:
    """Its name, where a step may look at more of a parameter than one element; empty where it does not."""
    kind = type(optimizer)
    if not kind.__module__.startswith("torch.optim."):
        return f"{kind.__module__}.{kind.__name__}"
    return "" if kind.__name__ in _ELEMENTWISE else kind.__name__
