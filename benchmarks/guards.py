"""What the guards and audits of a plan cost: their share of a run's wall time, measured inside the run.

    python benchmarks/guards.py TECHNIQUE[,TECHNIQUE...] SCRIPT [ARGS...]

One line of JSON: seconds in all, and of these looks at data sets, audits (processes beside the program not counted) and
what makes a model's call undoable. The timers themselves are counted: about 0.2 µs a call.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import runpy
import sys
import time
from collections import defaultdict
from typing import Any

from overdrive.datacache.audit import Audits
from overdrive.datacache.cached_dataset import CachedDataset
from overdrive.seams.torch import models
from overdrive.worker.session import Session

_GUARDS = {
    "looks": [(CachedDataset, "changed"), (CachedDataset, "touched")],
    "audits": [(CachedDataset, "have_audited"), (Audits, "look")],
    "undoing": [(models._Calls, "_before"), (models._Calls, "_over")],
}


def timed(kind: type, name: str, spent: list[float]) -> None:
    plain = getattr(kind, name)

    def timed(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return plain(*args, **kwargs)
        finally:
            spent.append(time.perf_counter() - began)

    setattr(kind, name, timed)


def main() -> None:
    techniques, script, *args = sys.argv[1:]
    spent: dict[str, list[float]] = defaultdict(list)
    for guard, places in _GUARDS.items():
        for kind, name in places:
            timed(kind, name, spent[guard])
    sys.argv = [script, *args]
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    names = techniques.split(",")
    with Session([(name, {}) for name in names], [Audits(lambda: 0)]) as session:
        began = time.perf_counter()
        with contextlib.redirect_stdout(io.StringIO()) as output:
            runpy.run_path(script, run_name="__main__")
        wall = time.perf_counter() - began
        left_out = dict(session.seams.left_out)
    found = {"script": os.path.basename(script), "techniques": names, "left_out": left_out, "seconds": round(wall, 2)}
    for guard, seconds in spent.items():
        found[guard] = {"calls": len(seconds), "share": round(sum(seconds) / wall, 5)}
        if seconds:
            found[guard]["median_us"] = round(1e6 * sorted(seconds)[len(seconds) // 2], 1)
    print(json.dumps(found), output.getvalue()[-60:], file=sys.stdout)


if __name__ == "__main__":
    main()
