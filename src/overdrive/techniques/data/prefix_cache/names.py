"""Which names a piece of code loads, and which it stores."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any

_SCOPES = (
    *(ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
    *(ast.Lambda, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef),
)


@dataclass
class Names:
    loaded: set[str]
    stored: set[str]


def names_in(nodes: list[Any]) -> Names:
    """The names that the nodes load and store in their own scope; those of scopes inside count as loaded."""
    names = Names(set(), set())
    for node in nodes:
        _collect(node, names)
    return names


def _collect(node: ast.AST, names: Names) -> None:
    if isinstance(node, ast.Name):
        if not isinstance(node.ctx, ast.Store):
            names.loaded.add(node.id)
        if isinstance(node.ctx, ast.Store):
            names.stored.add(node.id)
        return
    if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
        names.loaded.add(node.target.id)
    if isinstance(node, _SCOPES):
        inside = Names(set(), set())
        for child in ast.iter_child_nodes(node):
            _collect(child, inside)
        arguments = {each.arg for each in ast.walk(node) if isinstance(each, ast.arg)}
        # Too many rather than too few: a name of the inner scope may also be one of ours outside of it.
        names.loaded |= inside.loaded - (arguments | inside.stored if isinstance(node, ast.Lambda) else set())
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.stored.add(node.name)
        for each in ast.walk(node):
            if isinstance(each, ast.NamedExpr) and isinstance(each.target, ast.Name):
                names.stored.add(each.target.id)
        return
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        names.stored.update((alias.asname or alias.name).split(".")[0] for alias in node.names)
    if isinstance(node, ast.ExceptHandler) and node.name:
        names.stored.add(node.name)
    if isinstance(node, (ast.MatchAs, ast.MatchStar)) and node.name:
        names.stored.add(node.name)
    if isinstance(node, ast.MatchMapping) and node.rest:
        names.stored.add(node.rest)
    for child in ast.iter_child_nodes(node):
        _collect(child, names)


def wanted_by(statements: list[ast.stmt]) -> set[str]:
    """The names that these statements may load before they store them."""
    wanted: set[str] = set()
    surely: set[str] = set()
    for statement in statements:
        names = names_in([statement])
        wanted |= names.loaded - surely
        if isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is not None:
            surely |= names.stored
        elif not isinstance(statement, (ast.Expr, ast.Return)):
            wanted |= names.stored - surely  # stored perhaps: what it was goes on otherwise
    return wanted
