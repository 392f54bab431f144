"""Batch normalisation over a batch of floats on a CPU, by `batch_norm.c`: the operator `overdrive::batch_norm`.

Its backward pass is torch's own: that one is near what the memory gives.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks

from overdrive.kernels.build import Building
from overdrive.kernels.plain import of_floats

LEAST = 65536  # numbers: it saves 1.5 ns of each, and 26 us of Python are added to a call, 21 to its backward pass
_PLANE = 16  # numbers of one channel of one image; of small planes too much is added up one by one
_NAMES = ("input", "weight", "bias", "running_mean", "running_var", "training", "momentum", "eps")
# What it is compared with torch on before it is used: planes and channels that leave something over, and none.
_SHAPES = ((3, 5, 7, 9), (2, 17, 16, 16), (4, 8, 37), (2, 3, 2, 5, 3))


def arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Those of a call of `torch.batch_norm`, by name."""
    return dict(zip(_NAMES, args, strict=False)) | kwargs


def fits(given: dict[str, Any], least: int | None = None) -> bool:
    """Whether a call with these arguments is one that is done here."""
    x, least = given.get("input"), LEAST if least is None else least
    if given.get("training") is not True or not of_floats(x) or x.dim() < 3 or x.numel() < max(1, least):
        return False
    weight, bias, mean, variance = (given.get(name) for name in _NAMES[1:5])
    of_channels = [each for each in (weight, bias, mean, variance) if each is not None]
    return (
        all(of_floats(each) and each.shape == x.shape[1:2] and each.is_contiguous() for each in of_channels)
        and (mean is None) is (variance is None)
        and not any(each is not None and each.requires_grad for each in (mean, variance))
        and isinstance(given.get("momentum"), float)
        and x.is_contiguous()
        and x.numel() >= _PLANE * x.shape[0] * x.shape[1]
        and not (x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last))  # one channel is in both orders
    )


class BatchNorm:
    """The compiled functions, which `overdrive::batch_norm` calls from now on."""

    def __init__(self, building: Building) -> None:
        """
        Raises:
            CannotBuild: see `Building.load`.
        """
        import ctypes

        library = building.load()
        address, count = ctypes.c_void_p, ctypes.c_int64
        library.forward.argtypes = [address] * 7 + [count] * 4 + [ctypes.c_double]
        library.keep.argtypes = [address] * 4 + [count] * 2 + [ctypes.c_float]
        library.forward.restype = library.keep.restype = None
        _compiled.update(forward=library.forward, fused=1)
        self._keep = library.keep

    def __call__(self, given: dict[str, Any]) -> torch.Tensor:
        """
        Args:
            given: the arguments of `torch.batch_norm`, for which `fits`. The running statistics are written as torch
                writes them: their version stays.
        """
        x, weight, bias, running_mean, running_var, _, momentum, eps = (given.get(name) for name in _NAMES)
        y, mean, _, squares = torch.ops.overdrive.batch_norm(x, weight, bias, eps)
        if running_mean is not None:
            addresses = (each.data_ptr() for each in (running_mean, running_var, mean, squares))
            self._keep(*addresses, mean.numel(), x.numel() // mean.numel(), momentum)  # type: ignore[union-attr]
        return y  # type: ignore[no-any-return]

    def differs(self, plain: Any) -> str | None:
        """In what it differs from torch's `plain`, where it does. Finds out how torch multiplies and adds."""
        wrong = None
        for _compiled["fused"] in (1, 0):
            for shape in _SHAPES:
                count, channels = torch.Size(shape).numel(), shape[1]
                x = torch.arange(count).mul(7919).remainder(1009).div(300).view(shape)
                weight, bias = torch.arange(1, channels + 1) / 3, torch.arange(channels) / 7
                running = torch.arange(channels) / 11, torch.arange(1, channels + 1) / 13
                if wrong := self.differs_on(plain, arguments((x, weight, bias, *running, True, 0.1, 1e-5, False), {})):
                    break
            if wrong is None:
                return None
        return wrong

    def differs_on(self, plain: Any, given: dict[str, Any]) -> str | None:
        """The same on one call, whose gradients and running statistics are not touched."""
        # Where what is saved is counted or taken elsewhere (checkpoints), nothing of this is.
        unseen = saved_tensors_hooks(_as_it_is, _as_it_is)
        with torch.inference_mode(False), torch.enable_grad(), unseen:
            found = [_tried(way, given) for way in (lambda *args: self(arguments(args, {})), plain)]
        for (name, one), other in zip(found[0].items(), found[1].values(), strict=True):
            same = (one.view(torch.int32) == other.view(torch.int32)) | (one.isnan() & other.isnan())
            if one.stride() != other.stride() or not same.all():
                return f"its {name} differs from torch's"
        return None


def _tried(way: Any, given: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Result, running statistics and gradients."""
    own = {name: None if given.get(name) is None else given[name].detach().clone() for name in _NAMES[:5]}
    leaves = {f"gradient of {name}": own[name].requires_grad_() for name in _NAMES[:3] if own[name] is not None}
    y = way(*own.values(), True, given["momentum"], given["eps"], False)
    gradient = torch.arange(y.numel()).mul(104729).remainder(997).div(400).view(y.shape)
    gradients = torch.autograd.grad(y, tuple(leaves.values()), gradient)
    running = {name: own[name] for name in _NAMES[3:5] if own[name] is not None}
    return {"result": y.detach(), **running, **dict(zip(leaves, gradients, strict=True))}


def _as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


_compiled: dict[str, Any] = {}  # the function, and whether torch's products and sums are one operation
_library = torch.library.Library("overdrive", "FRAGMENT")
_library.define("batch_norm(Tensor x, Tensor? weight, Tensor? bias, float eps) -> (Tensor, Tensor, Tensor, Tensor)")


def _forward(x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float) -> Any:
    """Returns: the result; of each channel the mean, 1 / the standard deviation, and the sum of squared distances."""
    images, channels = x.shape[:2]
    y, mean, inverse, squares = torch.empty_like(x), *(torch.empty(channels) for _ in range(3))
    addresses = (None if each is None else each.data_ptr() for each in (x, weight, bias, y, mean, inverse, squares))
    _compiled["forward"](*addresses, images, channels, x.numel() // (images * channels), _compiled["fused"], eps)
    return y, mean, inverse, squares


def _like(x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float) -> Any:
    return torch.empty_like(x), *(x.new_empty(x.shape[1]) for _ in range(3))


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    x, weight, _, ctx.eps = inputs
    _, *of_channels = output
    ctx.save_for_backward(x, weight, *of_channels[:2])
    ctx.mark_non_differentiable(*of_channels)
    ctx.set_materialize_grads(False)


def _back(ctx: Any, gradient: torch.Tensor | None, *_: Any) -> Any:
    x, weight, mean, inverse = ctx.saved_tensors
    if gradient is None:
        return None, None, None, None
    wanted = list(ctx.needs_input_grad[:3])
    of_channels = None, None, mean, inverse
    found = torch.ops.aten.native_batch_norm_backward(gradient, x, weight, *of_channels, True, ctx.eps, wanted)
    return *(each if want else None for each, want in zip(found, wanted, strict=True)), None


_library.impl("batch_norm", _forward, "CPU")
torch.library.register_fake("overdrive::batch_norm", _like, lib=_library)
torch.library.register_autograd("overdrive::batch_norm", _back, setup_context=_keep, lib=_library)
