"""Ranges: what the user may ask for, and what is sensible where nothing is asked for."""

from __future__ import annotations

import pytest

from overdrive.core.hyperparameters import DROPOUT, LOADER, OPTIMIZER, OPTION, SCHEDULE, ValuePlace
from overdrive.core.settings import Value
from overdrive.search.domain import Domain, DomainError, domain_of, parse, sensible
from overdrive.search.parameters import Parameter


def parameter(name: str, value: Value, kind: str = OPTION, own: str = "", choices: tuple[str, ...] = ()) -> Parameter:
    return Parameter(name, (ValuePlace(kind, own or f"--{name}", value, choices=choices),))


LR = parameter("lr", 0.01)
BATCH = parameter("batch-size", 64, LOADER, "batch_size")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("lr=1e-4..1e-1:log", Domain(1e-4, 1e-1, log=True)),
        ("lr=0.1..0.2", Domain(0.1, 0.2)),
        ("lr=1,2.5", Domain(choices=(1.0, 2.5))),
    ],
)
def test_ranges_are_read(text: str, expected: Domain) -> None:
    assert domain_of(LR, parse(text)) == expected


def test_values_have_the_type_of_the_default() -> None:
    assert domain_of(parameter("epochs", 3), parse("epochs=2..4")).integer
    assert domain_of(BATCH, parse("batch-size=32,64")).choices == (32, 64)
    assert domain_of(BATCH, parse("batch-size=16..128:log")).integer
    assert domain_of(parameter("amp", False), parse("amp=on,off")).choices == (True, False)


def test_what_is_a_fraction_by_its_meaning_may_have_a_whole_default() -> None:
    assert domain_of(parameter("weight-decay", 0), parse("weight-decay=1e-5..1e-2:log")) == Domain(1e-5, 1e-2, log=True)
    assert domain_of(parameter("dropout", 0), parse("dropout=0.1,0.3")).choices == (0.1, 0.3)
    assert domain_of(parameter("lr", 1), parse("lr=0.5,1")).choices == (0.5, 1.0)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("lr=", "nothing to choose"),
        ("=1..2", "names no parameter"),
        ("lr=2..1", "begin below its end"),
        ("lr=0..1:log", "begin above 0"),
        ("lr=1..2:lin", ":lin is unknown"),
        ("lr=a..b", "is not a range"),
        ("lr=0.1", "nothing to choose"),
    ],
)
def test_ranges_that_make_no_sense_are_refused_in_one_sentence(text: str, why: str) -> None:
    with pytest.raises(DomainError, match=why):
        parse(text)


@pytest.mark.parametrize(
    ("of", "text", "why"),
    [
        (BATCH, "batch-size=0,64", "1 or more"),
        (BATCH, "batch-size=32.5,64", "whole number"),
        (BATCH, "batch-size=8..64.5", "whole number"),
        (LR, "lr=-1..1", "below 0"),
        (LR, "lr=fast,slow", "is a number"),
        (parameter("momentum", 0.9, OPTIMIZER, "momentum"), "momentum=0.5..1.5", "between 0 and 1"),
        (parameter("model", "gru", choices=("gru", "lstm")), "model=gru,rnn", "allows gru, lstm"),
        (parameter("amp", False), "amp=1..2", "no number"),
    ],
)
def test_values_that_do_not_suit_the_parameter_are_refused(of: Parameter, text: str, why: str) -> None:
    with pytest.raises(DomainError, match=why):
        domain_of(of, parse(text))


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        (LR, "0.0003..0.3:log"),
        (BATCH, "16, 32, 64, 128, 256"),
        (parameter("batch-size", 50, LOADER, "batch_size"), "12, 25, 50, 100, 200"),  # the author's own among them
        (parameter("batch-size", 1), "1, 2, 4"),
        (parameter("dropout", 0.2, DROPOUT, "p"), "0..0.6"),
        (parameter("weight-decay", 0.0, OPTIMIZER, "weight_decay"), "1e-06..0.1:log"),
        (parameter("momentum", 0.999, OPTIMIZER, "momentum"), "0.5..0.999"),
        (parameter("gamma", 0.7), "0.07..1:log"),
        (parameter("gamma", 0.98), "0.9..0.996"),  # a discount: none as short as one of 0.1
        (parameter("ema-decay", 0.999), "0.995..0.9998"),
        (parameter("layers", 4), "2..8"),
        (parameter("amp", False), "off, on"),
        (parameter("model", "gru", choices=("gru", "lstm")), "gru, lstm"),
    ],
)
def test_each_kind_has_a_range_of_its_own(of: Parameter, expected: str) -> None:
    assert str(sensible(of)) == expected


def test_nothing_is_made_up_where_nothing_is_known() -> None:
    assert sensible(parameter("seed", 0)) is None and sensible(parameter("manual-seed", 1111)) is None
    with pytest.raises(DomainError, match=r"seed=LOW\.\.HIGH"):
        domain_of(parameter("seed", 0), parse("seed"))


def test_the_fall_of_the_learning_rates_is_a_share_of_the_run() -> None:
    anneal = parameter("anneal", 0.0, SCHEDULE, "anneal")
    assert sensible(anneal) == Domain(choices=(0.0, 0.5, 0.75, 1.0))
    assert domain_of(anneal, parse("anneal=0.2..0.9")) == Domain(0.2, 0.9)
    with pytest.raises(DomainError, match="a share of the run"):
        domain_of(anneal, parse("anneal=0.5,2"))
