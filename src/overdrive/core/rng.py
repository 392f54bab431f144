"""The states of all global random generators: Python's, NumPy's, and PyTorch's on the CPU and on every CUDA device.

Of the frameworks, only those are touched that the program has imported.
"""

from __future__ import annotations

import _random
import ctypes
import hashlib
import platform
import random
import struct
import sys
from dataclasses import dataclass
from functools import cache
from typing import Any


@dataclass
class States:
    """All of them at one moment (about 5 µs to read); None for a framework that was not imported then."""

    python: Any
    numpy: Any
    torch: Any
    cuda: list[Any]  # a state for each device, where CUDA was in use

    @classmethod
    def now(cls, with_cuda: bool = True) -> States:
        numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
        cuda = with_cuda and torch is not None and torch.cuda.is_initialized()
        return cls(
            _state_of_python(),
            _state_of_numpy(numpy) if numpy else None,
            torch.get_rng_state() if torch else None,
            torch.cuda.get_rng_state_all() if torch and cuda else [],
        )

    @staticmethod
    def of_host() -> tuple[Any, Any]:
        """Python's and NumPy's alone, in 1 µs where they are what they were when they were asked last."""
        numpy = sys.modules.get("numpy")
        return _state_of_python(), _state_of_numpy(numpy) if numpy else None

    @classmethod
    def mark_of_host(cls) -> tuple[Any, ...]:
        """What `same_mark` compares, in a quarter of the time: for who mostly needs no more than whether they drew."""
        inst: Any = random._inst
        if _marked:
            python, part, rand, generator, part_of_numpy = _marked[0]
            numpys = part_of_numpy.raw
            known = _seen and _seen[0][0] is generator and _seen[0][1] == numpys  # so no number is left over
            if known and inst is python and rand._bit_generator is generator:
                return part.raw, inst.gauss_next, numpys
        return _first_mark()

    def restore(self) -> None:
        random.setstate(self.python)
        if self.numpy is not None:
            sys.modules["numpy"].random.set_state(self.numpy)
            _seen.clear()
        if self.torch is not None:
            sys.modules["torch"].set_rng_state(self.torch)
        if self.cuda:
            sys.modules["torch"].cuda.set_rng_state_all(self.cuda)

    def same(self, other: States) -> bool:
        return (
            self.python == other.python
            and same_numpy(self.numpy, other.numpy)
            and _same_torch(self.torch, other.torch)
            and len(self.cuda) == len(other.cuda)
            and (not self.cuda or all(bool((a == b).all()) for a, b in zip(self.cuda, other.cuda, strict=True)))
        )

    def digest(self) -> str:
        """sha256 of all states."""
        version, numbers, spare = self.python
        digest = hashlib.sha256(f"{version} {spare}".encode() + _PYTHONS.pack(*numbers))
        if isinstance(self.numpy, tuple):
            digest.update(f"{self.numpy[0]} {self.numpy[2:]}".encode() + self.numpy[1].tobytes())
        else:
            digest.update(repr(self.numpy).encode())
        for each in [self.torch, *self.cuda]:
            digest.update(each.numpy().tobytes() if each is not None else b"")
        return digest.hexdigest()

    def plain(self) -> dict[str, Any]:
        """The states as tensors, lists and numbers, which `torch.load` reads without running code."""
        version, numbers, spare = self.python
        numpy = self.numpy
        if isinstance(numpy, tuple):
            numpy = [numpy[0], numpy[1].tolist(), *numpy[2:]]
        return {"python": [version, list(numbers), spare], "numpy": numpy, "torch": self.torch, "cuda": self.cuda}

    @classmethod
    def of_plain(cls, saved: dict[str, Any]) -> States:
        """Another process's, which may have had CUDA where this one has none."""
        version, numbers, spare = saved["python"]
        numpy = saved["numpy"]
        if isinstance(numpy, list):
            import numpy as np

            numpy = (numpy[0], np.array(numpy[1], dtype="uint32"), *numpy[2:])
        torch = sys.modules.get("torch")
        cuda = saved["cuda"] if torch is not None and torch.cuda.is_available() else []
        return cls((version, tuple(numbers), spare), numpy, saved["torch"] if torch is not None else None, cuda)


