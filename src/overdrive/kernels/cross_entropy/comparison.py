"""Whether the kernel's numbers are as good as torch's, on a call of the program's: both are held against 64 bits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks

from overdrive.kernels.cross_entropy.operator import MEAN, NONE, SUM, Call, computed, losses_of

_MOST = 1 << 22  # logits that are compared: 32 MiB in 64 bits. Of a larger call, some rows
_SUMS = 8 * 2.0**-24  # what sums and functions in 32 bits may come to lose, of the size of what they are made of


class CrossEntropy:
    """The kernel, as `techniques.compared` asks for it."""

    def __call__(self, call: Call) -> torch.Tensor:
        return computed(call)

    def differs(self, plain: Any) -> str | None:
        """Nothing that all calls share is compared: for each kind of call another kernel is compiled."""
        return None

    def differs_on(self, plain: Any, call: Call) -> str | None:
        """In what it is worse than torch's `plain` on this call, and on strange values put into it."""
        # Where what is saved is counted or taken elsewhere (checkpoints), nothing of this is.
        unseen = saved_tensors_hooks(_as_it_is, _as_it_is)
        with torch.inference_mode(False), torch.enable_grad(), unseen:
            rows, columns = call.logits.shape
            some = torch.linspace(0, rows - 1, min(rows, max(1, _MOST // columns)), dtype=torch.float64)
            chosen = some.round().long().to(call.logits.device)
            part = replace(call, logits=call.logits.detach()[chosen].clone(), target=call.target[chosen].clone())
            for given in (part, strange(part)):
                if wrong := worse(plain, given):
                    return wrong
            if len(chosen) < rows:
                _, kept, _ = losses_of(replace(call, logits=call.logits.detach()))
                found = kept[0, chosen].double() + kept[1, chosen].double()
                exact = part.logits.double().logsumexp(1)
                return _worse("result", found, exact, exact, 1.0)
        return None


def strange(call: Call) -> Call:
    """The same call with values that may come out otherwise: large logits, ties, minus infinity, an ignored row."""
    x, target = call.logits.clone(), call.target.clone()
    rows = len(x)
    x[0] += 1e4
    if rows > 1:
        own = x[1].gather(0, target[1].clamp(0, x.shape[1] - 1)[None])
        x[1, ::3] = -torch.inf
        x[1].scatter_(0, target[1].clamp(0, x.shape[1] - 1)[None], own)
    if rows > 2:
        x[2] = 1.5
    if rows > 3:
        target[3] = call.ignored
    if rows > 4 and call.reduction == NONE:
        x[4] = -torch.inf
    return replace(call, logits=x, target=target)


def worse(plain: Any, call: Call, ours: Callable[[Call], torch.Tensor] = computed) -> str | None:
    """In what `ours` is further from the exact result than rounding, 32-bit sums, or torch's `plain` are; or None."""
    (loss, slopes), (torchs, torchs_slopes), (exact, exact_slopes) = results(plain, call, ours)
    for what, one, other, truth, size in (
        ("result", loss, torchs, exact, loss_size(call)),
        ("gradient", slopes, torchs_slopes, exact_slopes, slope_size(call)),
    ):
        if one.dtype is not other.dtype or one.shape != other.shape or one.stride() != other.stride():
            return f"its {what} has another form than torch's"
        if wrong := _worse(what, one, other, truth, size):
            return wrong
    return None


def results(plain: Any, call: Call, ours: Callable[[Call], torch.Tensor] = computed) -> list[tuple[Any, Any]]:
    """The loss and its gradients: ours, torch's, and torch's in 64 bits."""
    found = []
    for way, kind in ((ours, None), (plain, None), (plain, torch.float64)):
        leaf = call.logits.detach().to(kind or call.logits.dtype).requires_grad_()  # where they lie, as they lie
        with torch.autocast(leaf.device.type, enabled=call.wide and kind is None):
            given = replace(call, logits=leaf)
            result = way(given) if way is ours else given.plainly(plain, leaf)
        (slopes,) = torch.autograd.grad(result, leaf, _gradient(call).to(result.dtype))
        found.append((result.detach(), slopes))
    return found


def _gradient(call: Call) -> torch.Tensor:
    """What comes back to the loss: not 1, and of each row another."""
    if call.reduction != NONE:
        return torch.tensor(2.5, device=call.logits.device)
    return torch.arange(len(call.logits), device=call.logits.device).remainder(7).sub(3.5)


def loss_size(call: Call) -> float:
    """Of what a loss is a difference or a sum, where that is more than it is itself."""
    return _heaviest(call) * (len(call.logits) if call.reduction == SUM else 1)


def slope_size(call: Call) -> float:
    """The same of the gradient of a logit: a sure row has next to none, made of a probability near 1, less 1."""
    size = float(_gradient(call).abs().max()) * _heaviest(call)
    if call.reduction == MEAN:
        counts = call.target[call.target != call.ignored]
        size /= max(float(len(counts) if call.weight is None else call.weight.double()[counts].sum()), 1e-30)
    return size


def _heaviest(call: Call) -> float:
    return 1.0 if call.weight is None else float(call.weight.abs().max())


def _worse(what: str, ours: torch.Tensor, torchs: torch.Tensor, exact: torch.Tensor, size: float) -> str | None:
    rounded = exact.to(ours.dtype)
    same = (ours == torchs) | (ours == rounded) | (ours.isnan() & (torchs.isnan() | exact.isnan()))
    known = ours.isfinite() & exact.isfinite()  # where torch's is not, it has left the range of 16 bits on its way
    if not bool((known | same).all()):
        return f"its {what} is not infinite or NaN where torch's is"
    if not bool(known.any()):
        return None
    mine, others = (excess(each[known], exact[known]) for each in (ours, torchs))
    allowed = _SUMS * max(size, float(exact[known].abs().max()) if what == "result" else 0.0)
    if ours.dtype is torch.float32:  # in 16 bits torch rounds what it goes on with, too, and may be far off
        allowed += 2 * others
    return None if mine <= allowed else f"its {what} is off by {mine:.2g} beyond rounding, torch's by {others:.2g}"


def excess(found: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest error beyond what rounding the exact result would come to."""
    kind = torch.finfo(found.dtype)
    rounding = exact.abs() * (kind.eps / 2) + kind.smallest_normal * kind.eps
    return float(((found.double() - exact).abs() - rounding).nan_to_num(torch.inf).max().clamp(min=0.0))


def _as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    return tensor
