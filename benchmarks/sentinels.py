"""What sentinels cost a run: their share of its wall time, measured inside the run.

    python benchmarks/sentinels.py TECHNIQUE[,TECHNIQUE...] SCRIPT [ARGS...]

One line of JSON. `in_program`: the program stood still for a fork or a hash. `steps_longer`: by how much steps with a
sentinel, and the two after each, were longer than the median of all; in it are the pages copied after the fork and the
threads begun anew. `beside`: processor time of copies over the cores, as if they took it all from the program.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import runpy
import statistics
import sys
import time
from collections import defaultdict
from typing import Any

from overdrive.machine.cpu import granted_cores
from overdrive.techniques.catalogue import catalogue
from overdrive.worker.recording import Recorder
from overdrive.worker.sentinels.processes import ForkServer
from overdrive.worker.sentinels.replay import SentinelReplay
from overdrive.worker.sentinels.sentinels import Sentinels
from overdrive.worker.session import Session

_AFTER = 2  # steps


class Timed(Sentinels):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.spent: dict[str, float] = defaultdict(float)
        self.at: list[tuple[int, float]] = []  # steps, and when their forks began
        self.times: list[float] = []

    def _stepped(self) -> None:
        if not self.in_copy:
            self.times.append(time.perf_counter())
        super()._stepped()

    def _fork(self, model: Any, began_at: float) -> None:
        super()._fork(model, began_at)
        if not self.in_copy:
            self.at.append((len(self.times), began_at))

    def _conclude(self, replay: SentinelReplay) -> None:
        self.spent["in_program"] += replay.in_program
        super()._conclude(replay)


def main() -> None:
    techniques, script, *args = sys.argv[1:]
    sys.argv = [script, *args]
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    names = techniques.split(",")
    recorder = Recorder()
    sentinels = Timed(lambda: recorder.clock.steps, {name: catalogue()[name].contract for name in names})
    session = sentinels.session = Session([(name, {}) for name in names], [recorder, sentinels])
    end = ForkServer.end

    def counted(self: ForkServer) -> float:
        seconds = end(self)
        sentinels.spent["beside"] += seconds / granted_cores()
        self.seconds = 0.0
        return seconds

    ForkServer.end = counted  # type: ignore[method-assign]
    with session:
        began = time.perf_counter()
        with contextlib.redirect_stdout(io.StringIO()):
            runpy.run_path(script, run_name="__main__")
        wall = time.perf_counter() - began
    if sentinels.in_copy:
        os._exit(0)
    steps = [later - earlier for earlier, later in zip(sentinels.times, sentinels.times[1:], strict=False)]
    usual = statistics.median(steps)
    # Its own step from the fork on: before that an epoch may have begun, with an evaluation of the last one.
    own = [sentinels.times[at] - began_at for at, began_at in sentinels.at if at < len(sentinels.times)]
    after = [step for at, _ in sentinels.at for step in steps[at : at + _AFTER]]
    longer = sum(own) + sum(after) - usual * (len(own) + len(after))
    found = {
        "script": os.path.basename(script),
        "techniques": session.active,
        "seconds": round(wall, 1),
        "steps": len(steps),
        "median_ms": round(1e3 * usual, 2),
        "made_again": len(sentinels.at),
        "same": sentinels.same,
        "different": sentinels.different,
        "off": sentinels.off,
        "steps_longer": round(longer / wall, 5),
        **{name: round(seconds / wall, 5) for name, seconds in sentinels.spent.items()},
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
