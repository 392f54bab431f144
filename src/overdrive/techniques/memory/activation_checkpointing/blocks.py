"""Which blocks of a model to call again in the backward pass."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from overdrive.model_state.contents import Contents, fault_of_copies, is_copied_at_once
from overdrive.model_state.state import State
from overdrive.techniques.memory.activation_checkpointing.measure import Keys, MeasuredCall

_SHARES = (1.0, 0.5, 0.25, 0.125, 0.0625, 0.03125)  # of all that is kept: the largest block that is not taken apart
_LEAST_SAVED = 0.05  # of the peak; calling blocks again for less is time lost


class Repeatable(State):
    """Modules that would be called again, as they are now.

    Attributes:
        fault: why a second call might be another than the first, in words; empty where it would not.
        held: bytes, of the copies that each call takes of what their tensors hold.
    """

    def __init__(self, modules: Sequence[torch.nn.Module]) -> None:
        super().__init__(modules)
        self.modules = modules
        self.fault = self.reach.hidden or self.reach.outward or fault_of_copies(self.reach)
        held = () if self.fault else Contents(self.reach).tensors
        self.held = sum(each.nbytes for each in held if is_copied_at_once(each))


@dataclass(frozen=True)
class Recomputable:
    """A module, or those children of a Sequential from `start` to `stop`."""

    module: torch.nn.Module
    repeatable: Repeatable
    inside: Keys  # what it alone keeps
    start: int = 0
    stop: int = 0


@dataclass(frozen=True)
class BlockChoice:
    blocks: list[Recomputable]
    peak: int  # bytes, estimated
    again: int  # bytes that are made again


def choose(model: torch.nn.Module, measured: MeasuredCall, budget: float) -> BlockChoice | None:
    """The blocks with the least to make again so that no more than `budget` of all bytes is in memory at a time.

    Where none reach that, those that come nearest. None where it is not worth while.
    """
    total, finder = measured.total, _Finder(measured)
    choices = [finder.of_size(model, budget * total, share * total) for share in _SHARES]
    choices = [each for each in choices if each.peak <= (1 - _LEAST_SAVED) * total]
    within = [each for each in choices if each.peak <= budget * total]
    if within:
        return min(within, key=lambda each: each.again)
    return min(choices, key=lambda each: each.peak, default=None)


class _Finder:
    def __init__(self, measured: MeasuredCall) -> None:
        self._measured = measured
        self._known: dict[tuple[torch.nn.Module, ...], Repeatable] = {}

    def of_size(self, model: torch.nn.Module, room: float, largest: float) -> BlockChoice:
        measured = self._measured
        blocks = sorted(self._blocks(model, largest, top=True), key=lambda block: -measured.bytes(block.inside))
        total, gone, most, held = measured.total, 0, 0, 0
        chosen: list[Recomputable] = []
        for block in blocks:
            if chosen and total - gone + most + held <= room:
                break
            size = measured.bytes(block.inside)
            chosen.append(block)
            gone, most, held = gone + size, max(most, size), held + block.repeatable.held
        return BlockChoice(chosen, total - gone + most + held, gone)

    def _blocks(self, module: torch.nn.Module, largest: float, top: bool = False) -> Iterator[Recomputable]:
        kept = self._measured.modules.get(module)
        if kept is not None and not top and kept.safe and not kept.written and self._stays(module):
            inside = kept.saved - kept.given - kept.returned
            if 0 < self._measured.bytes(inside) <= largest and (found := self._repeatable(module, inside)):
                yield Recomputable(module, found, inside)
                return
        children = list(module.children())
        blocks = [block for child in children for block in self._blocks(child, largest)]
        if type(module) is torch.nn.Sequential and kept is not None and "forward" not in vars(module):
            blocks = max(blocks, self._runs(module), key=self._saved)
        yield from blocks

    def _saved(self, blocks: list[Recomputable]) -> int:
        """Bytes, where all of these are called again, one at a time."""
        sizes = [self._measured.bytes(block.inside) for block in blocks]
        return sum(sizes) - max(sizes, default=0) - sum(block.repeatable.held for block in blocks)

    def _stays(self, module: torch.nn.Module) -> bool:
        """Whether it finds what it was given once more: where others may write to it, PyTorch refuses to go back."""
        return "forward" not in vars(module) and self._measured.modules[module].made <= self._measured.sizes.keys()

    def _repeatable(self, module: torch.nn.Module, inside: Keys, *more: torch.nn.Module) -> Repeatable | None:
        modules = (module, *more)
        found = self._known.get(modules)
        if found is None:
            found = self._known[modules] = Repeatable(modules)
        return None if found.fault or found.held >= self._measured.bytes(inside) else found

    def _runs(self, module: torch.nn.Module) -> list[Recomputable]:
        """A flat Sequential in as many runs as each has children."""
        modules, children = self._measured.modules, list(module.children())
        if len(set(children)) < len(children) or not all(each in modules for each in children):
            return []
        length = math.ceil(math.sqrt(len(children)))
        found, start = [], 0
        for stop in range(1, len(children) + 1):
            if stop < len(children) and (stop - start < length or not self._stays(children[stop])):
                continue
            run = [modules[each] for each in children[start:stop]]
            inside: Keys = set().union(*(each.saved for each in run)) - run[0].given - run[-1].returned
            written: Keys = set().union(*(each.written for each in run))
            if all(each.safe for each in run) and self._stays(children[start]) and not written & run[0].given:
                repeatable = self._repeatable(children[start], inside, *children[start + 1 : stop])
                if repeatable and self._measured.bytes(inside):
                    found.append(Recomputable(module, repeatable, inside, start, stop))
            start = stop
        return found
