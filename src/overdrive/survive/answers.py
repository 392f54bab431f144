"""What Python takes from tensors, as JSON and back."""

from __future__ import annotations

import base64
import contextlib
import sys
from array import array
from collections.abc import Callable
from typing import Any

_SMALL = 1 << 16  # bytes of an array that counts for nothing
_MOST = 1 << 22  # read by the program at once: a sheet of sample images
_LONG = 1 << 13  # numbers of a list that is packed
_ALL = 1 << 27  # of all that are not small


class TooMuch(Exception):
    """A value that is too large for the journal; the message says what the program does."""


class Told:
    """The values of one process, as JSON."""

    def __init__(self) -> None:
        self._left = _ALL

    def __call__(self, value: Any) -> Any:
        """
        Raises:
            TooMuch: it is an array that is too large, or too much was in arrays so far.
        """
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(value, numpy.ndarray):
            self._take(value.nbytes)
            return {"array": base64.b64encode(value.tobytes()).decode()}
        if type(value) is list and len(value) > _LONG and (packed := _packed(value)):
            return packed
        if isinstance(value, complex):
            return {"complex": [value.real, value.imag]}
        return {"plain": value}

    def _take(self, size: int) -> None:
        if size > _MOST:
            raise TooMuch(f"it takes {size:,} bytes at once out of a tensor by .numpy()")
        if size > _SMALL:
            self._left -= size
        if self._left < 0:
            raise TooMuch(f"it takes more than {_ALL:,} bytes out of tensors by .numpy(), {size:,} of them at once")


def _packed(value: list[Any]) -> Any:
    """Numbers of a sampler, say, which shuffles a million of them in each epoch: as text they are twice as many bytes,
    and ten times as many where they are read. None where they are not of one kind."""
    kinds = set(map(type, value))
    with contextlib.suppress(OverflowError):
        for code, kind in (("i", int), ("q", int), ("d", float)):
            if kinds == {kind} and (code != "i" or -(1 << 31) <= min(value) <= max(value) < 1 << 31):
                return {"numbers": [code, base64.b64encode(array(code, value).tobytes()).decode()]}
    return None


def _unpacked(code: str, text: str) -> list[Any]:
    numbers = array(code)
    numbers.frombytes(base64.b64decode(text))
    return numbers.tolist()


def given(told: Any, tensor: Any, call: Callable[[], Any]) -> Any:
    if "array" in told:
        found = call()
        data = sys.modules["numpy"].frombuffer(base64.b64decode(told["array"]), dtype=found.dtype)
        if data.size != found.size:
            raise ValueError("an array that is taken from a tensor has another size")
        if not found.flags.writeable:
            return data.reshape(found.shape)
        found[...] = data.reshape(found.shape)
        return found
    if "numbers" in told:
        return _unpacked(*told["numbers"])
    if "complex" in told:
        return complex(*told["complex"])
    return told["plain"]


def shapes(result: Any) -> Any:
    return [list(each.shape) for each in (result if isinstance(result, tuple) else (result,))]


def of_shapes(result: Any, wanted: Any) -> Any:
    """`result`, with zeros in the place of what has another shape."""
    parts = result if isinstance(result, tuple) else (result,)
    made = tuple(
        each if list(each.shape) == shape else each.new_zeros(shape) for each, shape in zip(parts, wanted, strict=True)
    )
    return made if isinstance(result, tuple) else made[0]


def drawn(name: str, args: Any, kwargs: Any) -> Any:
    """In the place of a draw that refuses zeros for its probabilities; None for others, which are made."""
    if name != "multinomial":
        return None
    weights = args[0] if args else kwargs["input"]
    count = args[1] if len(args) > 1 else kwargs["num_samples"]
    return weights.new_zeros((*weights.shape[:-1], count)).long()


def closure_of(args: Any, kwargs: Any) -> tuple[Any, Any, Any]:
    """The closure that an optimizer's step is given, or None; and the arguments without it."""
    if "closure" in kwargs and kwargs["closure"] is not None:
        return kwargs["closure"], args, {name: each for name, each in kwargs.items() if name != "closure"}
    if args and callable(args[0]):
        return args[0], args[1:], kwargs
    return None, args, kwargs
