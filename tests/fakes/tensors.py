"""Tensors of a `FakeGpu`: what they say of themselves, how they come there and back, and what makes them there."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.overrides import handle_torch_function, has_torch_function
from torch.utils._python_dispatch import _disable_current_modes

from tests.fakes.gpu import DEVICE, FakeGpu

_ON_DEVICE = ("empty", "empty_strided", "zeros", "ones", "full", "arange", "randn", "rand", "randint")
_FACTORIES = (*_ON_DEVICE, "tensor", "as_tensor", "randperm")
_LIKE = ("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like")
_empty_like = torch.empty_like


def _as_in_c(name: str, function: Any) -> Callable[..., Any]:
    """Function modes are told of a call of it, as of PyTorch's own, and of nothing that it does."""
    function.__name__ = name

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        if has_torch_function(args):
            return handle_torch_function(called, args, *args, **kwargs)
        return function(*args, **kwargs)

    # Who looks at the code of a data set takes it for PyTorch's, as what it stands for.
    for each in (function, called):
        each.__code__ = each.__code__.replace(co_filename=str(torch.__file__))
    return called


def _told(get: Callable[[Any], Any]) -> property:
    """Function modes are told of a look at this property, as of one at PyTorch's own."""

    def got(self: torch.Tensor) -> Any:
        if has_torch_function((self,)):
            return handle_torch_function(made.__get__, (self,), self)
        return get(self)

    made = property(got)
    return made


class _Crossing(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, tensor: torch.Tensor, gpu: FakeGpu, there: bool, non_blocking: bool) -> torch.Tensor:
        context.gpu, context.there = gpu, there
        return _crossed(tensor, gpu, there, non_blocking)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        return _crossed(gradient, context.gpu, not context.there, False), None, None, None


def _crossed(tensor: torch.Tensor, gpu: FakeGpu, there: bool, non_blocking: bool) -> torch.Tensor:
    with _disable_current_modes():
        into = _empty_like(tensor.detach())
    if there:
        gpu.place(into)
    elif non_blocking:
        gpu.pin(into)  # as torch does
    with torch.no_grad():
        gpu.copy(into, tensor.detach(), non_blocking)
    return into


def provide_tensors(gpu: FakeGpu, patch: pytest.MonkeyPatch) -> None:
    plain = {name: getattr(torch.Tensor, name) for name in ("to", "device", "is_cuda", "is_cpu", "tolist", "numpy")}

    def device(self: torch.Tensor) -> Any:
        return DEVICE if gpu.has(self) else plain["device"].__get__(self)

    def moved(self: torch.Tensor, target: Any, non_blocking: bool = False) -> torch.Tensor:
        there = torch.device(target).type == "cuda"
        if there == gpu.has(self):
            return self
        return _Crossing.apply(self, gpu, there, non_blocking)  # type: ignore[no-any-return,no-untyped-call]

    def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        args = tuple(each.device if isinstance(each, torch.Tensor) else each for each in args)
        if args and isinstance(args[0], torch.Tensor):
            args = (args[0].device, args[0].dtype, *args[1:])
        place, dtype, non_blocking, layout = torch._C._nn._parse_to(
            *args, **{name: value for name, value in kwargs.items() if name != "copy"}
        )
        if place is None or place.type not in ("cuda", "cpu"):
            return plain["to"](self, *args, **kwargs)  # type: ignore[no-any-return]
        found = self
        if place.type == "cuda" or gpu.has(self):
            found = moved(self, place, non_blocking)
        if dtype is not None and dtype is not found.dtype:
            found = plain["to"](found, dtype)
        if layout is not None:
            found = plain["to"](found, memory_format=layout)
        return found.clone() if kwargs.get("copy") and found is self else found

    def numpy(self: torch.Tensor, **kwargs: Any) -> Any:
        if gpu.has(self):
            raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first.")
        looked_at(self)
        return plain["numpy"](self, **kwargs)

    def tolist(self: torch.Tensor) -> Any:
        looked_at(self)
        return plain["tolist"](self.cpu())

    def looked_at(self: torch.Tensor) -> None:
        """By C++ that no dispatcher sees: what is copied into pinned memory must have arrived."""
        if gpu.pinned(self):
            self[:0].clone() if self.dim() else self.clone()

    def pin_memory(self: torch.Tensor, *_: Any) -> torch.Tensor:
        with _disable_current_modes():
            return gpu.pin(self.clone())

    copy_ = torch.Tensor.copy_

    def copied(self: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        """In every thread, also where the mode is not entered."""
        if gpu.has(self) != gpu.has(source) and not (self.requires_grad or source.requires_grad):
            return gpu.copy(self, source, non_blocking)
        return copy_(self, source, non_blocking)

    names = {
        "copy_": copied,
        "device": _told(device),
        "is_cuda": _told(gpu.has),
        "is_cpu": _told(lambda self: not gpu.has(self) and plain["is_cpu"].__get__(self)),
        "to": to,
        "cuda": lambda self, device=None, non_blocking=False, **_: moved(self, "cuda", non_blocking),
        "cpu": lambda self, **_: moved(self, "cpu"),
        "tolist": tolist,
        "numpy": numpy,
        "pin_memory": pin_memory,
        "is_pinned": lambda self, *_: gpu.pinned(self),
        "record_stream": lambda self, stream: gpu.order.record_stream(self.untyped_storage()._cdata, stream.name),
    }
    for name, value in names.items():
        if not isinstance(value, property):
            value = _as_in_c(name, value)
        patch.setattr(torch.Tensor, name, value, raising=False)


def provide_factories(gpu: FakeGpu, patch: pytest.MonkeyPatch) -> None:
    for name in (*_FACTORIES, *_LIKE):
        plain = getattr(torch, name)

        def made(*args: Any, _plain: Any = plain, _name: str = name, **kwargs: Any) -> torch.Tensor:
            target, pinned = kwargs.pop("device", None), kwargs.pop("pin_memory", False)
            like = args[0] if _name in _LIKE else None
            if target is None:
                target = like.device if like is not None else _chosen_place()
            if target is None or torch.device(target).type != "cuda":
                if target is not None:
                    kwargs["device"] = target
                with _disable_current_modes() if like is not None else contextlib.nullcontext():
                    result = _plain(*args, **kwargs)
                return gpu.pin(result) if pinned else result  # type: ignore[no-any-return]
            on_device = _name in (*_LIKE, *_ON_DEVICE)
            if gpu.tape is not None and not on_device:  # made on the host, and copied
                gpu.not_while_capturing()
            filled = {"zeros": 0, "ones": 1}.get(_name.removesuffix("_like"))
            with gpu.drawing() if "rand" in _name else _disable_current_modes():
                result = gpu.place(_plain(*args, **kwargs, device="cpu"))
            if gpu.tape is not None:
                gpu.tape.made(result)
            elif on_device and "empty" not in _name:
                gpu.wrote({result.untyped_storage()._cdata}, _name)
            return result.fill_(filled) if filled is not None else result  # type: ignore[no-any-return]

        patch.setattr(torch, name, _as_in_c(name, made))


def _chosen_place() -> Any:
    """Where factories make their tensors, by `with torch.device(...)`, which knows PyTorch's own functions only."""
    module: Any = sys.modules.get("torch.utils._device")  # PyTorch imports it when it is first asked for
    return module.CURRENT_DEVICE if module else None
