"""One epoch of a loader: which of its batches are taken from the forked copy, and which are fetched here."""

from __future__ import annotations

import time
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from overdrive.datacache.layout import Unfit
from overdrive.datacache.offers import Give, tensors_in
from overdrive.techniques.data.prefetch import generators
from overdrive.techniques.data.prefetch.forerunner import Forerunner, Made, text_of
from overdrive.techniques.data.prefetch.parcel import Parcel, pack

if TYPE_CHECKING:
    from overdrive.techniques.data.prefetch.iterator import Ahead

# Handing a batch over takes 0.2 ms and more (two states of all generators, a pipe, a copy).
LEAST_SECONDS = 0.0005
# The longest that a batch is waited for, in seconds, or 20 times what fetching one takes: a fork of a process
# with threads can find a lock taken for ever.
PATIENCE = 5.0
# What is left of an epoch must take that many times as long as starting a forked copy: a short one is left alone.
LEAST_STARTS = 4.0
# A program that takes the first batch only, as in next(iter(loader)), must not pay for a fork each time.
_TAKEN_FIRST = 2


@dataclass(frozen=True)
class Held:
    made: Made
    batch: Any
    copies: list[tuple[Any, Any, Give]]  # tensors of the batch, the device, and what hands over the copy there


class Course:
    """One epoch of a loader: one iterator, and the forked copy that runs ahead of it."""

    def __init__(self, ahead: Ahead) -> None:
        self._ahead = ahead
        self._taken = 0
        self._runner: Forerunner | None = None
        self._surroundings: Any = None
        self._ends: Any = None
        self._held: Held | None = None  # taken from the forked copy already, to be copied to the GPU

    @property
    def running(self) -> bool:
        return self._runner is not None

    def next_batch(self, iterator: Any) -> Any:
        try:
            index = iterator._next_index()  # the program's own draw, at its own time
        except BaseException:
            self.end()
            raise
        if self._runner is not None and not self._runner.mine:
            self._runner = self._held = None
        made = self._made(index)
        if made is None or not self._ahead.trusted:
            batch = self._fetch(iterator, index, made)
        else:
            batch = self._accept(iterator, index, made)
        self._taken += 1
        self._copy_next()
        if self._runner is None and self._ahead.refused is None:
            self._start(iterator)
        return batch

    def end(self) -> None:
        self._held = None
        if self._runner is not None:
            self._runner = None
            self._ends()

    def _miss(self, reason: str) -> None:
        self.end()
        if reason != "its batches grow":
            self._ahead.miss(reason)

    def _made(self, index: Any) -> Made | None:
        """What the forked copy has made for this index in this state of the program, if it has."""
        if self._runner is None:
            return None
        try:
            lack = self._unlike()
            if lack:
                made = Made(lack)
            elif self._held is not None:
                made = self._held.made
            else:
                made = self._runner.next(max(PATIENCE, 20 * self._ahead.seconds))
            lack = made.lack or _mismatch(made, index)
        except Exception as error:  # ours: the program must not meet it
            lack = f"{type(error).__name__}: {error}"
        if not lack:
            return made
        self._miss(lack)
        return None

    def _unlike(self) -> str:
        """In what the program is not as it was when the forked copy began; nothing, if it is."""
        if self._ahead.disturbed():
            return "the data set is written to all the time"
        if self._surroundings != _surroundings():
            return "the program switches gradients, autocast or the like between its batches"
        return ""

    def _accept(self, iterator: Any, index: Any, made: Made) -> Any:
        try:
            held = self._held or self._hold(made)
            for name, state in (made.after or {}).items():
                generators.restore(name, state)
        except Exception as error:
            self._ahead.refuse(f"{type(error).__name__}: {error}")
            self.end()
            return iterator._dataset_fetcher.fetch(index)
        self._held = None
        self._ahead.hit()
        self._ahead.manager.taken += 1
        for tensor, device, give in held.copies:
            self._ahead.manager.offers.add(tensor, device, give)
        return held.batch

    def _hold(self, made: Made) -> Held:
        """Take the batch out of the memory that is shared with the forked copy, and start copying it to the GPU."""
        copier = self._ahead.manager.copier()
        batch = made.batch(pinned=copier is not None and copier.needs_pinned)
        if self._runner is not None:
            self._runner.free()
        copies = [(each, copier.device, copier.start(each)) for each in tensors_in(batch)] if copier else []
        return Held(made, batch, copies)

    def _copy_next(self) -> None:
        """Where the next batch is ready, let it travel to the GPU while the program works on this one."""
        runner, ahead = self._runner, self._ahead
        if runner is None or not ahead.trusted:
            return
        try:
            if ahead.manager.copier() is not None and runner.ready() and self._surroundings == _surroundings():
                made = runner.next(1.0)
                self._held = Held(made, None, []) if made.lack else self._hold(made)
        except Exception as error:
            ahead.refuse(f"{type(error).__name__}: {error}")
            self.end()

    def _fetch(self, iterator: Any, index: Any, made: Made | None) -> Any:
        before = generators.states() if made is not None else {}
        began = time.perf_counter()
        try:
            batch = iterator._dataset_fetcher.fetch(index)
        except BaseException:
            self.end()
            raise
        if self._ahead.refused is None:
            self._ahead.seconds = time.perf_counter() - began
            try:
                parcel = pack(batch)
                self._ahead.largest = max(self._ahead.largest, parcel.size)
                if made is not None:
                    self._compare(parcel, before, made)
            except Exception as error:
                self._ahead.refuse(str(error))
                self.end()
        return batch

    def _compare(self, parcel: Parcel, before: dict[str, generators.Told], made: Made) -> None:
        after = generators.states()
        drawn = generators.drawn_from(before, after)
        assert made.memory is not None
        if not parcel.is_in(made.told, made.memory) or {name: after[name] for name in drawn} != made.after:
            raise Unfit("its samples come out differently in a forked process")
        self._ahead.compared += 1
        if self._runner is not None:
            self._runner.free()
        self._ahead.hit()

    def _start(self, iterator: Any) -> None:
        ahead = self._ahead
        ahead.goes_on = ahead.goes_on or self._taken >= _TAKEN_FIRST
        if not ahead.goes_on or not ahead.manager.room() or not self._pays(iterator):
            return
        try:
            ahead.prepare(iterator)
            runner = Forerunner(iterator, ahead.manager.depth, ahead.slot_bytes(), ahead.disturbed)
        except Exception as error:
            ahead.refuse(str(error) if isinstance(error, Unfit) else f"{type(error).__name__}: {error}")
            return
        ahead.start_seconds = runner.start_seconds
        self._surroundings = _surroundings()
        self._runner = runner
        self._ends = weakref.finalize(self, runner.end)

    def _pays(self, iterator: Any) -> bool:
        """Whether what is left of the epoch is worth a fork."""
        ahead = self._ahead
        if ahead.seconds < LEAST_SECONDS:
            return False
        try:
            left = len(iterator) - self._taken
        except Exception:  # it need not have a length
            return True
        return left > 1 and left * ahead.seconds > LEAST_STARTS * ahead.start_seconds


def _mismatch(made: Made, index: Any) -> str:
    if made.index != text_of(index):
        return "its sampler follows what the program does"
    for name, before in (made.before or {}).items():
        if generators.digest(generators.state(name)) != before:
            return "fetching a sample draws random numbers, and so does the program between its batches"
    return ""


def _surroundings() -> tuple[Any, ...]:
    """What a program can switch that changes how tensors are made."""
    import torch

    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.is_autocast_enabled("cpu"),
        torch.are_deterministic_algorithms_enabled(),
    )
