"""What changes no answer, or no more than rounding, of programs that only call their model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from overdrive.core.contract import Contract
from overdrive.seams.hub import Seams
from tests.zoo.specimen import Swap, specimen


@specimen("images", Contract.EXACT)
def without_gradients(seams: Seams) -> None:
    """As the technique `no_grad`, without its later backward pass."""

    def called(model: Any, call: Callable[..., Any], *args: Any) -> Any:
        with torch.no_grad():
            return call(*args)

    seams.model_called.subscribe(called)


@specimen("images", Contract.ROUNDING)
def convolution_by_matrix_product(seams: Seams) -> None:
    """The same sums in another order."""

    def unfolded(x: Any, weight: Any, bias: Any, stride: Any, padding: Any, *_: Any) -> Any:
        columns = F.unfold(x, weight.shape[2:], padding=padding)
        return ((weight.flatten(1) @ columns) + bias[:, None]).unflatten(-1, x.shape[2:])

    Swap(seams)(F, "conv2d", unfolded)


def _in_halves(x: Any, weight: Any, bias: Any = None) -> Any:
    middle = x.shape[-1] // 2
    return x[..., middle:] @ weight[:, middle:].T + (x[..., :middle] @ weight[:, :middle].T + bias)


@specimen("feedback", Contract.ROUNDING)
def sums_in_another_order(seams: Seams) -> None:
    """After a few calls the program is somewhere else; each of its calls is as near to fp64 as the original's."""

    Swap(seams)(F, "linear", _in_halves)


@specimen("streams", Contract.ROUNDING)
def sums_of_a_stream_in_another_order(seams: Seams) -> None:
    """What the model keeps from call to call is off by rounding, too."""

    Swap(seams)(F, "linear", _in_halves)


@specimen("turns", Contract.ROUNDING)
def products_in_another_order(seams: Seams) -> None:
    """Of all three models."""

    Swap(seams)(F, "linear", _in_halves)


@specimen("tokens", Contract.ROUNDING)
def rows_one_by_one(seams: Seams) -> None:
    """Each row of a batch in a call of its own."""

    def called(model: Any, call: Callable[..., Any], *args: Any) -> Any:
        rows = [call(*(each[place : place + 1] for each in args))["scores"] for place in range(len(args[0]))]
        return {"scores": torch.cat(rows)}

    seams.model_called.subscribe_innermost(called)
