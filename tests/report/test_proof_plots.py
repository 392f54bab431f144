"""What is said beneath the chart of two arms."""

from __future__ import annotations

from dataclasses import replace

from overdrive.core.proof_record import ProductsRecord, QuantityRecord, StatisticalRecord
from overdrive.report.proof_plots import _besides, _confidence


def test_what_else_was_compared_is_told_with_what_is_farthest_off() -> None:
    found = ProductsRecord(36, (QuantityRecord("way of parameters, all", -0.05, 0.1, 0.3),))
    assert _besides(found).endswith("way of parameters, all is 0.5 standard deviations over seeds off (p = 0.3).")
    assert "36 other results were compared" in _besides(ProductsRecord(36))
    told = "(2 more were in too few runs, and 3 the program does not repeat)"
    assert told in _besides(ProductsRecord(36, incomparable=2, unsteady=3))


def test_the_confidence_is_that_of_the_look() -> None:
    found = StatisticalRecord(alpha=0.05, looks=(10, 16), runs=(10, 10))
    assert _confidence(found) == "95 % "
    assert _confidence(replace(found, spent=(0.01, 0.047))) == "98 % "
    assert _confidence(replace(found, spent=(0.01, 0.047), runs=(16, 16))) == "91 % "
    assert _confidence(replace(found, spent=(0.7, 0.8))) == ""
