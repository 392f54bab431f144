"""What goes over a pipe or into the ledger comes back as it was."""

from __future__ import annotations

import json

import pytest

from overdrive.core import messages
from overdrive.core.facts import Facts, LoaderFacts
from overdrive.core.interval import Interval
from overdrive.core.program import Program
from overdrive.core.records import ExitReason, StepRecord, Trace
from overdrive.core.trial_spec import ReplayRole, TrialSpec
from overdrive.evidence.speed import Pair, Verdict
from overdrive.trials.checkpoint import restore_duel, store_duel
from overdrive.trials.duel import Duel

SPEC = TrialSpec(
    Program("train.py", ("--epochs", "3")),
    (("autocast", {"dtype": "bfloat16"}), ("threads", {"count": 2})),
    replay=ReplayRole("candidate", "/states", (1, 5), rare=(5,)),
    observers=("overdrive.worker.needs",),
    environment={"A": "b"},
)
TRACE = Trace(
    2, ((1.5,), (0.5, 0.25)), (0.1, 0.1), 16, digests=(StepRecord("b", 8, inputs=([1.0, 2.0],)),), left_out={"a": "b"}
)


@pytest.mark.parametrize(
    "message",
    [
        messages.Job(SPEC, True, "/scratch", ("/cache",)),
        messages.Run(5, lead=2),
        messages.Failed(ExitReason("oom", "no memory"), Facts(loaders=(LoaderFacts(8, 2, True, None, 0.5),))),
        messages.Ended(TRACE, {"overdrive.worker.needs": {"steps": [1]}}),
    ],
)
def test_a_message_is_read_as_it_was_written(message: messages.Job | messages.Command | messages.Report) -> None:
    assert messages.read(messages.write(message)) == message


def test_a_job_of_another_version_is_refused() -> None:
    with pytest.raises(ValueError, match="has version 0"):
        messages.read(messages.write(messages.Job(SPEC, version=0)))


def test_a_duel_comes_back_from_the_ledger_even_with_a_field_of_an_older_version() -> None:
    duel = Duel(SPEC, SPEC, [Pair(0, 5, 1.0, 0.5, True)], Verdict.FASTER, Interval(1.9, 2.0, 2.1), new_trace=TRACE)
    stored = json.loads(json.dumps(store_duel(duel)))
    assert restore_duel({**stored, "apart": True}, SPEC, SPEC) == duel
