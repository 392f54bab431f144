"""What a recording comes to: moments, their cells, and what they count."""

from __future__ import annotations

from overdrive.worker.profiling.keras.moments import OperatorRun, OperatorSpan, moments
from overdrive.worker.profiling.keras.tally import Count, cells_of, counts_of

EVALUATION, WATCHING = "evaluation", "watching"


def test_an_operator_that_runs_on_into_another_phase_is_told_in_both() -> None:
    run = OperatorRun(OperatorSpan(10, 40, 2, "convolution", "graph"), "convolution.1")
    found = moments([run.span], [(0, 20, EVALUATION), (20, 60, WATCHING)], (0, 100))

    cells = {each["phase"]: each for each in cells_of(found, [run], 1, lambda run: "8x8")}
    assert cells[EVALUATION]["seconds"] == 10e-9 and cells[EVALUATION]["shapes"] == "8x8"
    assert cells[WATCHING]["seconds"] == 20e-9 and cells[WATCHING]["calls"] == 0
    counts = counts_of(found, [run], 1, lambda run: Count(flops=5.0, format="fp32"))
    assert [each["phase"] for each in counts["cells"]] == [EVALUATION] and counts["kinds"] == {"fp32": 5.0}
