"""Runs a program under techniques and makes every step again that can be; a line of JSON on the last line of stderr.

python -m tests.worker.sentinel_driver LEVEL TECHNIQUE[,TECHNIQUE...] SCRIPT [ARGS...]
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time

from overdrive.core.contract import Contract
from overdrive.core.program import Program
from overdrive.techniques.catalogue import also_in
from overdrive.worker.launch import execute
from overdrive.worker.recording import Recorder
from overdrive.worker.sentinels.sentinels import Sentinels
from overdrive.worker.session import Session

_PATIENCE = 60.0
_EVERY = int(os.environ.get("SENTINELS_EVERY", "1"))  # steps


class Eager(Sentinels):
    """Makes steps again, as many as it is to, and waits for what is told."""

    def _is_paid(self) -> bool:
        return self._steps() % _EVERY == 0

    def settle(self) -> None:
        limit = time.monotonic() + _PATIENCE
        while self._replay is not None and self._replay.mine is not None and time.monotonic() < limit:
            self._look()
            time.sleep(0.001)
        if self._replay is None and self._disarm is None:
            self._look_on()  # the next step, too


def main() -> None:
    level, names, *words = sys.argv[1:]
    also_in(["tests.worker.late_faults"])
    said: list[str] = []
    log = logging.getLogger("overdrive")
    log.setLevel(logging.INFO)
    handler = logging.StreamHandler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    log.addHandler(handler)
    recorder = Recorder()
    chosen = [(name, {}) for name in names.split(",")]
    sentinels = Eager(lambda: recorder.clock.steps, {name: Contract(level) for name, _ in chosen})
    left: list[tuple[str, str]] = []

    def settling(seams: object) -> None:
        session.seams.framework_arrived.subscribe(
            lambda: session.seams.between_steps.subscribe(lambda: None if sentinels.in_copy else sentinels.settle())
        )

    session = Session(chosen, [recorder, sentinels, settling], lambda *told: left.append(told))
    sentinels.session = session
    program = Program(words[1], tuple(words[2:]), True) if words[0] == "-m" else Program(words[0], tuple(words[1:]))
    code = 0
    try:
        with session:
            execute(program)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 0
    except Exception as error:
        code = 1
        said.append(repr(error))
    if sentinels.in_copy:
        os._exit(0)
    sys.stdout.flush()
    found = {"steps": recorder.clock.steps, "same": sentinels.same, "different": sentinels.different}
    print(json.dumps({**found, "off": sentinels.off, "left_out": left, "said": said, "code": code}), file=sys.stderr)


if __name__ == "__main__":
    main()
