"""Reads the text of a program that XLA has compiled (`jax.stages.Compiled.as_text`). Imports no framework.

%dot = f32[800,10]{1,0} dot(%a, %b), lhs_contracting_dims={0}, ..., metadata={op_name="jit(train_step)/..."}
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_HEAD = re.compile(r"^(?:ENTRY )?%([\w.\-]+) \(.*\{\s*$")
_LINE = re.compile(r"^\s+(?:ROOT )?%([\w.\-]+) = (.*)$")
_OPCODE = re.compile(r"[\]})] ([a-z][a-z0-9\-]*)\(")
_SHAPE = re.compile(r"\b([a-z]+\d*[a-z0-9]*)\[([\d,]*)\]")
_OPERAND = re.compile(r"%([\w.\-]+)")
_CALLED = re.compile(r"\b(?:calls|to_apply|body|condition)=%([\w.\-]+)")
_NAME = re.compile(r'op_name="([^"]*)"')
_BITS = re.compile(r"\d+")


@dataclass(frozen=True)
class Shape:
    kind: str  # "f32"
    sizes: tuple[int, ...]

    @property
    def count(self) -> int:
        return math.prod(self.sizes)

    @property
    def bytes(self) -> int:
        bits = _BITS.search(self.kind)  # a "pred" has a byte
        return self.count * (int(bits.group()) if bits else 8) // 8


@dataclass(frozen=True)
class Instruction:
    name: str
    opcode: str
    made: tuple[Shape, ...]
    operands: tuple[str, ...]
    called: tuple[str, ...]  # computations
    traced: str  # where it comes from, "jit(train_step)/jvp(dense)/dot_general"; "" where that was lost
    attributes: str  # as they are written


@dataclass
class Module:
    """Names are unique in all of it."""

    instructions: dict[str, Instruction] = field(default_factory=dict)
    computations: dict[str, list[str]] = field(default_factory=dict)

    def inside(self, instruction: Instruction) -> Iterator[Instruction]:
        """Those of the computations that it calls."""
        for computation in instruction.called:
            for name in self.computations.get(computation, ()):
                yield self.instructions[name]

    def given(self, instruction: Instruction) -> list[Shape]:
        known = [self.instructions[each] for each in instruction.operands if each in self.instructions]
        return [shape for each in known for shape in each.made]


def parse(text: str) -> Module:
    """Lines of another form are passed over."""
    module = Module()
    current: list[str] = []
    for line in text.splitlines():
        if head := _HEAD.match(line):
            current = module.computations.setdefault(head.group(1), [])
        elif (told := _LINE.match(line)) and (found := _instruction(*told.groups())):
            module.instructions[found.name] = found
            current.append(found.name)
    return module


def _instruction(name: str, rest: str) -> Instruction | None:
    opcode = _OPCODE.search(rest)
    if opcode is None:
        return None
    made = tuple(
        Shape(kind, tuple(map(int, filter(None, sizes.split(",")))))
        for kind, sizes in _SHAPE.findall(rest[: opcode.start() + 1])
    )
    given, _, attributes = rest[opcode.end() :].partition(")")
    traced = _NAME.search(attributes)
    return Instruction(
        name,
        opcode.group(1),
        made,
        tuple(_OPERAND.findall(given)),
        tuple(_CALLED.findall(attributes)),
        traced.group(1) if traced else "",
        attributes,
    )
