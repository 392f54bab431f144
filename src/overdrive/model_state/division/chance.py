"""Random numbers inside of divided calls: drawn for the whole batch, as in one process, and then this rank's part.

So samples have the masks and the noise that they would have, and the generator ends as in one process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from overdrive.model_state.attention import attention_weights
from overdrive.seams.torch.draws import ATTENTION, DROPOUTS, IN_PLACE, LIKE

_RANDOM_BY_VALUE = (
    "poisson",
    "randperm",
    "rrelu",
    "rrelu_",
    "multinomial",
)  # how much they draw, or of what, hangs on values
_AFFINE = ("alpha_dropout", "feature_alpha_dropout")
_TRAINING = {**dict.fromkeys(DROPOUTS, 2), "rrelu": 3}  # where a function says whether it draws at all


class Deviation(BaseException):
    """A divided call did what its trial did not show: it is to be undone, and made whole. No `Exception`, so that
    nobody takes it for the program's own."""


@dataclass(frozen=True)
class Drawn:
    """One draw: of which function, and of which shape; or, with `dim`, of `per_row` along it for each row.

    `order`: of the dimensions in memory, in which random numbers come; empty where it is their own.
    """

    name: str
    shape: tuple[int, ...]
    dim: int | None = None
    per_row: int = 1
    order: tuple[int, ...] = ()


