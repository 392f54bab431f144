"""Numbers that hang on how many samples there are: by which rule, and where it does not hold."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from overdrive.model_state.division.sizes import Rule, in_arithmetic, numbers_of

Of = Callable[[int], "int | float"]


@pytest.mark.parametrize(
    ("of", "rule"),
    [
        (lambda n: n, Rule("times", 1)),
        (lambda n: 3 * n, Rule("times", 3)),
        (float, Rule("times", 1.0)),
        (lambda n: 0.1 * n, Rule("times", 0.1)),
        (lambda n: n - 1, Rule("more", -1)),
        (lambda n: n + 0.5, Rule("more", 0.5)),
        (lambda n: 1 / n, Rule("share", 1.0)),
        (lambda n: 7, None),
        (lambda n: n**0.5, None),
        (lambda n: n * n, None),
        (lambda n: min(n, 6), None),
        (lambda n: n if n > 4 else float(n), None),
    ],
)
def test_rules(of: Of, rule: Rule | None) -> None:
    found = numbers_of([("div", of(8)), ("mul", 2)], [("div", of(4)), ("mul", 2)], 8, 4)
    if rule is None:
        assert found is None
        return
    assert found and [each.rule for each in found.each] == [rule, None]
    for own, rows in ((4, 8), (3, 7), (1, 2)):
        assert found.of_all(0, "div", of(own), own, rows) == pytest.approx(of(rows), rel=1e-15)
        assert found.of_all(1, "mul", 5, own, rows) == 5


@pytest.mark.parametrize(
    ("place", "name", "number", "own"),
    [(0, "div", 4, 2), (0, "div", 2.0, 2), (0, "mul", 2, 2), (1, "div", 2, 2)],
)
def test_a_number_that_is_not_by_its_rule_is_told(place: int, name: str, number: float, own: int) -> None:
    """Of `max(len(x), 4)` with fewer samples, say."""
    found = numbers_of([("div", 8)], [("div", 4)], 8, 4)
    assert found and found.of_all(0, "div", 2, 2, 4) == 4
    with pytest.raises(ValueError):
        found.of_all(place, name, number, own, 4)


def test_calls_that_compute_otherwise_are_not_compared() -> None:
    assert numbers_of([("div", 8), ("mul", 2)], [("div", 4)], 8, 4) is None
    assert numbers_of([("div", 8)], [("mul", 4)], 8, 4) is None


def test_what_is_arithmetic() -> None:
    torch = pytest.importorskip("torch")
    x = torch.ones(3)
    assert in_arithmetic("div", (x, 3), {}) and in_arithmetic("__rsub__", (x, 0.5), {})
    assert not in_arithmetic("view", (x, 3), {}) and not in_arithmetic("expand", (x, 3), {})
    assert not in_arithmetic("add", (x, True), {}) and not in_arithmetic("add", (x, x), {})
    assert not in_arithmetic("add", (x, 3), {"alpha": 2}) and not in_arithmetic("mul", (3, 4), {})
