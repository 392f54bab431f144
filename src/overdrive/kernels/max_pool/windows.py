"""Max pooling of 3 × 3 floats in steps of 1 or 2 on a CPU, by `windows.c`: the operator `overdrive::max_pool`.

Its backward pass is torch's own, which adds each gradient at one place.
"""

from __future__ import annotations

from typing import Any

import torch

from overdrive.kernels.build import Building
from overdrive.kernels.max_pool.operator import NAMES, STRANGE, made_of, same_bits
from overdrive.kernels.plain import of_floats

LEAST = 2048  # numbers of the result: torch needs 30 to 75 ns for each, and Python 50 us for a call
_SHAPES = ((2, 3, 9, 11), (1, 2, 3, 33), (3, 5, 16, 16), (1, 2, 4, 1))


def arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[torch.Tensor, int, int, bool] | None:
    """Of a call of `torch.max_pool2d`: the input, steps, padding and whether sizes are rounded up. None if the call is
    not one that is done here."""
    given: dict[str, Any] = {"stride": None, "padding": 0, "dilation": 1, "ceil_mode": False}
    given |= dict(zip(NAMES, args, strict=False)) | kwargs
    x: Any = given.get("input")
    step, pad = _one(given["stride"]), _one(given["padding"])
    if not of_floats(x) or x.dim() != 4:
        return None
    if _one(given.get("kernel_size")) != 3 or step not in (1, 2) or pad not in (0, 1) or _one(given["dilation"]) != 1:
        return None
    if not x.is_contiguous() or x.is_contiguous(memory_format=torch.channels_last):
        return None  # with one channel it is in both orders
    if min(x.shape[2:]) + 2 * pad < 3 or x.numel() < LEAST * step * step:
        return None
    return x, step, pad, bool(given["ceil_mode"])


def _one(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return value[0] if value and len(set(value)) == 1 else None
    return value


def _sizes(x: torch.Tensor, step: int, pad: int, up: bool) -> list[int]:
    """Of the result. Rounded up, the last window begins within the plane or the padding before it, as torch has it."""
    found = []
    for length in x.shape[2:]:
        size = (length + 2 * pad - 3 + (step - 1 if up else 0)) // step + 1
        found.append(size - 1 if up and (size - 1) * step >= length + pad else size)
    return [*x.shape[:2], *found]


class Windows:
    """The compiled functions, which `overdrive::max_pool` calls from now on."""

    def __init__(self, building: Building) -> None:
        """
        Raises:
            CannotBuild: see `Building.load`.
        """
        import ctypes

        library = building.load()
        for step in (1, 2):
            function = getattr(library, f"windows_{step}")
            function.argtypes, function.restype = [ctypes.c_void_p] * 3 + [ctypes.c_int64] * 6, ctypes.c_int
            _compiled[step] = function

    def __call__(self, x: torch.Tensor, step: int, pad: int, up: bool) -> torch.Tensor:
        pooled, _ = torch.ops.overdrive.max_pool(x, step, pad, up)
        return pooled  # type: ignore[no-any-return]

    def differs(self, plain: Any) -> str | None:
        """In what it differs from torch's `plain`, where it does: on values that may come out in another way."""
        for sizes in _SHAPES:
            numbers = [STRANGE[(7 * n * n + n) % len(STRANGE)] for n in range(torch.Size(sizes).numel())]
            x = torch.tensor(numbers).view(sizes)
            for step, pad, up in ((1, 1, False), (2, 1, False), (2, 0, True), (2, 1, True)):
                if min(sizes[2:]) + 2 * pad >= 3 and (wrong := self.differs_on(plain, x, step, pad, up)):
                    return wrong
        return None

    def differs_on(self, plain: Any, x: torch.Tensor, step: int, pad: int, up: bool) -> str | None:
        """The same on one call, whose gradients are not touched."""
        ways = (lambda each: self(each, step, pad, up), lambda each: plain(each, 3, step, pad, 1, up))
        found = made_of(x, ways, lambda result: torch.arange(result.numel()).remainder(7).sub(3.5).view(result.shape))
        for what, one, other in zip(("result", "gradient"), *found, strict=True):
            if one.shape != other.shape or one.stride() != other.stride():
                return f"its {what} has another form than torch's"
            if not same_bits(one, other):
                return f"its {what} differs from torch's for windows of 3 x 3"
        return None


_compiled: dict[int, Any] = {}  # by steps
_library: Any = torch.library.Library("overdrive", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define("max_pool(Tensor x, int step, int pad, bool up) -> (Tensor, Tensor)")


def _forward(x: torch.Tensor, step: int, pad: int, up: bool) -> Any:
    """Returns: the largest of each window, and the place in its plane where it is."""
    sizes = _sizes(x, step, pad, up)
    pooled, which = torch.empty(sizes), torch.empty(sizes, dtype=torch.int64)
    addresses = (each.data_ptr() for each in (x, pooled, which))
    if _compiled[step](*addresses, x.shape[0] * x.shape[1], *x.shape[2:], *sizes[2:], pad):
        raise MemoryError("there is no memory for the frame of a plane")
    return pooled, which


def _like(x: torch.Tensor, step: int, pad: int, up: bool) -> Any:
    sizes = _sizes(x, step, pad, up)
    return x.new_empty(sizes), x.new_empty(sizes, dtype=torch.int64)


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    x, *ctx.call = inputs
    ctx.save_for_backward(x, output[1])
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _back(ctx: Any, gradient: torch.Tensor | None, _: Any) -> Any:
    x, which = ctx.saved_tensors
    step, pad, up = ctx.call
    if gradient is None:
        return None, None, None, None
    call = [3, 3], [step, step], [pad, pad], [1, 1], up
    return torch.ops.aten.max_pool2d_with_indices_backward(gradient, x, *call, which), None, None, None


_library.impl("max_pool", _forward, "CPU")
torch.library.register_fake("overdrive::max_pool", _like, lib=_library)
torch.library.register_autograd("overdrive::max_pool", _back, setup_context=_keep, lib=_library)
