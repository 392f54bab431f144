"""Numbers without a name of the script's own that may be a batch size: `get_batch(32)`, `def batch(n=24)`,
`torch.randint(0, n, (64,))`, `batch_size = 32` in a function.

They are looked for where a call or a function says that it makes batches, or draws or divides samples. That is a guess:
whether one decides a batch size, a trial with another number tells.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from overdrive.core.settings import Value

_SAYS_BATCH = re.compile(r"(?i)batch(?!_?norm)|^bsz?$")
_SAYS_HOW_MANY = re.compile(r"(?i)^(n|b|k|m|num|size|count|n?_?samples)$")  # of what makes batches
# By which programs without a loader take some of their samples.
_TAKES_SAMPLES = {"randint", "choice", "choices", "sample", "permutation", "split", "array_split", "integers"}


@dataclass(frozen=True)
class Literal:
    """A literal in the tree, and what it is called."""

    name: str
    holder: Any
    field: str
    index: int | None  # in the holder's list
    node: ast.expr

    def fill(self, value: Value) -> None:
        made = ast.copy_location(ast.Constant(value), self.node)
        if self.index is None:
            setattr(self.holder, self.field, made)
        else:
            getattr(self.holder, self.field)[self.index] = made


def batch_literals(tree: ast.Module) -> Iterator[Literal]:
    """Of whole numbers above 1."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield from _of_call(node)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from _of_defaults(node)
            yield from _of_body(node)


def _of_body(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Literal]:
    """`batch_size = 32` in a function: at the top level it is a constant."""
    for each in function.body:
        target = each.targets[0] if isinstance(each, ast.Assign) and len(each.targets) == 1 else None
        target = each.target if isinstance(each, ast.AnnAssign) else target
        if isinstance(target, ast.Name) and _SAYS_BATCH.search(target.id) and each.value is not None:  # type: ignore[attr-defined]
            yield from _literals(f"{function.name}.{target.id}", each, "value", None, each.value)  # type: ignore[attr-defined]


def _of_call(call: ast.Call) -> Iterator[Literal]:
    callee = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    wanted = bool(_SAYS_BATCH.search(callee)) or callee in _TAKES_SAMPLES
    for index, each in enumerate(call.args if wanted else ()):
        yield from _literals(f"{callee}()", call, "args", index, each)
    for word in call.keywords:
        if word.arg and _decides(word.arg, wanted):
            yield from _literals(f"{callee}({word.arg})", word, "value", None, word.value)


def _of_defaults(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Literal]:
    given = function.args
    names = [each.arg for each in (*given.posonlyargs, *given.args)]
    defaults = list(enumerate(given.defaults))
    parts = [("defaults", names[len(names) - len(defaults) + index], index, node) for index, node in defaults]
    parts += [
        ("kw_defaults", each.arg, index, node)
        for index, (each, node) in enumerate(zip(given.kwonlyargs, given.kw_defaults, strict=True))
        if node is not None
    ]
    for field, name, index, node in parts:
        if _decides(name, bool(_SAYS_BATCH.search(function.name))):
            yield from _literals(f"{function.name}({name})", given, field, index, node)


def _decides(name: str, within: bool) -> bool:
    """Whether a parameter of this name may be a batch size. `within`: of a function that makes batches."""
    return bool(_SAYS_BATCH.search(name) or (within and _SAYS_HOW_MANY.search(name)))


def _literals(name: str, holder: Any, field: str, index: int | None, node: ast.expr) -> Iterator[Literal]:
    if isinstance(node, (ast.Tuple, ast.List)):  # a shape
        for place, each in enumerate(node.elts):
            yield from _literals(name, node, "elts", place, each)
    elif isinstance(node, ast.Constant) and type(node.value) is int and node.value > 1:
        yield Literal(name, holder, field, index, node)
