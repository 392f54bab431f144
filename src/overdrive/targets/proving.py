"""Whether an artefact answers as the program does: its runner, in a fresh process, on inputs that were recorded."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from overdrive.evidence.replayed import TensorRow, measured, usable
from overdrive.evidence.rounding import judge
from overdrive.targets.order import calls_in, made_in
from overdrive.targets.result import AnswersProof

_PATIENCE = 1800.0  # seconds for all answers
_FEWEST = 3  # calls; see `evidence.replayed.FEWEST_STATES`


def prove(folder: Path, signature: Mapping[str, Any], sizes: Mapping[str, Sequence[int]]) -> AnswersProof | str:
    """The proof; or, in words, why there is none."""
    calls = sorted(calls_in(folder).glob("*.npz"))
    if len(calls) < _FEWEST:
        return f"its program made only {len(calls)} different calls, and a proof takes {_FEWEST}"
    answers = run(made_in(folder), calls, signature, folder)
    if isinstance(answers, str):
        return answers
    original: list[TensorRow] = []
    candidate: list[TensorRow] = []
    for number, (call, answer) in enumerate(zip(calls, answers, strict=True), start=1):
        with np.load(call, allow_pickle=False) as known, np.load(answer, allow_pickle=False) as found:
            for place, each in enumerate(signature["outputs"]):
                exact, own = known[f"exact {place}"], known[f"own {place}"]
                original.append(_row(number, each["name"], own, exact))
                candidate.append(_row(number, each["name"], found[each["name"]], exact))
    if why := usable(original):
        return why
    result = judge(original, candidate)
    if not result.holds:
        return result.sentence
    kinds = Counter(call.stem.partition(" ")[2] for call in calls)
    return AnswersProof("rounding", result.sentence, dict(kinds), sizes, result.record)


def run(made: Path, calls: Sequence[Path], signature: Mapping[str, Any], folder: Path) -> list[Path] | str:
    """Files with the runner's answers, one for each call; or what it said in their place."""
    files: list[Path] = []
    for call in calls:
        source, place = folder / f"{call.stem} inputs.npz", folder / f"{call.stem} answers.npz"
        with np.load(call, allow_pickle=False) as known:
            arrays = {each["name"]: known[f"input {number}"] for number, each in enumerate(signature["inputs"])}
        np.savez(source, **arrays)
        files += [source, place]
    # As whoever deploys it has it: nothing of ours is on the path.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-B", str(made / "run.py"), *map(str, files)]  # no `__pycache__` in the user's folder
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=_PATIENCE, check=False
        )
    except subprocess.TimeoutExpired:
        return f"its runner had not answered after {_PATIENCE:.0f} s"
    if done.returncode:
        last = [line.strip() for line in done.stderr.splitlines() if line.strip()][-1:]
        return f"its runner failed ({last[0][:300] if last else f'exit code {done.returncode}'})"
    return files[1::2]


def _row(call: int, name: str, found: Any, exact: Any) -> TensorRow:
    if found.shape != exact.shape:
        return TensorRow(call, "output", name, None, 0.0, 0)
    one, other = (np.asarray(each, np.float64).ravel() for each in (found, exact))
    return TensorRow(call, "output", name, **measured(one, other))
