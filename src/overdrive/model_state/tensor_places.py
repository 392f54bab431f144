"""Where words lie in this process's memory that say whether tensors lie where they lay, and how.

`Tensor.data_ptr`, `size` and `stride` take 0.6 µs together where the processor's caches are cold: of MobileNetV3's 312
tensors 0.2 ms before each call. Where PyTorch keeps what they read is found out by trying (C++: c10/core/TensorImpl.h,
StorageImpl.h). Where that fails, or a change is not seen, there are none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from overdrive.changes.word_places import WORD, Places, word_at
from overdrive.changes.words import Words
from overdrive.seams.torch.internals import become, impl_of, storage_id

_DIMENSIONS = 5  # of more the sizes lie elsewhere
_WORDS_OF_IMPL, _WORDS_OF_STORAGE = 24, 6  # that are searched


@dataclass(frozen=True)
class _Offsets:
    """In words: of a Python object's C++ one, and in that and its storage."""

    impl: int
    storage: int
    dimensions: int
    sizes: int
    strides: int
    offset: int
    memory: int
    kinds: tuple[int, ...]  # number format, negative or conjugated view


def places_of_tensor(tensor: torch.Tensor) -> Places | None:
    """That it has the same memory, format, shape and strides. Its storage must live as long as this is looked at."""
    known = tensor.dim() <= _DIMENSIONS and type(tensor) in (torch.Tensor, torch.nn.Parameter)
    return _places(tensor, _offsets()) if known and _all_is_seen() else None


def _places(tensor: torch.Tensor, at: _Offsets) -> Places:
    impl, storage, dims = impl_of(tensor), storage_id(tensor), range(tensor.dim())
    words = [at.storage, at.dimensions, at.offset, *at.kinds]
    words += [start + each for start in (at.sizes, at.strides) for each in dims]
    behind = [*(impl + WORD * each for each in words), storage + WORD * at.memory]
    return Places([id(tensor) + WORD * at.impl], behind)


@cache
def _offsets() -> _Offsets:
    """ValueError where one is not to be found."""
    sizes, strides, offset = (7, 11, 13), (1009, 101, 17), 19
    known = torch.empty(20_000).as_strided(sizes, strides, offset)
    impl = _words(impl_of(known), _WORDS_OF_IMPL)
    memory = known.data_ptr() - offset * known.element_size()
    plain, pairs = torch.zeros(3), torch.zeros(3, dtype=torch.complex64)
    return _Offsets(
        impl=_only(_words(id(known), type(known).__basicsize__ // WORD), impl_of(known)),
        storage=_only(impl, storage_id(known)),
        dimensions=_only(impl, len(sizes), *sizes),
        sizes=_only(impl, *sizes),
        strides=_only(impl, *strides),
        offset=_only(impl, offset),
        memory=_words(storage_id(known), _WORDS_OF_STORAGE).index(memory),  # its deleter has it once more
        kinds=(_other(plain, plain.view(torch.int32)), _other(pairs.imag, pairs.conj().imag)),
    )


def _words(address: int, number: int) -> list[int]:
    return [word_at(address + WORD * each) for each in range(number)]


def _other(one: torch.Tensor, other: torch.Tensor) -> int:
    """The only word that is another one in a tensor that is the one, and then the other."""
    tensor = torch.empty(0)
    tensor.data = one
    before = _words(impl_of(tensor), _WORDS_OF_IMPL)
    tensor.data = other
    now = _words(impl_of(tensor), _WORDS_OF_IMPL)
    (place,) = (each for each in range(_WORDS_OF_IMPL) if before[each] != now[each])
    return place


def _only(words: list[int], *wanted: int) -> int:
    """The only place where these stand in a row."""
    (place,) = (each for each in range(len(words)) if tuple(words[each : each + len(wanted)]) == wanted)
    return place


@cache
def _all_is_seen() -> bool:
    """Whether the words tell of each of these changes, and of nothing without one."""
    try:
        return all(told == due for told, due in _tried())
    except Exception:  # another PyTorch than those that were looked at
        return False


def _tried() -> Iterator[tuple[bool, bool]]:
    for change in _CHANGES:
        known = torch.nn.Parameter(torch.ones(6, 4, 2), requires_grad=False)
        held = known.detach()  # keeps its storage
        words = Words()
        words.add(lambda: True, _places(known, _offsets()))
        words.seal()
        with torch.inference_mode():
            known + 1
        yield words.changed(), False
        change(known)
        yield words.changed(), True
        del held


def _to(other: Callable[[Any], Any]) -> Callable[[Any], None]:
    def change(known: Any) -> None:
        known.data = other(known.data)

    return change


_CHANGES: tuple[Callable[[Any], object], ...] = (
    _to(torch.clone),
    _to(lambda data: data[1:]),
    _to(lambda data: data[:, 1:]),
    _to(lambda data: data.transpose(0, 1)),
    _to(lambda data: data.reshape(-1)),
    _to(lambda data: data[None, ..., None]),
    _to(lambda data: data.reshape(6, 2, 4)),
    _to(lambda data: data.as_strided((6, 4, 2), (8, 2, 0))),
    _to(lambda data: data.view(torch.int32)),
    lambda known: known.transpose_(0, 1),
    lambda known: known.resize_(3, 4, 2),
    lambda known: known.untyped_storage().resize_(1 << 20),
    lambda known: become(known, torch.nn.Parameter(torch.ones(6, 4, 2))),
)
