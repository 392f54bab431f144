"""Seam of a script's constants: numbers that it names at its top level, found and set while it is compiled.

`lr = 1e-3`, `BATCH: int = 64`, `config = {"lr": 1e-3}`, `dict(lr=1e-3)`, an attribute of a class; at the top level or
under `if __name__ == "__main__"`. A name that is given a value twice is left alone: which one counts is not known. The
file is never touched; lines stay where they are. Numbers without a name are found where a batch may be made
(`batch_literals`).
"""

from __future__ import annotations

import ast
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import CodeType
from typing import Any

from overdrive.core.hyperparameters import CONSTANT, LITERAL, ValuePlace
from overdrive.core.settings import Value
from overdrive.seams.batch_literals import Literal, batch_literals

# No powers: ten to the power of ten to the power of ten would be worked out here.
_ARITHMETIC = (ast.UnaryOp, ast.USub, ast.UAdd, ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv)


def compiled(source: bytes, path: str, values: Mapping[str, Value]) -> tuple[CodeType, list[ValuePlace]]:
    """The script's code with these values by their places' keys, and all constants as the script has them.

    Raises:
        SyntaxError: as Python would.
    """
    tree = ast.parse(source, path)
    places = []
    file = Path(path).name
    found = [*((CONSTANT, each) for each in _slots(tree)), *((LITERAL, each) for each in batch_literals(tree))]
    for kind, slot in found:
        value = _number(slot.node)
        if value is None:
            continue
        column = f":{slot.node.col_offset + 1}" if kind == LITERAL else ""  # a line may have several
        place = ValuePlace(kind, slot.name, value, f"{file}:{slot.node.lineno}{column}")
        places.append(place)
        if place.key in values:
            slot.fill(values[place.key])
    return compile(tree, path, "exec", dont_inherit=True), places


def _slots(tree: ast.Module) -> Iterator[Literal]:
    slots = [slot for statement in _statements(tree.body) for slot in _of_statement(statement)]
    stored = Counter(node.id for node in _own_names(tree) if isinstance(node.ctx, ast.Store))
    for slot in slots:
        if stored[slot.name.split(".")[0]] <= 1:
            yield slot


def _own_names(tree: ast.AST) -> Iterator[ast.Name]:
    """Names outside of functions and classes, whose own are others."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.Name):
            yield child
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            yield from _own_names(child)


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        yield statement
        if isinstance(statement, ast.If) and any(
            isinstance(node, ast.Name) and node.id == "__name__" for node in ast.walk(statement.test)
        ):
            yield from _statements(statement.body)


def _of_statement(statement: ast.stmt) -> Iterator[Literal]:
    if isinstance(statement, ast.ClassDef):
        for inner in statement.body:
            if isinstance(inner, (ast.Assign, ast.AnnAssign)):
                for slot in _of_statement(inner):
                    yield replace(slot, name=f"{statement.name}.{slot.name}")
        return
    target: Any = None
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
    elif isinstance(statement, ast.AnnAssign):
        target = statement.target
    if not isinstance(target, ast.Name):
        return
    value: Any = statement.value  # type: ignore[attr-defined]
    if isinstance(value, ast.Dict):
        for index, (key, each) in enumerate(zip(value.keys, value.values, strict=True)):
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                yield Literal(f"{target.id}.{key.value}", value, "values", index, each)
    elif isinstance(value, ast.Call):
        for word in value.keywords if isinstance(value.func, ast.Name) and value.func.id == "dict" else ():
            if word.arg:
                yield Literal(f"{target.id}.{word.arg}", word, "value", None, word.value)
    elif isinstance(value, ast.expr):
        yield Literal(target.id, statement, "value", None, value)


def _number(node: ast.expr) -> Value | None:
    """What a literal comes to, sums and products of numbers included; None for anything else."""
    for part in ast.walk(node):
        plain = isinstance(part, ast.Constant) and isinstance(part.value, (bool, int, float))
        if not plain and not isinstance(part, _ARITHMETIC):
            return None
    try:
        value = eval(compile(ast.Expression(node), "<constant>", "eval"), {"__builtins__": {}})
    except ArithmeticError:
        return None
    usable = isinstance(value, (bool, int, float)) and math.isfinite(value)
    return value if usable else None