class Chance:
    """
    Attributes:
        noted: in trial calls, what is drawn; else None.
        others: draws for the whole batch as somebody else does it, if anybody does: as `answer` is called.
    """

    others: Callable[..., Any] | None = None

    def __init__(self) -> None:
        self.noted: list[Drawn] | None = None
        self._known: Sequence[Drawn] = ()
        self._draws = 0  # since then
        self._part: tuple[int, int, int] | None = None  # first row, rows, rows of the whole batch

    def begin(self, known: Sequence[Drawn], first: int, rows: int, all_rows: int) -> None:
        """From here to `end`, this rank's rows of what is drawn."""
        self._known, self._part, self._draws = known, (first, rows, all_rows), 0

    def end(self) -> None:
        self._part = None

    def answer(self, name: str, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if (self._part is None and self.noted is None) or not _draws(name, args, kwargs):
            return None
        shape = _shape(name, args, kwargs)
        if self.noted is not None:
            self.noted.append(Drawn(name, shape, order=() if name == ATTENTION else _order(args)))
        if self._part is None:
            return None
        drawn = self._find(name, shape)
        if drawn.dim is None:
            return None
        first, rows, all_rows = self._part
        each = drawn.per_row
        span = _Span(drawn.dim, first * each, rows * each, all_rows * each, drawn.order, self.others)
        return _drawn(name, call, args, kwargs, span)

    def _find(self, name: str, shape: tuple[int, ...]) -> Drawn:
        assert self._part is not None
        rows, found = self._part[1], []
        for place, each in enumerate(self._known):
            if each.name != name or len(each.shape) != len(shape):
                continue
            if each.dim is None and each.shape == shape:
                found.append((place, Drawn(name, ())))
            elif each.dim is not None and shape[each.dim] == rows * each.per_row:
                found.append((place, Drawn(name, (), each.dim, each.per_row, each.order)))
        now, self._draws = self._draws, self._draws + 1
        kinds = {each for place, each in found if place == now} or {each for _, each in found}
        if len(kinds) != 1:
            raise Deviation(f"it draws random numbers ({name}) as it did not before")
        return kinds.pop()


def compared(whole: Sequence[Drawn], part: Sequence[Drawn], all_rows: int, rows: int) -> list[Drawn]:
    """What these draws have to do with the batch, from a call on all rows and one on some.

    Raises:
        ValueError: with the reason why they cannot be divided.
    """
    if [each.name for each in whole] != [each.name for each in part]:
        raise ValueError("what it draws at random hangs on its batch")
    found = []
    for one, other in zip(whole, part, strict=True):
        if one.shape == other.shape:
            found.append(one)
            continue
        dims = [dim for dim, (a, b) in enumerate(zip(one.shape, other.shape, strict=False)) if a != b]
        if len(one.shape) != len(other.shape) or len(dims) != 1 or one.name in _RANDOM_BY_VALUE:
            raise ValueError(f"its random numbers ({one.name}) are not one a sample")
        per_row, left = divmod(one.shape[dims[0]], all_rows)
        if left or other.shape[dims[0]] != per_row * rows:
            raise ValueError(f"its random numbers ({one.name}) are not one a sample")
        found.append(Drawn(one.name, one.shape, dims[0], per_row, one.order))
    return found


@dataclass(frozen=True)
class _Span:
    dim: int
    first: int
    size: int
    whole: int
    order: tuple[int, ...] = ()
    others: Callable[..., Any] | None = None

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.narrow(self.dim, self.first, self.size)

    def shape(self, shape: Sequence[int]) -> list[int]:
        return [self.whole if dim == self.dim else size for dim, size in enumerate(shape)]

    def blank(self, like: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        """Of that shape, lying in memory as the whole does that `like` is a part of."""
        if not self.order:
            return like.new_empty(shape)
        places = [self.order.index(dim) for dim in range(len(shape))]
        return like.new_empty([shape[dim] for dim in self.order]).permute(places)

    def within_ones(self, part: torch.Tensor) -> torch.Tensor:
        before, after = self.shape(part.shape), self.shape(part.shape)
        before[self.dim], after[self.dim] = self.first, self.whole - self.first - self.size
        return torch.cat((part.new_ones(before), part, part.new_ones(after)), self.dim)


def _draws(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if name == ATTENTION:
        return float(args[4] if len(args) > 4 else kwargs.get("dropout_p", 0.0)) > 0
    if name in DROPOUTS and (args[1] if len(args) > 1 else kwargs.get("p", 0.5)) == 0:
        return False
    if name in _TRAINING:
        place = _TRAINING[name]
        return bool(args[place] if len(args) > place else kwargs.get("train", kwargs.get("training", False)))
    return True


def _shape(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, ...]:
    if name == "randperm":
        return (int(args[0]),)
    if name in ("rand", "randn", "randint"):
        return tuple(args[_sizes_at(name, args)] if "size" not in kwargs else kwargs["size"])
    if name == "normal":
        tensors = [each for each in (*args, *kwargs.values()) if isinstance(each, torch.Tensor)]
        if tensors:
            return tuple(torch.broadcast_shapes(*(each.shape for each in tensors)))  # type: ignore[no-untyped-call]
        return tuple(kwargs["size"] if "size" in kwargs else args[2])
    return tuple(args[0].shape if args else kwargs["input"].shape)


def _order(args: tuple[Any, ...]) -> tuple[int, ...]:
    """Of the dimensions of what is drawn for: a dropout behind an attention comes upon transposed ones."""
    x = args[0] if args else None
    if not isinstance(x, torch.Tensor) or x.is_contiguous():
        return ()
    strides = x.stride()
    return tuple(sorted(range(len(strides)), key=lambda dim: -strides[dim]))


def _sizes_at(name: str, args: tuple[Any, ...]) -> Any:
    for place, each in enumerate(args):
        if isinstance(each, (tuple, list, torch.Size)):
            return place
    return slice(0, None)


def _drawn(name: str, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], span: _Span) -> Any:
    if name == ATTENTION:
        return _attention(args, kwargs, span)
    if name in DROPOUTS:
        return _dropout(name, args, kwargs, span)
    if name in IN_PLACE:
        return _in_place(name, args, kwargs, span)
    if name in LIKE:
        like = span.blank(args[0], span.shape(args[0].shape))
        return span.of(call(like, *args[1:], **kwargs)).contiguous()
    if name == "bernoulli":
        return span.of(call(span.within_ones(args[0]), *args[1:], **kwargs))
    if name == "normal":
        return _normal(call, args, kwargs, span)
    if name in ("rand", "randn", "randint"):
        sizes = span.shape(_shape(name, args, kwargs))
        if "size" in kwargs:
            kwargs = {**kwargs, "size": sizes}
        else:
            place = _sizes_at(name, args)
            args = (*sizes,) if isinstance(place, slice) else (*args[:place], sizes, *args[place + 1 :])
        return span.of(call(*args, **kwargs)).contiguous()
    raise Deviation(f"its random numbers ({name}) cannot be drawn for a part")


def _dropout(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], span: _Span) -> Any:
    plain = name.removesuffix("_")
    function = getattr(torch, plain)
    x = args[0] if args else kwargs["input"]
    p = args[1] if len(args) > 1 else kwargs["p"]
    made = span.of(function(span.within_ones(x), p, True)) if plain in _AFFINE else x * _noise(plain, x, p, span)
    return made if name == plain else x.copy_(made)


def _noise(plain: str, x: torch.Tensor, p: float, span: _Span) -> torch.Tensor:
    """What this rank's rows are multiplied by."""
    shape = span.shape(x.shape)
    if plain == "feature_dropout":  # it draws for whole channels
        ones = x.new_ones([*shape[:2], *(1 for _ in shape[2:])])
        return span.of(torch.feature_dropout(ones, p, True))
    whole = span.blank(x, shape)
    if x.device.type != "cpu" or p >= 1:
        return span.of(torch.dropout(whole.fill_(1), p, True))
    with torch.no_grad():  # as torch does it there, without the product for other ranks' rows
        if span.others is not None:
            drawn = span.others("dropout", torch.dropout, (whole.fill_(1), p, True), {})
            if drawn is not None:
                return span.of(drawn)
        return span.of(whole.bernoulli_(1 - p)).div_(1 - p)


def _in_place(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], span: _Span) -> Any:
    x = args[0]
    if any(isinstance(each, torch.Tensor) and each.dim() for each in (*args[1:], *kwargs.values())):
        raise Deviation(f"its random numbers ({name}) cannot be drawn for a part")
    whole = getattr(span.blank(x.detach(), span.shape(x.shape)), name)(*args[1:], **kwargs)
    return x.copy_(span.of(whole))


def _normal(call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], span: _Span) -> Any:
    shape = _shape("normal", args, kwargs)

    def whole(each: Any) -> Any:
        if isinstance(each, torch.Tensor):
            return span.within_ones(each.expand(shape))
        return span.shape(each) if isinstance(each, (tuple, list, torch.Size)) else each

    made = call(*map(whole, args), **{name: whole(each) for name, each in kwargs.items()})
    return span.of(made).contiguous()


def _attention(args: tuple[Any, ...], kwargs: dict[str, Any], span: _Span) -> Any:
    """Where there is a dropout: no kernel drops for a part of a batch."""
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    given: dict[str, Any] = {**dict(zip(names, args, strict=False)), **kwargs}
    q, k, v, mask = given["query"], given["key"], given["value"], given.get("attn_mask")
    if given.get("enable_gqa"):
        raise Deviation("its attention with grouped queries drops out")
    weights = attention_weights(q, k, mask, bool(given.get("is_causal")), given.get("scale"))
    return _dropout("dropout", (weights, given["dropout_p"], True), {}, span) @ v