class Glimpse:
    """The states as memory, read in a third of the time: for who will hardly ever put them back.

    Not in it is whether half of a pair of NumPy's normal numbers is left over, which stays as it is. Where a memory's
    place is not known, it is `States`.
    """

    __slots__ = ("_cuda", "_memories", "_spare", "_states", "_torch")

    def __init__(self) -> None:
        known = _generators[0] if _generators else None
        if known is None or random._inst is not known[0] or known[1]._bit_generator is not known[2]:
            known = _find_generators()
            if known is None:
                self._states: States | None = States.now()
                return
        python, _, _, memories, torchs, cudas = known
        self._states = None
        self._memories = [each.raw for each in memories]
        self._spare = python.gauss_next
        self._torch = torchs.get_state()
        self._cuda = cudas.get_rng_state_all() if cudas is not None and cudas.is_initialized() else []

    def restore(self) -> None:
        if self._states is not None:
            self._states.restore()
            return
        known = _find_generators()
        assert known is not None
        python, _, _, memories, torchs, cudas = known
        for memory, before in zip(memories, self._memories, strict=True):
            memory.raw = before
        python.gauss_next = self._spare
        _seen.clear()
        torchs.set_state(self._torch)
        if self._cuda:
            cudas.set_rng_state_all(self._cuda)


# Python's generator, NumPy's and what it draws from, the memories of both, PyTorch's, and `torch.cuda` where this
# PyTorch was built with it: found once, since each name on the way takes 1 us where the caches are cold.
_generators: list[tuple[Any, Any, Any, tuple[Any, Any], Any, Any]] = []


def _find_generators() -> tuple[Any, Any, Any, tuple[Any, Any], Any, Any] | None:
    """None where a framework is missing, or where a generator is another than usual."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    python: Any = random._inst
    if numpy is None or torch is None or type(python) is not random.Random or not _lies_as_known():
        return None
    rand = numpy.random.mtrand._rand
    bits = rand._bit_generator
    if type(bits) is not numpy.random.MT19937:
        return None
    memories = (
        _memory_of(python),
        _bytes_at(bits.ctypes.state_address, _MT19937_BYTES),
    )
    cudas = torch.cuda if torch.backends.cuda.is_built() else None
    _generators[:] = [(python, rand, bits, memories, torch.default_generator, cudas)]
    return _generators[0]


_PYTHONS = struct.Struct("=625I")  # the place among 624 numbers, and these
# Its generator, a part of that one's memory, its spare number and its state, when it was last asked.
_seen_of_python: list[tuple[Any, bytes, Any, Any]] = []
# A part of the memory of each generator: its place and seven of its 624 numbers. Who draws moves the place, or comes
# around to it with other numbers. All of it would take a microsecond to look at, several times a step.
_PART = 4 * 8
_looked_at: list[tuple[Any, Any]] = []
_looked_at_of_numpy: list[tuple[Any, Any]] = []


def _state_of_python() -> Any:
    """As `random.setstate` takes it. Python makes 625 numbers of it, in 8 µs, and takes 5 to compare them: it is asked
    only where its memory is not what it was when it was asked last."""
    generator: Any = random._inst
    if not _looked_at or _looked_at[0][0] is not generator:
        if type(generator) is not random.Random or not _lies_as_known():
            return random.getstate()
        _looked_at[:] = [(generator, _bytes_at(id(generator) + object.__basicsize__, _PART))]
    part, spare = _looked_at[0][1].raw, generator.gauss_next
    for asked, then, spare_then, state in _seen_of_python:
        if asked is generator and then == part and spare_then == spare:
            return state
    state = random.getstate()
    if _looked_at[0][1].raw == part:  # else another thread has drawn meanwhile
        _seen_of_python[:] = [(generator, part, spare, state)]
    return state


def _bytes_at(address: int, size: int) -> Any:
    return (ctypes.c_char * size).from_address(address)


def _memory_of(generator: random.Random) -> Any:
    return _bytes_at(id(generator) + object.__basicsize__, _PYTHONS.size)


@cache
def _lies_as_known() -> bool:
    """Whether Python's generators have their numbers in the memory that is looked at."""
    if platform.python_implementation() != "CPython":
        return False
    if _random.Random.__basicsize__ < object.__basicsize__ + _PYTHONS.size:
        return False
    known = random.Random(1)
    numbers = known.getstate()[1]
    return bool(_memory_of(known).raw == _PYTHONS.pack(numbers[-1], *numbers[:-1]))


