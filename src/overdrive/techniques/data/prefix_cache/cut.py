"""Splits a method in two: what it does before a place in its body, and the rest, which goes on from there.

Places lie between the statements of its body, and within a statement between its calls and operations, in
the order in which Python makes them: `return self.transform(decode(path)), label` can be cut after `decode`.
"""

from __future__ import annotations
import __future__

import ast
import copy
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce
from types import CodeType, FunctionType
from typing import Any, cast

from overdrive.forks.layout import Unfit
from overdrive.techniques.data.prefix_cache.names import names_in, wanted_by
from overdrive.techniques.data.prefix_cache.operations import lifted_from, placed

# What the first half returns, with its locals, where it came to the cut: any other value is the method's own.
HALVED = "overdrive: halved here"
_MARK = "_overdrive_mark"
_INDEX = "_overdrive_index"
_REFUSED: dict[type[ast.AST], str] = {
    ast.Yield: "yields",
    ast.YieldFrom: "yields",
    ast.Await: "awaits",
    ast.Global: "declares global names",
    ast.Nonlocal: "declares nonlocal names",
}
_FUTURES = reduce(lambda flags, name: flags | getattr(__future__, name).compiler_flag, __future__.all_feature_names, 0)


@dataclass(frozen=True)
class CutPoint:
    """Before the statement of this number, when so many of its operations are done."""

    statement: int
    operations: int


@dataclass(frozen=True)
class Halves:
    """The method in two functions.

    `first(self, index)` returns (HALVED, its locals); `second(self, index, *live)` goes on with the values of
    the names `live`.
    """

    first: Callable[..., Any]
    second: Callable[..., Any]
    live: tuple[str, ...]


