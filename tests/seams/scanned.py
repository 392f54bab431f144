"""Private names in a file's text: those reached from what it imports, and those of objects that are not its own."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Public by their documentation, whatever they begin with.
DOCUMENTED = ("_exit", "_getframe", "_fields", "_foreach_copy_")
_BY_NAME = ("getattr", "setattr", "hasattr", "delattr")


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in DOCUMENTED


def imported(tree: ast.Module) -> dict[str, str]:
    """What names of a file stand for, dotted."""
    alias: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                alias[each.asname or each.name.split(".")[0]] = each.name if each.asname else each.name.split(".")[0]
        elif isinstance(node, ast.ImportFrom) and node.module:
            for each in node.names:
                alias[each.asname or each.name] = f"{node.module}.{each.name}"
    return alias


def dotted(node: Any, alias: dict[str, str]) -> str:
    """An attribute of an attribute of something imported; empty where it is not."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([alias[node.id], *reversed(parts)]) if isinstance(node, ast.Name) and node.id in alias else ""


def _declared(tree: ast.Module) -> set[str]:
    """Names that the file itself gives to attributes of its objects."""
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.AsyncFunctionDef(name=name):
                found.add(name)
            case ast.AnnAssign(target=ast.Name(id=name)):
                found.add(name)
            case ast.Assign(targets=targets):
                found.update(each.id for each in targets if isinstance(each, ast.Name))
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name):
                found.add(name)
    return found


def _accesses(tree: ast.Module) -> Iterator[tuple[Any, str]]:
    """(object, name)"""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=thing, attr=name):
                yield thing, name
            case ast.Call(func=ast.Name(id=function), args=[thing, ast.Constant(value=str(name)), *_]):
                if function in _BY_NAME:
                    yield thing, name
            case ast.Subscript(value=ast.Call(func=ast.Name(id="vars"), args=[thing]), slice=ast.Constant(value=name)):
                yield thing, str(name)


def attributes(path: Path, foreign: frozenset[str] = frozenset()) -> set[str]:
    """Private names that are asked of objects which the file does not make: other than `self`, and of names that no
    class of the file has. `foreign` names are other people's, whoever has one of that name, too."""
    tree = ast.parse(path.read_text())
    alias, own = imported(tree), _declared(tree) - foreign
    found: set[str] = set()
    for thing, name in _accesses(tree):
        if not _is_private(name) or name in own or dotted(thing, alias).startswith("torch"):
            continue
        if not (isinstance(thing, ast.Name) and thing.id in ("self", "cls")):
            found.add(name)
    return found
