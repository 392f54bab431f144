"""Seam *random drawn*: PyTorch's functions that draw random numbers, as Python calls them.

What draws within a function of C (dropout between the layers of an LSTM) does not pass here: see `unseen_draws`.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import _VF
from torch.nn import functional as F
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import TorchDispatchMode

from overdrive.core.in_place import in_place_of
from overdrive.seams.hub import Seams
from overdrive.seams.patch import Patches
from overdrive.seams.place import called_from
from overdrive.seams.points import Answer
from overdrive.seams.torch.internals import schema_of
from overdrive.seams.torch.overriding import NOBODY, overridden
from overdrive.seams.torch.scripted import scripted_alike

_DROPPING = ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
DROPOUTS: tuple[str, ...] = (*_DROPPING, *(f"{name}_" for name in _DROPPING))
LIKE = ("rand_like", "randn_like", "randint_like")
MADE = ("rand", "randn", "randint", "randperm", "normal")
IN_PLACE = ("bernoulli_", "normal_", "uniform_", "exponential_", "random_", "geometric_", "cauchy_", "log_normal_")
ATTENTION = "scaled_dot_product_attention"
_FUNCTIONS = (*DROPOUTS, *LIKE, *MADE, "bernoulli", "multinomial", "poisson", "rrelu", "rrelu_")
_METHODS = (*IN_PLACE, "bernoulli", "multinomial")
_NORMALISATIONS = ("native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm", "miopen_batch_norm")


class _Thread(threading.local):
    within = False  # a function of this seam is under way


_thread = _Thread()


def enter(hub: Seams, patches: Patches) -> list[Callable[[], None]]:
    if not hub.random_drawn.wanted:
        return []
    # PyTorch knows what makes tensors on the default device by its identity, and asks for it once, when the first is
    # made under `torch.set_default_device` or `with torch.device(...)`: ours in the place of these it would not know.
    _device_constructors()
    removers: list[Callable[[], None]] = []
    for name in _FUNCTIONS:
        plain = getattr(torch, name)
        seen = _seen(hub.random_drawn, name, plain, function=True)
        removers.append(scripted_alike(seen, plain))
        for holder in (torch, _VF, F):
            if getattr(holder, name, None) is plain:
                patches.replace(holder, name, seen)
    for name in _METHODS:
        patches.replace(torch.Tensor, name, _seen(hub.random_drawn, name, getattr(torch.Tensor, name)))
    seen = _seen(hub.random_drawn, ATTENTION, getattr(F, ATTENTION), function=True)
    removers.append(scripted_alike(seen, getattr(F, ATTENTION)))
    patches.replace(F, ATTENTION, seen)
    return removers


def _seen(point: Answer, name: str, plain: Callable[..., Any], function: bool = False) -> Callable[..., Any]:
    """`function`: it is no method."""

    @in_place_of(plain)
    def draw(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return plain(*args, **kwargs)
        if function and (answer := overridden(draw, args, kwargs)) is not NOBODY:
            return answer
        if not point.subscribers or _thread.within:
            return plain(*args, **kwargs)
        _thread.within = True
        try:
            answer = point.ask(name, plain, args, kwargs)
            return called_from(sys._getframe(1), plain)(*args, **kwargs) if answer is None else answer
        finally:
            _thread.within = False

    return draw


class Unseen:
    """Attributes: `draws`: names of operators that drew past this seam. `normalisations`: of batches, all of them."""

    def __init__(self) -> None:
        self.draws: list[str] = []
        self.normalisations = 0


@contextmanager
def unseen_draws() -> Iterator[Unseen]:
    """What is drawn inside, and not by way of this seam. Slow: for trial calls."""
    unseen = Unseen()
    with _Operators(unseen):
        yield unseen


class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, unseen: Unseen) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._unseen = unseen

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__.split(".")[0]
        drew = torch.Tag.nondeterministic_seeded in func.tags and not _thread.within
        if drew and not _is_sure(func, args, kwargs or {}):
            self._unseen.draws.append(name)
        elif (
            name in _NORMALISATIONS and _argument(func, args, kwargs or {}, ("training", "train")) and len(args[0]) > 1
        ):
            # With one row it is the normalisation of instances, which PyTorch computes so.
            self._unseen.normalisations += 1
        return func(*args, **(kwargs or {}))


def _is_sure(func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether this one does not draw after all: a dropout of nothing."""
    return bool(_argument(func, args, kwargs, ("dropout_p", "dropout", "p")) == 0.0)


def _argument(func: Any, args: Any, kwargs: dict[str, Any], names: Collection[str]) -> Any:
    for place, argument in enumerate(schema_of(func).arguments):
        if argument.name in names:
            return args[place] if place < len(args) else kwargs.get(argument.name, argument.default_value)
    return None
