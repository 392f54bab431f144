"""On a phone names and numbers stand above their marks: no line and no edge of a band crosses them."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from overdrive.report import charts, proof_charts, svg

WIDTH = svg.NARROW
ROWS = [
    svg.ChartRow("as written", 0.99, 0.99, 0.99, "0.9905", "10 runs", ((0, 0.95), (1, 1.03))),
    svg.ChartRow("under the plan, as it was found", 0.97, 0.98, 0.99, "0.9858", "10 runs", ((0, 0.96),)),
    svg.ChartRow("difference", 0.96, 0.98, 1.02, "−0.00471", "−0.0158 to +0.00639", kind="good"),
]
GAINS = [svg.ChartRow("sample_cache", 3.0, 3.2, 3.4, "3.2× [3.0, 3.4]"), svg.ChartRow("x", 1.4, 1.5, 1.6, "1.5×")]
TOTAL = svg.ChartRow("confirmed together", 4.5, 4.8, 5.2, "4.8× [4.5, 5.2]", kind="total")


def drawn() -> dict[str, str]:
    return {
        "arms": proof_charts.arms(ROWS, (0.95, 1.02), WIDTH),
        "errors": proof_charts.errors(ROWS, [None, 0.97, 1.01], WIDTH),
        "duels": charts.duels(ROWS, 0.02, WIDTH),
        "waterfall": charts.waterfall(GAINS, TOTAL, WIDTH),
    }


@pytest.mark.parametrize("name", drawn())
def test_no_line_crosses_a_word(name: str) -> None:
    root = ElementTree.fromstring(drawn()[name])
    words = [each for each in root.iter("text") if float(each.get("y", 0)) < float(root.get("height", 0)) - 12]
    assert len(words) >= 6
    uprights = [each for each in root.iter("line") if each.get("x1") == each.get("x2")]
    bands = [each for each in root.iter("rect") if re.search("margin|noise", each.get("class", ""))]
    assert uprights and (bands or name in ("errors", "waterfall"))
    heights = [(float(each.get("y1", 0)), float(each.get("y2", 0))) for each in uprights]
    heights += [(float(each.get("y", 0)), float(each.get("y", 0)) + float(each.get("height", 0))) for each in bands]
    for word in words:
        base = float(word.get("y", 0))
        assert not [each for each in heights if each[0] < base + 3 and base - 10 < each[1]], word.text
