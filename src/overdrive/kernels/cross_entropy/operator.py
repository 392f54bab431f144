"""Cross-entropy of classes on a GPU, by `kernel.py`: the operators `overdrive::cross_entropy`, `::cross_entropy_back`.

Where a gradient is to be differentiated again, and where the kernel of the backward pass fails, torch's operations
take its place.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import torch

KINDS = (torch.float32, torch.bfloat16, torch.float16)
REDUCTIONS = ("none", "mean", "sum")
NONE, MEAN, SUM = range(3)
_NAMES = ("input", "target", "weight", "size_average", "ignore_index", "reduce", "reduction", "label_smoothing")
_DEFAULTS = (None, None, None, None, -100, None, "mean", 0.0)
_TENSORS = (torch.Tensor, torch.nn.Parameter)
_MOST_COLUMNS = 4096  # at a time
_LEAST_NUMBERS = 512  # in a program of the grid: several rows where there are few columns


@dataclass(frozen=True)
class Call:
    """One of `F.cross_entropy` that is done here."""

    logits: torch.Tensor  # rows × columns
    target: torch.Tensor
    weight: torch.Tensor | None
    ignored: int
    reduction: int
    smoothing: float
    wide: bool  # the result has 32 bits, whatever the logits have: under autocast

    @property
    def kind(self) -> tuple[Any, ...]:
        """What tells two calls apart that have to be compared with torch each. Rows are computed one like the other."""
        x = self.logits
        weight = None if self.weight is None else self.weight.dtype
        given = weight, self.reduction, self.smoothing > 0, self.wide
        return x.dtype, x.shape[1], x.stride(), x.numel() >> 31 > 0, x.requires_grad, x.device, *given

    def plainly(self, plain: Any, logits: torch.Tensor) -> torch.Tensor:
        """As torch computes it, in the numbers of these logits."""
        weight = self.weight
        if weight is not None and logits.dtype is torch.float64:
            weight = weight.double()
        result: torch.Tensor = plain(
            logits,
            self.target,
            weight,
            ignore_index=self.ignored,
            reduction=REDUCTIONS[self.reduction],
            label_smoothing=self.smoothing,
        )
        return result


def arguments(args: tuple[Any, ...], kwargs: dict[str, Any], least: int) -> Call | None:
    """Of a call of `F.cross_entropy` with `least` logits or more. None if it is not one that is done here."""
    given = dict(zip(_NAMES, _DEFAULTS, strict=True)) | dict(zip(_NAMES, args, strict=False)) | kwargs
    x, target, weight = given["input"], given["target"], given["weight"]
    ignored, smoothing, reduction = given["ignore_index"], given["label_smoothing"], given["reduction"]
    if len(given) > len(_NAMES) or given["size_average"] is not None or given["reduce"] is not None:
        return None
    if not _plain(x) or x.dim() != 2 or x.dtype not in KINDS or x.numel() < max(least, 1):
        return None
    # Of a part of a larger tensor torch keeps what it has computed; this keeps the part, and writes beside it count.
    if not x.is_contiguous() or x.untyped_storage().nbytes() != x.numel() * x.element_size():
        return None
    if not _plain(target) or target.dtype is not torch.int64 or target.shape != x.shape[:1]:
        return None
    if type(ignored) is not int or reduction not in REDUCTIONS:
        return None
    if type(smoothing) not in (int, float) or not 0 <= smoothing <= 1:
        return None
    wide = x.dtype is not torch.float32 and torch.is_autocast_enabled(x.device.type)
    if weight is not None and not (_plain(weight) and _weighs(weight, x, wide)):
        return None
    if target.device != x.device:
        return None
    return Call(x, target, weight, ignored, REDUCTIONS.index(reduction), float(smoothing), wide)


def _plain(x: Any) -> bool:
    return type(x) in _TENSORS and x.layout is torch.strided and not x.is_neg()


def _weighs(weight: torch.Tensor, x: torch.Tensor, wide: bool) -> bool:
    if weight.shape != x.shape[1:] or weight.device != x.device or weight.requires_grad:
        return False
    return weight.dtype is x.dtype or (wide and weight.dtype is torch.float32)


def computed(call: Call) -> torch.Tensor:
    """The loss."""
    return losses_of(call)[0]


def losses_of(call: Call) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The loss; of each row its largest logit and the logarithm of its sum; what a mean is divided by."""
    given = call.logits, call.target, call.weight, call.ignored, call.reduction, call.smoothing, call.wide
    return torch.ops.overdrive.cross_entropy(*given)  # type: ignore[no-any-return]


# -- the operators ----------------------------------------------------------------------------------------------------