_MT19937_BYTES = 4 * 625  # numpy's `mt19937_state`: 624 numbers and the place among them
# numpy's generator, a part of its memory and its state, when it was last asked.
_seen: list[tuple[Any, bytes, Any]] = []


def _state_of_numpy(numpy: Any) -> Any:
    """As `set_state` takes it. numpy copies it number by number, in 25 µs: it is asked only where its memory is not
    what it was when it was asked last.

    Not in that memory is whether half of a pair of normal numbers is left over. None is made without drawing, so that
    where none was left over, none is.
    """
    generator = numpy.random.mtrand._rand._bit_generator
    if not _looked_at_of_numpy or _looked_at_of_numpy[0][0] is not generator:
        if type(generator) is not numpy.random.MT19937:
            return numpy.random.get_state(legacy=False)
        address = generator.ctypes.state_address + _MT19937_BYTES - _PART  # its place comes last
        _looked_at_of_numpy[:] = [(generator, _bytes_at(address, _PART))]
    part = _looked_at_of_numpy[0][1].raw
    for asked, then, state in _seen:
        if asked is generator and then == part:
            return state
    state = numpy.random.get_state()
    still = _looked_at_of_numpy[0][1].raw == part
    _seen[:] = [(generator, part, state)] if still and not state[3] else []
    return state


# Python's generator and a part of its memory, what numpy draws from, its generator and a part of that one's memory.
_marked: list[tuple[Any, Any, Any, Any, Any]] = []


def _first_mark() -> tuple[Any, ...]:
    """Of states where memory does not tell all: of another generator, or where NumPy has a number left over."""
    states = States.of_host()  # by which the memories are known
    _marked.clear()
    inst: Any = random._inst
    numpy = sys.modules.get("numpy")
    if numpy is None or not (_looked_at and _looked_at_of_numpy and _seen):
        return states
    rand = numpy.random.mtrand._rand
    (python, part), (generator, part_of_numpy) = _looked_at[0], _looked_at_of_numpy[0]
    if inst is not python or generator is not rand._bit_generator:
        return states
    _marked[:] = [(python, part, rand, generator, part_of_numpy)]
    return part.raw, inst.gauss_next, part_of_numpy.raw


def same_mark(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    """Whether neither Python's nor NumPy's generator was used between two of `States.mark_of_host`."""
    if len(one) == 2 and len(other) == 2:
        return bool(one[0] == other[0]) and same_numpy(one[1], other[1])
    return len(one) == len(other) and one == other


def same_numpy(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if one is None or other is None:
        # numpy was imported by the fetch itself: it draws nothing by being imported.
        return True
    if isinstance(one, dict) or isinstance(other, dict):  # of another generator than numpy's usual one
        return repr(one) == repr(other)
    return bool(one[0] == other[0] and (one[1] == other[1]).all() and one[2:] == other[2:])


def _same_torch(one: Any, other: Any) -> bool:
    if one is None or other is None:
        return True  # likewise
    return bool(one.numpy().tobytes() == other.numpy().tobytes())  # torch.equal takes three times as long


def reseed(seed: int) -> None:
    """Put all of them in another state. For forked children only: CUDA's are left alone."""
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.manual_seed(seed)
