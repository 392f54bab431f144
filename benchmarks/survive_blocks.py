"""One run under `--survive` in which recording is on and off in turn: what it costs, with the noise of one process.

    python benchmarks/survive_blocks.py TOLD run --survive=FOLDER ... SCRIPT [ARGS...]

Blocks of steps come in pairs, one on and one off in random order. Writes JSON into TOLD: seconds a step of each pair;
and of the steps that are off how often what they ask was passed through, and what that takes each time, which a run
without `--survive` does not pay. A run measured so cannot be gone on with.
"""

from __future__ import annotations

import json
import os
import random
import runpy
import sys
import timeit
from pathlib import Path
from time import perf_counter as clock  # before the program's lines are told recorded times
from typing import Any

from overdrive.survive import survivor as room

_SECONDS = 0.15  # of a block
_LEAD = 3  # steps before the first block: they allocate
_OFF = "it is not recorded now"


class Switched(room.Survivor):
    """A `Survivor` that listens in every other block of steps."""

    told_at: Path

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._chance = random.Random(1)
        self._pairs: list[tuple[float, float]] = []
        self._pair: dict[bool, float] = {}
        self._left = _LEAD
        self._lead = 0.0  # seconds of a step before the first block
        self._size = 0  # steps of a block; 0 before the first
        self._began = clock()
        self._passed = 0  # in one step, of what is recorded else
        self._seconds_passed = 0.0  # that a question takes longer if it is passed through than as PyTorch has it

    def aside(self) -> bool:
        self._passed += not self._size and self.why_not == _OFF
        return super().aside()

    def _step_ends(self, optimizer: Any) -> None:
        super()._step_ends(optimizer)
        self._left -= 1
        if self._left or self.elsewhere():
            return
        taken = clock() - self._began
        if not self._size and not self.why_not:  # what a step asks is counted in the next
            self._lead, self.why_not, self._left = taken / _LEAD, _OFF, 1
            return
        if self._size:
            self._pair[not self.why_not] = taken / self._size
            if len(self._pair) == 2:
                self._pairs.append((self._pair[True], self._pair[False]))
                self._pair = {}
        else:
            self._size = max(1, round(_SECONDS / self._lead))
            self._switch(False)
            self._seconds_passed = _passing()
        self._switch(self._chance.random() < 0.5 if not self._pair else not next(iter(self._pair)))
        self._left = self._size
        self._began = clock()

    def _switch(self, on: bool) -> None:
        self.why_not = "" if on else _OFF
        for point in self.calls._restful:
            point.rest(not on)

    def over(self, failure: BaseException | None) -> None:
        told = {"passed": self._passed, "pass": self._seconds_passed}
        cannot = "" if self.why_not in ("", _OFF) else self.why_not
        found = {"pairs": self._pairs, "block": self._size, "cannot": cannot, **told}
        self.told_at.write_text(json.dumps(found))
        os._exit(0 if failure is None else 1)


def _passing() -> float:
    import torch

    one, plain = torch.ones(()), torch._C.TensorBase.item
    asks = lambda: one.item(), lambda: plain(one)
    least = [min(timeit.repeat(ask, number=2000, repeat=7)) for ask in asks]
    return max(0.0, least[0] - least[1]) / 2000


def main() -> None:
    told, *words = sys.argv[1:]
    Switched.told_at = Path(told).resolve()
    room.Survivor = Switched  # type: ignore[misc]
    sys.argv = ["overdrive", *words]
    runpy.run_module("overdrive", run_name="__main__")


if __name__ == "__main__":
    main()