_library: Any = torch.library.Library("overdrive", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define(
    "cross_entropy(Tensor logits, Tensor target, Tensor? weight, SymInt ignored, int reduction, float smoothing, "
    "bool wide) -> (Tensor, Tensor, Tensor)"
)
_library.define(
    "cross_entropy_back(Tensor gradient, Tensor logits, Tensor target, Tensor? weight, Tensor kept, Tensor count, "
    "SymInt ignored, int reduction, float smoothing) -> Tensor"
)


@dataclass(frozen=True)
class Tile:
    """What one program of the grid has at a time."""

    rows: int
    columns: int
    warps: int


def tile(columns: int) -> Tile:
    """For rows of so many columns."""
    width = min(1 << max(columns - 1, 1).bit_length(), _MOST_COLUMNS)
    rows = max(1, _LEAST_NUMBERS // width)
    return Tile(rows, width, 4 if rows * width <= 2048 else 8)


def _launch(function: Any, logits: torch.Tensor, smoothing: float, *given: Any) -> None:
    rows, columns = logits.shape
    has = tile(columns)
    there = torch.cuda.device(logits.device) if logits.is_cuda else contextlib.nullcontext()
    with there:
        function[(-(-rows // has.rows),)](
            *given,
            1 - smoothing,
            smoothing / columns,
            SMOOTH=smoothing > 0,
            APART=logits.stride(1) != 1,
            ROWS=has.rows,
            COLUMNS=has.columns,
            num_warps=has.warps,
            enable_fp_fusion=True,  # as it has been by default: Triton 3.9 warns of a change
        )


def _forward(
    logits: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    ignored: int,
    reduction: int,
    smoothing: float,
    wide: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    from overdrive.kernels.cross_entropy import kernel

    losses = logits.new_empty(logits.shape[0], dtype=torch.float32)
    kept = logits.new_empty((3 if reduction == MEAN else 2, logits.shape[0]), dtype=torch.float32)
    weight = None if weight is None else weight.contiguous()
    shares = kept[2] if reduction == MEAN else None
    of_rows = *logits.shape, *logits.stride(), target.stride(0), ignored
    _launch(kernel.forward, logits, smoothing, logits, target, weight, losses, kept[0], kept[1], shares, *of_rows)
    kind = torch.float32 if wide else logits.dtype
    count = kept[2].sum() if reduction == MEAN else losses.new_empty(0)
    if reduction == NONE:
        return losses.to(kind), kept, count
    return (losses.sum() / count if reduction == MEAN else losses.sum()).to(kind), kept, count


def _back(
    gradient: torch.Tensor,
    logits: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    kept: torch.Tensor,
    count: torch.Tensor,
    ignored: int,
    reduction: int,
    smoothing: float,
) -> torch.Tensor:
    from overdrive.kernels.cross_entropy import kernel

    slopes = _room(logits)
    weight = None if weight is None else weight.contiguous()
    whole = weight.sum(dtype=torch.float32) if weight is not None and smoothing else None
    of_rows = *logits.shape, *logits.stride(), target.stride(0), gradient.stride(0) if gradient.dim() else 0, ignored
    divided = count if reduction == MEAN else None
    given = gradient, logits, target, weight, kept[0], kept[1], divided, whole, slopes, *of_rows
    _launch(kernel.backward, logits, smoothing, *given)
    return slopes


def _room(logits: torch.Tensor) -> torch.Tensor:
    """For the gradient: memory of its own, since the logits are the program's, and it may go back a second time."""
    return logits.new_empty(logits.shape)


def slopes_plainly(
    gradient: torch.Tensor,
    logits: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    count: torch.Tensor,
    ignored: int,
    reduction: int,
    smoothing: float,
) -> torch.Tensor:
    """What `cross_entropy_back` gives, by operations of torch that can be differentiated."""
    columns = logits.shape[1]
    counts, inside = target != ignored, (target >= 0) & (target < columns)
    scale = gradient.float() / count if reduction == MEAN else gradient.float()
    scale = torch.where(counts, torch.where(inside, scale, torch.nan), 0.0)
    classes = torch.where(counts & inside, target, 0)
    likely = logits.float().softmax(1)
    each = torch.ones_like(likely[0]) if weight is None else weight.float()
    hit = torch.zeros_like(likely).scatter(1, classes[:, None], 1.0)
    slopes = ((1 - smoothing) * scale * each[classes])[:, None] * (likely - hit)
    if smoothing:
        slopes = slopes + (smoothing / columns * scale)[:, None] * (each.sum() * likely - each)
    return slopes.to(logits.dtype)


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    logits, target, weight, *ctx.call = inputs
    _, kept, count = output
    ctx.save_for_backward(logits, target, weight, kept, count)
    ctx.mark_non_differentiable(kept, count)
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, gradient: torch.Tensor | None, _kept: Any, _count: Any) -> Any:
    nothing = (None,) * 6
    if gradient is None:
        return None, *nothing
    try:
        logits, target, weight, kept, count = ctx.saved_tensors
    except RuntimeError as error:
        if "modified by an inplace operation" not in str(error):
            raise
        raise RuntimeError(
            "the logits of a cross-entropy were changed in place before its backward pass, which Overdrive's "
            f"`fast_cross_entropy` needs them for; without that technique this is allowed ({error})"
        ) from error
    call = ctx.call[:3]
    if not torch.is_grad_enabled():
        with contextlib.suppress(Exception):  # in a backward pass nothing else can take its place
            slopes = torch.ops.overdrive.cross_entropy_back(gradient, logits, target, weight, kept, count, *call)
            return slopes, *nothing
    return slopes_plainly(gradient, logits, target, weight, count, *call), *nothing


def _losses_like(
    logits: torch.Tensor, target: torch.Tensor, weight: Any, ignored: int, reduction: int, smoothing: float, wide: bool
) -> Any:
    rows = logits.shape[0]
    kind = torch.float32 if wide else logits.dtype
    loss = logits.new_empty(rows if reduction == NONE else (), dtype=kind)
    kept = logits.new_empty((3 if reduction == MEAN else 2, rows), dtype=torch.float32)
    return loss, kept, logits.new_empty(() if reduction == MEAN else 0, dtype=torch.float32)


def _slopes_like(gradient: Any, logits: torch.Tensor, *_: Any) -> torch.Tensor:
    return logits.new_empty(logits.shape)


for _device in ("CUDA", "CPU"):  # on the CPU in Triton's interpreter alone
    _library.impl("cross_entropy", _forward, _device)
    _library.impl("cross_entropy_back", _back, _device)
torch.library.register_fake("overdrive::cross_entropy", _losses_like, lib=_library)
torch.library.register_fake("overdrive::cross_entropy_back", _slopes_like, lib=_library)
torch.library.register_autograd("overdrive::cross_entropy", _differentiate, setup_context=_keep, lib=_library)
