"""Public training scripts that are killed at random moments and gone on with: `overdrive verify --resume` of each.

python benchmarks/public/resume.py [--naive] [--only NAME,...] [--kills 5] [--seed 1] [--from FOLDER]

After `prepare.py`. A program is run with its arguments of programs.toml, or with `resumed`, where those are shorter.
`--naive`: the programs of tests/programs in their place.
Writes benchmarks/results/resume.json after each program, beside what is there, and resume.md, a table of all of it.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prepare import INTO, programs
from run import OVERDRIVE, RESULTS, ROOT, commit

from overdrive.machine.inventory import machine, versions

NAIVE = ROOT / "tests" / "programs"
Result = dict[str, Any]


def resumed(folder: Path, program: dict[str, Any], base: Path, kills: int, seed: int) -> Result:
    """Of one program, what `verify --resume` tells; or why it told nothing."""
    arguments = program.get("resumed", program["arguments"])
    with tempfile.TemporaryDirectory() as scratch:
        told = Path(scratch) / "resume.json"
        options = ("--resume", "--kills", str(kills), "--seed", str(seed), "--copy", str(base), "--json", str(told))
        done = subprocess.run(
            [*OVERDRIVE, "verify", *options, "--", program["script"], *arguments],
            cwd=folder,
            env={**os.environ, **program.get("environment", {})},
            text=True,
            stderr=subprocess.PIPE,
        )
        if not told.exists():
            return {"refused": done.stderr.strip()[-500:] or f"it ended with {done.returncode}"}
        found: Result = json.loads(told.read_text())
        return found


def naive() -> dict[str, dict[str, Any]]:
    """The programs of tests/programs, but for those that need a library which is not here."""
    sys.path.insert(0, str(NAIVE))
    from manifest import PROGRAMS

    found = {}
    for each in PROGRAMS:
        script, *arguments = each.command
        found[f"naive/{each.name}"] = {"script": script, "arguments": arguments, "needs": each.needs}
    return found


def table(results: Result) -> Iterator[str]:
    yield "| program | killed | gone on in the middle | begun anew | end | why |"
    yield "|---|---|---|---|---|---|"
    for name, found in results.items():
        if "refused" in found:
            yield f"| {name} | | | | refused | {found['refused'].splitlines()[-1]} |"
            continue
        differ = [what for what, same in found["same"].items() if not same]
        end = f"other: {', '.join([*differ, *found['other_files'][:3]])}" if differ else "bit for bit"
        counts = f"{len(found['killed_after'])} | {found['gone_on']} | {found['begun_anew']}"
        yield f"| {name} | {counts} | {end} | {'; '.join(found['reasons'])} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--naive", action="store_true", help="the programs of tests/programs")
    parser.add_argument("--only", default="", help="programs, with commas between")
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--from", dest="base", type=Path, default=INTO, help="where prepare.py laid the programs")
    parser.add_argument("--to", type=Path, default=RESULTS / "resume.json")
    options = parser.parse_args()
    known = naive() if options.naive else programs()
    for name in options.only.split(",") if options.only else known:
        program, base = known[name], NAIVE if options.naive else options.base.resolve() / name
        lacking = [each for each in program["needs"] if importlib.util.find_spec(each) is None]
        if lacking or not base.exists():
            print(f"{name}: left out, {', '.join(lacking) or 'prepare.py has not laid it'} is missing", flush=True)
            continue
        print(f"== {name}", flush=True)
        found = resumed(base / program.get("folder", "."), program, base, options.kills, options.seed)
        about = {"date": datetime.date.today().isoformat(), "commit": commit()}
        results: Result = json.loads(options.to.read_text()) if options.to.exists() else {}
        results[name] = {**found, **about, "machine": machine(), "versions": versions()}
        options.to.write_text(json.dumps(results, indent=1) + "\n")
        options.to.with_suffix(".md").write_text("\n".join(table(results)) + "\n")
    print(options.to.with_suffix(".md").read_text())


if __name__ == "__main__":
    main()
