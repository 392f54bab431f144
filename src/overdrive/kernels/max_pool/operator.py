"""Max pooling of 2 × 2 elements in steps of 2 on a CPU, by `max_pool.c`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks

from overdrive.kernels.build import Building

NAMES = ("input", "kernel_size", "stride", "padding", "dilation", "ceil_mode")
_KINDS = {torch.float32: "float", torch.bfloat16: "bfloat"}
# What may come out in another way: ties, NaN, infinities, zeros of both signs, what a window leaves over.
STRANGE = (0.0, -0.0, 1.0, 1.0, float("nan"), -1.0, float("-inf"), float("inf"), 2.5, -0.0, 0.0)
_STRANGE_SIZES = (
    (2, 1, 5, 47),
    (2, 3, 9, 11),
    (1, 19, 6, 8),
    (2, 16, 7, 6),
    (1, 37, 4, 5),
    (1, 2, 3, 33),
    (3, 5, 3, 2),
)


def fits(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether this call of `torch.max_pool2d` is one that is done here."""
    given = dict(zip(NAMES, args, strict=False)) | kwargs
    x = given.get("input")
    if x is None or x.dim() != 4 or x.dtype not in _KINDS or x.device.type != "cpu" or not x.numel():
        return False
    height, width = x.shape[2:]
    return (
        x.is_contiguous() != x.is_contiguous(memory_format=torch.channels_last)  # both, with one channel, say
        and _both(given.get("kernel_size"), 2)
        and (given.get("stride") in (None, [], ()) or _both(given["stride"], 2))
        and _both(given.get("padding", 0), 0)
        and _both(given.get("dilation", 1), 1)
        and not (given.get("ceil_mode") and (height % 2 or width % 2))
        and height > 1
        and width > 1
        and x.layout is torch.strided
        and not x.is_neg()
    )


