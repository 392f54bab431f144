"""Technique `fft_convolution`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.techniques.technique import Knob, Settings, Technique

if TYPE_CHECKING:
    from overdrive.seams.hub import Handle, Seams

_TIMED = 3  # runs of each kind, of which the shortest counts, after one that warms up
_CLEAR_GAIN = 0.9  # the Fourier transform is taken where it needs less than this share of the time


class FftConvolution(Technique):
    """Computes convolutions with large kernels by Fourier transform, where that is faster.

    What it does: for convolutions of one or two dimensions with stride 1, transforms, multiplies and transforms
    back. The first call with each shape times both ways, forward and backward, on copies; the faster one is taken
    from then on. Where the program asks for deterministic algorithms nothing is timed: arithmetic is counted.

    When it helps: kernels of hundreds of elements or more, above all one for each channel. Training steps on one
    core of an AMD EPYC: 68 times (depthwise, 16 channels of 2,048, kernel 1,025; and 8 of 64x64, kernel 31x31),
    2.6 times (1 channel to 16 over 4,096, kernel 257).

    When it hurts: memory (the transforms are kept for the backward pass, in complex numbers), and the first
    call of each shape takes several times as long. Programs in 16 bits are left alone.

    What it watches: each call's arguments: shapes, types, padding, groups, gradients, autocast, whether deterministic
    algorithms are asked for. What would escape: inputs that come to span many orders of magnitude after the proof,
    whose small values then lose digits.

    Contract: rounding. The error grows with the logarithm of the size, but it is relative to the largest value
    and not to each: it falls to statistical where inputs span many orders of magnitude. What is chosen may
    differ from run to run (each choice keeps the contract); two runs need not have the same bits.

    Source: Mathieu, Henaff, LeCun, Fast Training of Convolutional Networks through FFTs, ICLR 2014.
    """

    name = "fft_convolution"
    programs = ("training", "inference")
    contract = Contract.ROUNDING
    fallback_contract = Contract.STATISTICAL
    targets = ("forward", "backward")
    expected_saving = 0.3
    switchable = True
    lost_when_killed = "which way is faster is timed anew in each process: two runs need not have the same bits"
    order = 37
    knobs = (Knob("least", 49, "elements of the smallest kernel to try it for", low=2),)

    def applies(self, facts: Facts) -> str | None:
        if facts.own_compile:
            return "the program compiles its model itself"
        least = int(self.defaults()["least"])
        if self.own(facts).get("largest_kernel", least) < least:
            return f"no convolution with stride 1 has a kernel of {least} elements or more"
        return None

    def observe(self, seams: Seams) -> Callable[[], Mapping[str, Any]]:
        models: list[Any] = []
        seams.optimizer_made.subscribe(lambda _, found: models.extend(found))
        return lambda: {
            "largest_kernel": max((_kernel_size(each) for model in models for each in model.modules()), default=0)
        }

    def install(self, seams: Seams, settings: Settings) -> Handle:
        least = int(settings["least"])
        chosen: dict[Any, bool] = {}  # by shapes and what else decides the time: whether the transform is taken

        def answer(call: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
            if len(arguments) < 2:
                return None
            weight = arguments[1]
            if weight.numel() < least or weight[0, 0].numel() < least:  # the first costs nothing
                return None
            padding = _padding(*arguments, **named)
            if padding is None:
                return None
            import torch

            signal, bias, groups = arguments[0], _bias(*arguments, **named), _groups(*arguments, **named)
            with_gradients = torch.is_grad_enabled() and (signal.requires_grad, weight.requires_grad)
            repeated = torch.are_deterministic_algorithms_enabled()
            form = signal.shape, weight.shape, signal.dtype, signal.device, tuple(padding), groups
            key = (*form, with_gradients, repeated)
            if key not in chosen:
                if repeated:
                    chosen[key] = _less_arithmetic(signal.shape, weight.shape, padding)
                else:
                    chosen[key] = _is_faster(call, arguments, named, padding, groups)
            return _convolve(signal, weight, bias, padding, groups) if chosen[key] else None

        seams.operator_called("conv").subscribe(answer)
        return seams.handle()


def _kernel_size(module: Any) -> int:
    """Elements of one kernel; 0 where the module is no convolution of one or two dimensions with stride 1."""
    if type(module).__name__ not in ("Conv1d", "Conv2d") or any(each != 1 for each in module.stride):
        return 0
    return math.prod(module.kernel_size)


def _bias(signal: Any, weight: Any, bias: Any = None, *_: Any, **named: Any) -> Any:
    return bias


def _groups(
    signal: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> int:
    return groups


def _padding(
    signal: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> list[tuple[int, int]] | None:
    """What is added on both sides of each dimension; None where this convolution is none of ours."""
    import torch

    from overdrive.seams.torch.tracing import transformed

    rank = weight.dim() - 2
    plain = (
        signal.dim() == weight.dim()
        and signal.dtype == weight.dtype
        and signal.dtype in (torch.float32, torch.float64)
        and type(weight) in (torch.Tensor, torch.nn.Parameter)
        and signal.device == weight.device
        and signal.device.type in ("cpu", "cuda")
        and not torch.is_autocast_enabled(signal.device.type)
        and signal.shape[1] == weight.shape[1] * groups
        and weight.shape[0] % groups == 0
        and (bias is None or bias.shape == weight.shape[:1])
        and all(each == 1 for each in (*_each(stride, rank), *_each(dilation, rank)))
        and signal.numel()
    )
    if not plain or transformed():
        return None
    sizes = weight.shape[2:]
    if padding == "same":  # torch puts the odd one at the end
        return [((size - 1) // 2, size - 1 - (size - 1) // 2) for size in sizes]
    ends = [0] * rank if padding == "valid" else _each(padding, rank)
    # Where the kernel is larger than the padded input the program gets torch's own error.
    fits = all(length + 2 * end >= size for length, end, size in zip(signal.shape[2:], ends, sizes, strict=True))
    return [(end, end) for end in ends] if fits else None


def _each(value: Any, rank: int) -> list[int]:
    values = [value] if isinstance(value, int) else list(value)
    return values * rank if len(values) == 1 else values


def _convolve(signal: Any, weight: Any, bias: Any, padding: list[tuple[int, int]], groups: int) -> Any:
    """Cross-correlation, as torch's convolutions are, through circular ones as long as the padded input.

    What wraps around in these falls on the places past the last whole overlap, which are cut off.
    """
    import torch

    axes = list(range(2, weight.dim()))
    lengths = [sum(ends) + signal.shape[axis] for axis, ends in zip(axes, padding, strict=True)]
    sizes = [_fast_size(length) for length in lengths]
    wide = torch.nn.functional.pad(signal, [end for ends in reversed(padding) for end in ends])
    signals = torch.fft.rfftn(wide, sizes, axes)
    kernels = torch.fft.rfftn(weight, sizes, axes).conj()
    batch, channels = signal.shape[:2]
    outputs = weight.shape[0]
    signals = signals.reshape(batch, groups, channels // groups, *signals.shape[2:])
    kernels = kernels.reshape(groups, outputs // groups, channels // groups, *kernels.shape[2:])
    if channels == groups:  # one input channel for each output: nothing is to be summed
        products = signals * kernels.transpose(1, 2).reshape(1, groups, -1, *kernels.shape[3:])
    else:
        products = torch.einsum("bgi...,goi...->bgo...", signals, kernels)
    whole = torch.fft.irfftn(products.reshape(batch, outputs, *products.shape[3:]), sizes, axes)
    for axis, length in zip(axes, lengths, strict=True):
        whole = whole.narrow(axis, 0, length - weight.shape[axis] + 1)
    return whole.contiguous() if bias is None else whole + bias.reshape(-1, *[1] * len(axes))


@cache
def _fast_size(length: int) -> int:
    """The smallest size from `length` on whose prime factors are 2, 3, 5 and 7, and which is even."""
    size = length + length % 2
    while True:
        rest = size
        for factor in (2, 3, 5, 7):
            while rest % factor == 0:
                rest //= factor
        if rest == 1:
            return size
        size += 2


def _is_faster(
    call: Callable[..., Any],
    arguments: tuple[Any, ...],
    named: dict[str, Any],
    padding: list[tuple[int, int]],
    groups: int,
) -> bool:
    """Measured on copies, as the program would use it: nothing of the program is touched."""
    import torch

    copies = tuple(
        each.detach().clone().requires_grad_(each.requires_grad) if isinstance(each, torch.Tensor) else each
        for each in arguments
    )
    wanted = [each for each in copies if isinstance(each, torch.Tensor) and each.requires_grad]
    bias = _bias(*copies, **named)
    ways = (lambda: call(*copies, **named), lambda: _convolve(copies[0], copies[1], bias, padding, groups))

    def seconds(way: Callable[[], Any]) -> float:
        _wait(copies[0])
        began = time.perf_counter()
        result = way()
        if result.requires_grad:
            torch.autograd.grad(result.sum(), wanted)
        _wait(copies[0])
        return time.perf_counter() - began

    try:
        taken = [[seconds(way) for way in ways] for _ in range(_TIMED + 1)][1:]
    except (RuntimeError, MemoryError):  # there is no memory for it
        return False
    direct, transformed = (min(each) for each in zip(*taken, strict=True))
    return bool(transformed < _CLEAR_GAIN * direct)


def _less_arithmetic(signal: Any, weight: Any, padding: list[tuple[int, int]]) -> bool:
    """Counted instead of measured; a transform's operations are taken as eight times as dear as a convolution's."""
    sizes = [_fast_size(length + sum(ends)) for length, ends in zip(signal[2:], padding, strict=True)]
    places = math.prod(
        length + sum(ends) - size + 1 for length, ends, size in zip(signal[2:], padding, weight[2:], strict=True)
    )
    direct = 2 * signal[0] * places * math.prod(weight)
    points = math.prod(sizes)
    transforms = signal[0] * (signal[1] + weight[0]) + weight[0] * weight[1]
    transformed = transforms * 2.5 * points * math.log2(points) + 4 * signal[0] * weight[0] * weight[1] * points
    return bool(8 * transformed < direct)


def _wait(tensor: Any) -> None:
    if tensor.is_cuda:
        import torch

        torch.cuda.synchronize()
