"""Methods cut in two at every possible place go on to do what they did; what cannot be cut is refused."""

from __future__ import annotations

import random
import re
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from overdrive.forks.layout import Unfit
from overdrive.techniques.data.prefix_cache.cut import HALVED, Cuttable

LOG: list[str] = []


def noted(name: str, value: Any = None) -> Any:
    LOG.append(name)
    return value


class Base:
    scale = 3

    def __getitem__(self, index: int) -> int:
        return noted("base", index * 2)

    def __len__(self) -> int:
        return 10

    def over(self, *values: Any, **named: Any) -> Any:
        return noted("over", (values, named))


class Nested(Base):
    def __getitem__(self, index: int) -> Any:
        return self.over(noted("a", 1), noted("b", [4])[0] + 1, c=-noted("c", 2)), noted("d")


class Inherited(Base):
    __hidden = 5

    def __getitem__(self, index: int) -> Any:
        """A text with
        several lines."""
        if index < 0:
            index += len(self)
        value: int = super().__getitem__(index) + self.__hidden
        return value, index


class Choosing(Base):
    def __getitem__(self, index: int) -> Any:
        one = noted("yes", 1) if noted("test", index % 2) else noted("no", 0)
        two = noted("first", 0) or noted("second", 7)
        three = noted("left", 1) < noted("middle", 2) < noted("right", 3)
        return one, two, three, {"k": noted("key", index), **noted("rest", {})}, f"{noted('text', 1)}"


class Branching(Base):
    def __getitem__(self, index: int) -> Any:
        total = 0
        for step in range(index):
            if step == 3:
                break
            total += noted("step", step)
        else:
            total = -1
        try:
            total = total // (index - 2)
        except ZeroDivisionError as error:
            total = len(str(error))
        with open(__file__) as file:
            first, *rest = file.readline().split()
        words = [word for word in rest if word != first]
        return total, [(lambda: (word, total))() for word in words]


class Placing(Base):
    def __getitem__(self, index: int) -> Any:
        items = [0, 0, 0]
        items[noted("place", 1)] += noted("more", 2)
        items[0], rest = noted("pair", (1, index))
        if (double := noted("double", 2 * index)) > 3:
            rest = double
        import math as numbers

        return items, rest, numbers.floor(rest)


def closure() -> type:
    factor = 4

    class Closed(Base):
        def __getitem__(self, index: int) -> Any:
            def inner(value: int) -> int:
                return value * factor

            return inner(noted("index", index)), [inner(each) for each in (1, 2)]

    return Closed


KINDS = [Nested, Inherited, Choosing, Branching, Placing, closure()]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("index", [1, 2, 6])
def test_cut_anywhere_it_does_the_same_in_the_same_order(kind: type, index: int) -> None:
    cuttable, thing = Cuttable(vars(kind)["__getitem__"]), kind()
    LOG.clear()
    expected = thing[index]
    done = LOG.copy()
    assert len(cuttable.places) > 1
    for place in cuttable.places:
        LOG.clear()
        halves = cuttable.at(place)
        mark, values = halves.first(thing, index)
        assert mark == HALVED
        assert halves.second(thing, index, *(values[name] for name in halves.live)) == expected
        assert done == LOG, place


def test_only_what_is_needed_later_is_handed_on() -> None:
    cuttable = Cuttable(Inherited.__getitem__)
    assert cuttable.at(cuttable.places[-1]).live[-1:] == ("value",)
    (place,) = [each for each in Cuttable(Nested.__getitem__).places if each.operations == 3]
    assert len(Cuttable(Nested.__getitem__).at(place).live) == 2  # a's and b's values


def test_the_marked_method_tells_where_it_is() -> None:
    cuttable = Cuttable(Nested.__getitem__)
    seen: list[tuple[int, int]] = []
    LOG.clear()
    cuttable.marked()(Nested(), 3, lambda place: seen.append((place, len(LOG))))
    assert [place for place, _ in seen] == list(range(len(cuttable.places)))
    assert seen[0] == (0, 0) and seen[-1][1] == 5


class Failing(Base):
    def __getitem__(self, index: int) -> Any:
        value = index + 1
        return value / 0


def test_an_error_shows_the_line_of_the_source() -> None:
    cuttable = Cuttable(Failing.__getitem__)
    halves = cuttable.at(cuttable.places[2])
    with pytest.raises(ZeroDivisionError) as raised:
        halves.second(Failing(), 1, 2)
    assert traceback.extract_tb(raised.value.__traceback__)[-1].line == "return value / 0"


def generator(self: Any, index: int) -> Any:
    yield index


def more_arguments(self: Any, index: int, more: int = 0) -> Any:
    return index


def counting(self: Any, index: int) -> Any:
    global LOG
    LOG = [*LOG, "counted"]
    return index


def replacing(self: Any, index: int) -> Any:
    self = [self, index]
    return self


def decorator(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


@decorator
def decorated(self: Any, index: int) -> Any:
    return index


REFUSED = {
    "generator": (generator, "generator"),
    "more arguments": (more_arguments, "more than a number"),
    "globals": (counting, "declares global names"),
    "replaced self": (replacing, "replaces its self"),
    "decorated": (decorated, "is decorated"),
    "lambda": (lambda self, index: index, "source of"),
    "built in": (list.__getitem__, "not written in Python"),
    "no source": (eval("lambda self, index: index"), "source of"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refuses(name: str) -> None:
    function, reason = REFUSED[name]
    with pytest.raises(Unfit) as refused:
        Cuttable(function)
    assert re.search(reason, str(refused.value)), refused.value


def test_refuses_a_source_that_was_edited_since(tmp_path: Path) -> None:
    file = tmp_path / f"edited{random.randrange(10**9)}.py"
    file.write_text("class Kind:\n    def __getitem__(self, index):\n        return index + 1\n")
    space: dict[str, Any] = {"__name__": "edited"}
    exec(compile(file.read_text(), str(file), "exec"), space)
    file.write_text(file.read_text().replace("+ 1", "+ 2"))
    with pytest.raises(Unfit, match="not what runs here"):
        Cuttable(space["Kind"].__getitem__)
