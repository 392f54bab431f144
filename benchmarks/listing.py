"""What `overdrive search --list` finds of the naive programs and of public scripts: learning rate and batch size.

    python benchmarks/listing.py [--public FOLDER] [--only NAME ...]

The public scripts lie in FOLDER, as `benchmarks/public/prepare.py` makes it, and run in the Python that runs this.
Rows are added to results/search_list.json; those that are there are kept. The table is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import tomlkit

HERE = Path(__file__).parent
RESULT = HERE / "results" / "search_list.json"
NAIVE = HERE.parent / "tests" / "programs"

Job = tuple[str, Path, tuple[str, ...], dict[str, str]]


def naive() -> Iterator[Job]:
    sys.path.insert(0, str(NAIVE))
    from manifest import PROGRAMS

    for program in PROGRAMS:
        if all(find_spec(each) for each in program.needs):
            yield program.name, NAIVE, program.command, {}


def public(folder: Path) -> Iterator[Job]:
    for name, each in tomlkit.parse((HERE / "public" / "programs.toml").read_text()).unwrap().items():
        place = folder / name / each["folder"]
        if (place / each["script"]).exists():
            yield f"public/{name}", place, (each["script"], *each["arguments"]), each.get("environment", {})


def listed(job: Job) -> dict[str, object]:
    _, folder, words, environment = job
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [sys.executable, "-m", "overdrive", "search", "--list", "--json", file.name, *words]
        began = time.monotonic()
        done = subprocess.run(command, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True)
        seconds = time.monotonic() - began
        found = json.loads(Path(file.name).read_text())["parameters"] if done.returncode == 0 else []
    rows = {each["name"]: each for each in found}
    told = {kind: _told(rows.get(kind)) for kind in ("lr", "batch-size")}
    return {**told, "parameters": len(rows), "seconds": round(seconds, 1), "error": done.stderr.strip()[-200:]}


def _told(row: dict[str, str] | None) -> str:
    if row is None:
        return ""
    return f"{row['default']}: {row['place']}" + (f" → {row['moves']}" if row["moves"] else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--public", type=Path)
    parser.add_argument("--only", nargs="*", default=())
    options = parser.parse_args()
    rows = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    for job in [*naive(), *(public(options.public) if options.public else ())]:
        if (options.only and job[0] not in options.only) or (job[0] in rows and not options.only):
            continue
        rows[job[0]] = listed(job)
        RESULT.write_text(json.dumps(rows, indent=1) + "\n")
        print(job[0], rows[job[0]]["seconds"], rows[job[0]]["error"], file=sys.stderr, flush=True)
    print("| program | learning rate | batch size |\n|---|---|---|")
    for name, row in rows.items():
        print(f"| {name} | {row['lr'] or row['error'] or '–'} | {row['batch-size'] or '–'} |")


if __name__ == "__main__":
    main()
