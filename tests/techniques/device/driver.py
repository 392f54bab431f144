"""Runs a program under `device` on the stand-in: `python -m tests.techniques.device.driver RECORD PROGRAM ARGS...`"""

from __future__ import annotations

import json
import sys

from overdrive.core.program import Program
from overdrive.techniques.catalogue import catalogue
from overdrive.worker.launch import execute
from overdrive.worker.recording import Recorder
from overdrive.worker.session import Session
from tests.techniques.device.standin import There


def main() -> None:
    record, target, arguments = sys.argv[1], sys.argv[2], tuple(sys.argv[3:])
    module = target == "-m"
    program = Program(arguments[0], arguments[1:], True) if module else Program(target, arguments, False)
    place, recorder = There(), Recorder(losses=True)
    catalogue()["device"].place = lambda: place  # type: ignore[attr-defined]
    session = Session([("device", {})], [recorder])
    try:
        with place, session:
            execute(program)
    finally:
        parameters = [p for each in recorder.optimizers for group in each.param_groups for p in group["params"]]
        seen = {
            "left_out": session.seams.left_out,
            "losses": recorder.losses(),
            "operations": place.operations,
            "sent": place.sent,
            "brought": place.brought,
            "there_afterwards": sum(place.has(each) for each in parameters),
            "steps": recorder.clock.steps,
        }
        with open(record, "w") as file:
            json.dump(seen, file)


if __name__ == "__main__":
    main()