class MaxPool:
    """The compiled functions."""

    def __init__(self, building: Building) -> None:
        """
        Raises:
            CannotBuild: see `Building.load`.
        """
        library = building.load()
        self._functions = {
            (way, dtype): _function(library, f"{way}_{name}")
            for way in ("forward", "backward")
            for dtype, name in _KINDS.items()
        }

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """
        Args:
            x: samples × channels × height × width, for which `fits`.
        """
        pooled: torch.Tensor = _Pool.apply(self, x)  # type: ignore[no-untyped-call]
        return pooled

    def differs(self, plain: Any) -> str | None:
        """In what it differs from torch's `plain`, where it does: on values that may come out in another way."""
        for dtype in _KINDS:
            for sizes in _STRANGE_SIZES:
                for channels_last in (False, True):
                    count = sizes[0] * sizes[1] * sizes[2] * sizes[3]
                    x = torch.tensor([STRANGE[(7 * n * n + n) % len(STRANGE)] for n in range(count)]).to(dtype)
                    x = x.view(sizes)
                    if channels_last:
                        x = x.contiguous(memory_format=torch.channels_last)
                    if fits((x, 2), {}) and (wrong := self.differs_on(plain, x)):
                        return wrong
        return None

    def differs_on(self, plain: Any, x: torch.Tensor) -> str | None:
        """The same on one input, whose gradients are not touched."""

        def gradient(result: torch.Tensor) -> torch.Tensor:
            numbers = torch.arange(result.numel(), dtype=torch.float32) % 7 - 3
            return torch.where(numbers == 1, torch.tensor(-0.0), numbers).to(x.dtype).view(result.shape)

        found = made_of(x, (lambda each: plain(each, 2), self), gradient)
        for what, one, other in zip(("result", "gradient"), *found, strict=True):
            if one.dtype != other.dtype or one.stride() != other.stride() or not same_bits(one, other):
                return f"its {what} differs from torch's for {str(x.dtype).removeprefix('torch.')}"
        return None

    def choose(self, x: torch.Tensor, form: torch.memory_format) -> tuple[torch.Tensor, torch.Tensor]:
        """The largest of each window, and which of the four it is."""
        n, c, h, w = x.shape
        pooled = torch.empty((n, c, h // 2, w // 2), dtype=x.dtype, memory_format=form)
        which = torch.empty((n, c, h // 2, w // 2), dtype=torch.uint8, memory_format=form)
        addresses = x.data_ptr(), pooled.data_ptr(), which.data_ptr()
        self._functions["forward", x.dtype](*addresses, *_images(x.shape, form))
        return pooled, which

    def spread(
        self, gradient: torch.Tensor, which: torch.Tensor, shape: torch.Size, form: torch.memory_format
    ) -> torch.Tensor:
        """The gradient of each element of the input, whose shape and memory format are given."""
        gradient = gradient.contiguous(memory_format=form)
        result = torch.empty(shape, dtype=gradient.dtype, memory_format=form)
        addresses = gradient.data_ptr(), which.data_ptr(), result.data_ptr()
        self._functions["backward", gradient.dtype](*addresses, *_images(shape, form))
        return result


def made_of(x: torch.Tensor, ways: Sequence[Any], gradient: Callable[[torch.Tensor], torch.Tensor]) -> list[Any]:
    """The result and the gradient of `x` that each of these ways makes; its own gradient is not touched.

    Args:
        gradient: of a result.
    """
    # Where what is saved is counted or taken elsewhere (checkpoints), nothing of this is.
    unseen = saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor)
    found = []
    with torch.inference_mode(False), torch.enable_grad(), unseen:
        for way in ways:
            leaf = x.detach().clone().requires_grad_()
            result = way(leaf)
            found.append((result.detach(), *torch.autograd.grad(result, leaf, gradient(result))))
    return found


class _Pool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kernel: MaxPool, x: torch.Tensor) -> torch.Tensor:
        form = torch.contiguous_format if x.is_contiguous() else torch.channels_last
        pooled, which = kernel.choose(x, form)
        ctx.save_for_backward(which)
        ctx.kernel, ctx.made_of = kernel, (x.shape, form)
        return pooled

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        (which,) = ctx.saved_tensors
        return None, _Spread.apply(ctx.kernel, gradient, which, *ctx.made_of)  # type: ignore[no-untyped-call]


class _Spread(torch.autograd.Function):
    """A function of its own, so that it can be differentiated again."""

    @staticmethod
    def forward(
        ctx: Any,
        kernel: MaxPool,
        gradient: torch.Tensor,
        which: torch.Tensor,
        shape: torch.Size,
        form: torch.memory_format,
    ) -> torch.Tensor:
        ctx.save_for_backward(which)
        try:
            return kernel.spread(gradient, which, shape, form)
        except Exception:  # in a backward pass nothing else can take its place
            return spread_plainly(gradient, which, shape, form)

    @staticmethod
    def backward(ctx: Any, again: torch.Tensor) -> Any:
        (which,) = ctx.saved_tensors
        height, width = 2 * which.shape[2], 2 * which.shape[3]
        four = [again[:, :, row:height:2, column:width:2] for row in (0, 1) for column in (0, 1)]
        return None, torch.stack(four).gather(0, which[None].long())[0], None, None, None


def spread_plainly(
    gradient: torch.Tensor, which: torch.Tensor, shape: torch.Size, form: torch.memory_format
) -> torch.Tensor:
    """What `MaxPool.spread` gives, by operations of torch."""
    height, width = 2 * which.shape[2], 2 * which.shape[3]
    result = torch.zeros(shape, dtype=gradient.dtype).contiguous(memory_format=form)
    for place in range(4):
        chosen = gradient.where(which == place, torch.zeros((), dtype=gradient.dtype))
        result[:, :, place // 2 : height : 2, place % 2 : width : 2] = chosen
    return result


def _function(library: Any, name: str) -> Any:
    import ctypes

    function = getattr(library, name)
    function.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int64] * 4
    function.restype = None
    return function


def _images(shape: torch.Size, form: torch.memory_format) -> tuple[int, int, int, int]:
    """Images, height, width, channels, as the functions want them."""
    n, c, h, w = shape
    return (n * c, h, w, 1) if form is torch.contiguous_format else (n, h, w, c)


def _both(value: Any, wanted: int) -> bool:
    return value == wanted or (isinstance(value, (list, tuple)) and set(value) == {wanted} and len(value) <= 2)


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """But for those of NaN, which torch itself writes in two ways."""
    bits = {2: torch.int16, 4: torch.int32}[one.element_size()]
    return bool(((one.view(bits) == other.view(bits)) | (one.isnan() & other.isnan())).all())
