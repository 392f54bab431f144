"""Seam of a script's constants: numbers that it names at its top level, found and set while it is compiled.

`lr = 1e-3`, `BATCH: int = 64`, `lr, batch = 1e-3, 64`, `config = {"lr": 1e-3}`, `dict(lr=1e-3)` and tables within
tables, `Namespace(lr=1e-3)`, `TrainConfig(lr=1e-3)`, an attribute of a class, `lr: float = field(default=1e-3)`; at
the top level or under `if __name__ == "__main__"`. A name that is given a value twice is left alone: which one counts
is not known. The file is never touched; lines stay where they are. Numbers without a name are found where a batch may
be made (`batch_literals`).
"""

from __future__ import annotations

import ast
import math
import re
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
# What makes a table.
_TABLE = re.compile(r"dict|field|\w*(Namespace|[Cc]onfig|[Dd]ict|Args|Arguments|Params|Options|Settings)")


def compiled(
    source: bytes, path: str, values: Mapping[str, Value], kind_of_constant: str = CONSTANT, file: str = ""
) -> tuple[CodeType, list[ValuePlace]]:
    """The script's code with these values by their places' keys, and all constants as the script has them.

    Args:
        file: what its places are told by; the last part of its path, where nothing is given.

    Raises:
        SyntaxError: as Python would.
    """
    tree = ast.parse(source, path)
    places = []
    file = file or Path(path).name
    found = [*((kind_of_constant, each) for each in _slots(tree)), *((LITERAL, each) for each in batch_literals(tree))]
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
        if isinstance(target, ast.Tuple):
            yield from _of_row(target, statement.value)
    elif isinstance(statement, ast.AnnAssign):
        target = statement.target
    if not isinstance(target, ast.Name):
        return
    yield from _of_value(target.id, statement, "value", None, statement.value)  # type: ignore[attr-defined]


def _of_row(target: ast.Tuple, value: ast.expr) -> Iterator[Literal]:
    """`lr, batch_size = 1e-3, 64`."""
    names = target.elts
    if not isinstance(value, (ast.Tuple, ast.List)) or len(names) != len(value.elts):
        return
    if any(isinstance(each, ast.Starred) for each in (*names, *value.elts)):
        return
    for place, (name, each) in enumerate(zip(names, value.elts, strict=True)):
        if isinstance(name, ast.Name):
            yield from _of_value(name.id, value, "elts", place, each)


def _of_value(name: str, holder: Any, field: str, index: int | None, value: Any) -> Iterator[Literal]:
    """What stands there, or within it where it is a table."""
    if isinstance(value, ast.Dict):
        for place, (key, each) in enumerate(zip(value.keys, value.values, strict=True)):
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                yield from _of_value(f"{name}.{key.value}", value, "values", place, each)
    elif isinstance(value, ast.Call):
        callee = value.func.attr if isinstance(value.func, ast.Attribute) else getattr(value.func, "id", "")
        for word in value.keywords if _TABLE.fullmatch(callee) else ():
            if callee == "field" and word.arg == "default":  # of a data class
                yield from _of_value(name, word, "value", None, word.value)
            elif word.arg and callee != "field":
                yield from _of_value(f"{name}.{word.arg}", word, "value", None, word.value)
    elif isinstance(value, ast.expr):
        yield Literal(name, holder, field, index, value)


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