class Cuttable:
    """A method of (self, index) whose source is known.

    Raises:
        Unfit: it cannot be cut, with the reason.
    """

    def __init__(self, function: Any) -> None:
        if not isinstance(function, FunctionType):
            raise Unfit("the method that fetches a sample is not written in Python")
        self.function = function
        code = function.__code__
        if code.co_argcount != 2 or code.co_kwonlyargcount or code.co_flags & _ODD_FLAGS:
            raise Unfit(f"{function.__qualname__} takes more than a number, or is a generator")
        self._definition = _definition_of(function)
        self.statements = self._definition.body
        self._self, self._index = code.co_varnames[:2]
        self._check()
        self.places = [
            CutPoint(number, done)
            for number, statement in enumerate(self.statements)
            for done in range(len(lifted_from(statement, number, None)[0]) + 1)
        ]

    def _check(self) -> None:
        name = self.function.__qualname__
        if self._definition.decorator_list:
            raise Unfit(f"{name} is decorated")
        for node in ast.walk(self._definition):
            for kind, word in _REFUSED.items():
                if isinstance(node, kind):
                    raise Unfit(f"{name} {word}")
        if self._self in names_in(self.statements).stored:
            raise Unfit(f"{name} replaces its {self._self}")
        if not _runs(self.function):
            raise Unfit(f"the source of {name} is not what runs here")

    def marked(self) -> Callable[..., Any]:
        """The method, which calls its third argument with the number of each place that it comes to."""
        body: list[ast.stmt] = []
        for number, statement in enumerate(self.statements):
            lifted, rest = lifted_from(statement, number, None)
            for each in (*lifted, rest):
                body += [self._call_mark(len(body) // 2, statement), each]
        definition = self._with(body, [_MARK])
        return self._compiled(definition)

    def _call_mark(self, number: int, near: ast.stmt) -> ast.stmt:
        call = ast.Call(ast.Name(_MARK, ast.Load()), [ast.Constant(number)], [])
        return cast(ast.stmt, placed(ast.Expr(call), near))

    def at(self, place: CutPoint) -> Halves:
        """The two halves of a cut at this place."""
        statement = self.statements[place.statement]
        lifted, rest = lifted_from(statement, place.statement, place.operations)
        before = [*self.statements[: place.statement], *lifted]
        after = [rest, *self.statements[place.statement + 1 :]]
        live = tuple(sorted(wanted_by(after) & names_in(before).stored))
        halved = ast.Tuple(
            [ast.Constant(HALVED), ast.Call(ast.Name("locals", ast.Load()), [], [])],
            ast.Load(),
        )
        first = self._with([*before, placed(ast.Return(halved), statement)], [])
        second = self._with(after, list(live))
        return Halves(self._compiled(first), self._compiled(second), live)

    def _with(self, body: list[ast.stmt], more: list[str]) -> ast.FunctionDef:
        """The definition with another body, and with more arguments after its own."""
        definition = copy.copy(self._definition)
        index = _INDEX if self._index in more else self._index
        names = [self._self, index, *more]
        arguments = [placed(ast.arg(name), self._definition) for name in names]
        definition.args = ast.arguments(
            posonlyargs=[], args=arguments, vararg=None, kwonlyargs=[], kw_defaults=[], kwarg=None, defaults=[]
        )
        definition.body = copy.deepcopy(body)
        definition.returns = None
        return definition

    def _compiled(self, definition: ast.FunctionDef) -> FunctionType:
        """The definition as a function among the same globals and cells as the method."""
        function = self.function
        own = function.__code__.co_freevars
        module = _housed(definition, function.__qualname__, [name for name in own if name != "__class__"])
        flags = function.__code__.co_flags & _FUTURES
        whole = compile(module, function.__code__.co_filename, "exec", flags=flags, dont_inherit=True)
        code = next(each for each in _codes(whole) if each.co_name == definition.name and each.co_argcount >= 2)
        cells = dict(zip(own, function.__closure__ or (), strict=True))
        if not set(code.co_freevars) <= set(cells):
            raise Unfit(f"{function.__qualname__} refers to names that cannot be supplied")
        closure = tuple(cells[name] for name in code.co_freevars)
        made = FunctionType(code, function.__globals__, function.__name__, None, closure)
        made.__module__, made.__qualname__ = function.__module__, function.__qualname__
        return made


_ODD_FLAGS = (
    inspect.CO_VARARGS
    | inspect.CO_VARKEYWORDS
    | inspect.CO_GENERATOR
    | inspect.CO_COROUTINE
    | inspect.CO_ASYNC_GENERATOR
)


def _definition_of(function: FunctionType) -> ast.FunctionDef:
    try:
        lines, first = inspect.getsourcelines(function)
        # `if 1:` takes an indented source as it is, with the indentation of its texts.
        module = ast.parse("if 1:\n" + "".join(lines) if lines[0][:1].isspace() else "".join(lines))
    except (OSError, TypeError, SyntaxError, IndentationError, IndexError):
        raise Unfit(f"the source of {function.__qualname__} is not there") from None
    indented = isinstance(module.body[0], ast.If)
    definition = module.body[0].body[0] if isinstance(module.body[0], ast.If) else module.body[0]
    if not isinstance(definition, ast.FunctionDef):
        raise Unfit(f"the source of {function.__qualname__} is no plain function")
    ast.increment_lineno(definition, first - 1 - int(indented))
    return definition


def _runs(function: FunctionType) -> bool:
    """Whether the source is what the function was made of: the file may have been edited since."""
    code = function.__code__
    try:
        source = "".join(inspect.findsource(function)[0])
        whole = compile(source, code.co_filename, "exec", flags=code.co_flags & _FUTURES, dont_inherit=True)
    except (OSError, SyntaxError, ValueError):
        return False
    at = (code.co_name, code.co_firstlineno)
    return any(_alike(each, code) for each in _codes(whole) if (each.co_name, each.co_firstlineno) == at)


def _housed(definition: ast.FunctionDef, name: str, cells: list[str]) -> ast.Module:
    """A module with the definition in a class, which gives it `super()` and private names, and in a function,
    which gives it the names of its closure."""
    inner: ast.stmt = definition
    parts = name.split(".")
    if len(parts) > 1 and parts[-2] != "<locals>":
        inner = ast.ClassDef(name=parts[-2], bases=[], keywords=[], body=[inner], decorator_list=[])
    arguments = [ast.arg(each) for each in cells]
    outer = ast.parse("def overdrive_cells(): pass").body[0]
    assert isinstance(outer, ast.FunctionDef)
    outer.args.args, outer.body = arguments, [inner]
    if hasattr(inner, "type_params") or isinstance(inner, ast.ClassDef):
        inner.type_params = []
    return ast.fix_missing_locations(ast.Module([outer], []))


def _codes(code: CodeType) -> Iterator[CodeType]:
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield each
            yield from _codes(each)


def _alike(one: CodeType, other: CodeType) -> bool:
    """Whether two pieces of code do the same, wherever they stand."""
    same = all(
        getattr(one, name) == getattr(other, name)
        for name in ("co_code", "co_names", "co_varnames", "co_freevars", "co_cellvars")
    )
    if not same or len(one.co_consts) != len(other.co_consts):
        return False
    for mine, others in zip(one.co_consts, other.co_consts, strict=True):
        if isinstance(mine, CodeType) and isinstance(others, CodeType):
            if not _alike(mine, others):
                return False
        elif type(mine) is not type(others) or not (repr(mine) == repr(others) or _same_set(mine, others)):
            return False
    return True


def _same_set(one: Any, other: Any) -> bool:
    """A frozenset's order is its own in each compilation."""
    return isinstance(one, frozenset) and one == other
