"""The operations of a statement one by one: each as a statement of its own, in the order in which Python does them."""

from __future__ import annotations

import ast
import copy
from typing import Any

_EXECUTING = (ast.Call, ast.Subscript, ast.BinOp, ast.UnaryOp, ast.Compare, ast.JoinedStr)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def placed(node: Any, near: ast.AST) -> Any:
    return ast.fix_missing_locations(ast.copy_location(node, near))


def lifted_from(statement: ast.stmt, number: int, most: int | None) -> tuple[list[ast.stmt], ast.stmt]:
    """The first operations of a statement, each as a statement of its own, and what is left of it."""
    lift = _Lift(number, most)
    simple = isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Return, ast.Expr))
    # `a[i()] += f()` does i() first, and a walrus stores what other operations may load.
    in_place = isinstance(statement, ast.AugAssign) and not isinstance(statement.target, ast.Name)
    if simple and not in_place and not any(isinstance(node, ast.NamedExpr) for node in ast.walk(statement)):
        statement = copy.deepcopy(statement)
        statement.value = lift.visit(statement.value)  # type: ignore[attr-defined]
    return lift.done, statement


class _Lift:
    """Takes operations out of an expression, in the order in which they are done, up to so many."""

    def __init__(self, number: int, most: int | None) -> None:
        self.done: list[ast.stmt] = []
        self._number = number
        self._most = most
        self._blocked = False  # something stays in its place whose turn would have come: all after it stays too

    @property
    def _over(self) -> bool:
        return self._blocked or (self._most is not None and len(self.done) >= self._most)

    def visit(self, node: Any) -> Any:
        if node is None or self._over or isinstance(node, (ast.Constant, ast.Name)):
            return node
        known = getattr(self, f"_{type(node).__name__.lower()}", None)
        if known is None:
            self._blocked = self._blocked or _executes(node)
            return node
        return known(node)

    def _take(self, node: Any) -> Any:
        if self._over:
            return node
        name = f"_overdrive_{self._number}_{len(self.done)}"
        self.done.append(placed(ast.Assign([ast.Name(name, ast.Store())], node), node))
        return placed(ast.Name(name, ast.Load()), node)

    def _all(self, nodes: list[Any]) -> None:
        for place, node in enumerate(nodes):
            if isinstance(node, ast.Starred):  # it is unpacked where it stands
                node.value = self.visit(node.value)
                self._blocked = self._blocked or place < len(nodes) - 1
            else:
                nodes[place] = self.visit(node)

    def _attribute(self, node: ast.Attribute) -> Any:
        node.value = self.visit(node.value)
        return node

    def _call(self, node: ast.Call) -> Any:
        if isinstance(node.func, ast.Attribute):
            node.func.value = self.visit(node.func.value)
        else:
            node.func = self.visit(node.func)
        self._all(node.args)
        if any(isinstance(each, ast.Starred) for each in node.args) and node.keywords:
            self._blocked = True
        for keyword in node.keywords:
            keyword.value = self.visit(keyword.value)
            if keyword.arg is None and keyword is not node.keywords[-1]:
                self._blocked = True
        return self._take(node)

    def _subscript(self, node: ast.Subscript) -> Any:
        node.value = self.visit(node.value)
        node.slice = self.visit(node.slice)
        return self._take(node)

    def _slice(self, node: ast.Slice) -> Any:
        node.lower, node.upper, node.step = map(self.visit, (node.lower, node.upper, node.step))
        return node

    def _binop(self, node: ast.BinOp) -> Any:
        node.left = self.visit(node.left)
        node.right = self.visit(node.right)
        return self._take(node)

    def _unaryop(self, node: ast.UnaryOp) -> Any:
        node.operand = self.visit(node.operand)
        return self._take(node)

    def _compare(self, node: ast.Compare) -> Any:
        node.left = self.visit(node.left)
        node.comparators[0] = self.visit(node.comparators[0])
        if len(node.comparators) > 1:  # the others are evaluated only if need be
            self._blocked = True
        return self._take(node)

    def _tuple(self, node: Any) -> Any:
        self._all(node.elts)
        if any(isinstance(each, ast.Starred) for each in node.elts):
            self._blocked = True
        return node

    _list = _tuple
    _set = _tuple

    def _dict(self, node: ast.Dict) -> Any:
        for place, key in enumerate(node.keys):
            node.keys[place] = self.visit(key)
            node.values[place] = self.visit(node.values[place])
            if key is None:
                self._blocked = True
        return node

    def _ifexp(self, node: ast.IfExp) -> Any:
        node.test = self.visit(node.test)
        self._blocked = self._blocked or _executes(node.body) or _executes(node.orelse)
        return node

    def _boolop(self, node: ast.BoolOp) -> Any:
        node.values[0] = self.visit(node.values[0])
        self._blocked = self._blocked or any(map(_executes, node.values[1:]))
        return node

    def _lambda(self, node: ast.Lambda) -> Any:
        self._blocked = self._blocked or any(map(_executes, [*node.args.defaults, *node.args.kw_defaults]))
        return node


def _executes(node: ast.AST | None) -> bool:
    return node is not None and any(
        isinstance(each, (*_EXECUTING, *_COMPREHENSIONS, ast.Await, ast.NamedExpr)) for each in ast.walk(node)
    )
