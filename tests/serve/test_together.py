"""Requests answered together: only where no answer depends on the others, and one that fails is alone in it."""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from overdrive.cli.serve import _together
from overdrive.serve.independent import found_together
from overdrive.serve.load import _still_open
from overdrive.serve.model import ServedModel, load
from overdrive.serve.waiting import Refused, WaitingRequests
from tests.serve.folders import SIGNATURE, exported

WEIGHTS = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)


def model(answer: Callable[[Any], Any], signature: Mapping[str, Any] = SIGNATURE) -> ServedModel:
    return ServedModel(
        "Net", signature, lambda inputs: {"output": answer(inputs["x"])}, lambda inputs: [inputs["x"]], "batch"
    )


def rows(x: Any) -> Any:
    return np.stack([row @ WEIGHTS for row in x])


def test_rows_by_themselves_are_the_same_in_every_bit() -> None:
    holds, why = found_together(model(rows), 8)
    assert holds and "the same in every bit as alone" in why


def rounded(x: Any) -> Any:
    return rows(x) * (np.float32(1 + 1e-7) if len(x) > 1 else np.float32(1))


def test_rounding_by_the_size_of_the_batch_is_told() -> None:
    holds, why = found_together(model(rounded), 8)
    assert holds and "but for rounding" in why


LEAKS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a mean over the batch": (lambda x: rows(x) - rows(x).mean(0), "depends on the others"),
    "a little of a neighbour": (lambda x: rows(x) + 1e-3 * np.roll(rows(x), 1, axis=0), "depends on the others"),
    "one scale for all": (lambda x: np.round(rows(x) / abs(x).max() * 127) * abs(x).max(), "depends on the others"),
    "the last is dropped": (lambda x: rows(x[:-1]) if len(x) > 2 else rows(x), "another number of rows"),
    "another precision": (
        lambda x: rows(x) if len(x) == 1 else rows(x).astype(np.float16).astype(np.float32),
        "not the one that it has alone",
    ),
}


@pytest.mark.parametrize("leak", LEAKS)
def test_what_depends_on_others_is_answered_alone(leak: str) -> None:
    answer, told = LEAKS[leak]
    holds, why = found_together(model(answer), 8)
    assert not holds and told in why


SEQUENCES = {
    **SIGNATURE,
    "inputs": [{"name": "x", "shape": ["batch", "size_1", 4], "dtype": "float32"}],
    "outputs": [{"name": "output", "shape": ["batch", "size_1", 4], "dtype": "float32"}],
    "dimensions": {"batch": {"min": 1}, "size_1": {"min": 1}},
}


def turned(x: Any) -> Any:
    """As tutorials turn a batch for a network that takes steps first: by `view`, which mixes rows."""
    steps = np.cumsum(x.reshape(x.shape[1], x.shape[0], 4), axis=0)
    return steps.reshape(x.shape)


def test_rows_that_are_mixed_in_sequences_are_seen_at_the_programs_own_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    folder = exported(tmp_path / "folder")
    (folder / "signature.json").write_text(json.dumps(SEQUENCES))
    usual = [{"shapes": {"x": [32, 5, 4]}}, {"shapes": {"x": [1, 2, 4]}}]
    (folder / "latency.json").write_text(json.dumps(usual))
    loaded = load(folder)
    sys.modules.pop("checks")
    served = replace(loaded, answer=lambda inputs: {"output": turned(inputs["x"])})
    assert served.made_up(3, np.random.default_rng(0))["x"].shape == (3, 5, 4)
    holds, why = found_together(served, 8)
    assert not holds and "of 2 inputs together" in why


@pytest.mark.parametrize("told", ["", "[]", '[{"shapes": {}}]', '[{"shapes": {"x": [1]}}]', '{"shapes": 1}', "[1]"])
def test_a_folder_that_does_not_tell_its_usual_sizes_is_served(
    told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    folder = exported(tmp_path / "folder")
    (folder / "latency.json").write_text(told)
    assert load(folder).made_up(2, np.random.default_rng(0))["x"].shape == (2, 4)
    sys.modules.pop("checks")


def test_one_that_fails_does_not_take_the_others_with_it() -> None:
    def answer(x: Any) -> Any:
        if (x < 0).any():
            raise ValueError("below 0")
        return rows(x)

    batches: list[tuple[int, int]] = []
    waiting = WaitingRequests(
        model(answer), 10, most=4, linger=5.0, told=lambda requests, count, _: batches.append((requests, count))
    )
    given = [np.full((1, 4), value, np.float32) for value in (1, -1, 2, 3)]
    asked = [waiting.ask({"x": each}) for each in given]
    with pytest.raises(ValueError, match="below 0"):
        asked[1].result(10)
    for number in (0, 2, 3):
        assert np.array_equal(asked[number].result(10)["output"], rows(given[number]))
    waiting.end()
    assert batches == [(4, 4)]


def test_other_shapes_are_not_put_together_and_nothing_is_taken_beyond_the_limit() -> None:
    batches: list[int] = []
    waiting = WaitingRequests(
        model(lambda x: x), 2, most=4, linger=0.3, told=lambda requests, count, _: batches.append(requests)
    )
    one = waiting.ask({"x": np.zeros((1, 4), np.float32)})
    other = waiting.ask({"x": np.zeros((1, 5), np.float32)})
    with pytest.raises(Refused, match="2 requests wait already"):
        waiting.ask({"x": np.zeros((1, 4), np.float32)})
    assert one.result(10)["output"].shape == (1, 4) and other.result(10)["output"].shape == (1, 5)
    waiting.end()
    assert batches == [1, 1]


def test_a_connection_that_the_server_has_closed_is_not_used_again() -> None:
    def connection(ended: bool) -> Any:
        reader = SimpleNamespace(at_eof=lambda: ended)
        return reader, SimpleNamespace(is_closing=lambda: False, close=lambda: closed.append(reader))

    closed: list[Any] = []
    alive, gone = connection(False), connection(True)
    free = deque([alive, gone])
    assert _still_open(free) is not None and closed == [gone[0]] and not free
    assert _still_open(deque([gone])) is None


CODES = {**SIGNATURE, "dimensions": {"batch": {"min": 1, "max": 4}}, "values": {"x": {"min": -0.5, "max": 0.25}}}


def test_made_up_inputs_keep_to_what_was_proved() -> None:
    """A runner refuses others: none could be answered together."""

    def answer(x: Any) -> Any:
        if (x < -0.5).any() or (x > 0.25).any() or len(x) > 4:
            raise ValueError("not proved")
        return rows(x)

    made = model(answer, CODES).made_up(3, np.random.default_rng(0))["x"]
    assert made.dtype == np.float32 and made.min() == -0.5 and made.max() == 0.25
    most, why = _together(model(answer, CODES), 8)
    assert most == 4 and "answers to up to 4 inputs together do not depend on each other" in why
