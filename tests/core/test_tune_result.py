"""A tune's result goes to JSON and back without a loss, and a reader of JSON from anywhere is never caught out."""

from __future__ import annotations

import json

from overdrive.core.json_data import from_json, to_json
from overdrive.core.tune_result import VERSION, Figures, TuneResult
from overdrive.report.reading import harmless, read
from tests.report.sample import result


def test_what_was_written_is_read_again() -> None:
    found = read(TuneResult, result())
    assert found.version == VERSION and found.techniques and found.duels[0].pairs and found.proof is not None
    again = json.loads(json.dumps(to_json(found)))
    assert from_json(TuneResult, again) == read(TuneResult, again) == harmless(found) == found


def test_a_result_from_before_there_were_versions_has_all_it_had() -> None:
    old = result()
    assert "version" not in old
    new = to_json(read(TuneResult, old))
    for name in ("program", "verdict", "noise_floor", "tuning_seconds", "machine", "versions", "notes"):
        assert new[name] == old[name], name
    assert [each["name"] for each in new["attribution"]["shares"]] == ["sample_cache", "allocator", "channels_last"]
    for pair, was in zip(new["duels"][0]["pairs"], old["duels"][0]["pairs"], strict=True):
        assert {name: pair[name] for name in was} == was
        assert pair["waited"] is pair["others"] is None  # nobody looked for neighbours then
    assert new["losses"] == old["losses"]


def test_what_is_broken_is_missing_and_nothing_else() -> None:
    found = read(Figures, {"samples_per_s": "fast", "seconds_per_step": -1, "setup_seconds": 2, "peak_memory": True})
    assert found == Figures(setup_seconds=2.0)
    for odd in (None, 3, "x", [], {"techniques": 7, "loaders": [None, 3], "proxy": "no", "speedup": {"low": 2}}):
        assert read(TuneResult, odd) == TuneResult()
