"""What a recording of spans comes to: by phase, module and operator. Imports nothing of torch.

Every moment of the program's thread belongs to the innermost span there; an operator's time is that of the spans
within it too, so that `aten::convolution` has what oneDNN did for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from overdrive.worker.profiling.timeline import PHASE

MODULE = "overdrive module: "  # how a module is marked in a recording
ENGINE = "autograd engine"
GAP = ""  # the operator's name where there is none: Python, and what launches
# What needs a tensor's numbers on the host. An optimizer's own reads are part of its work.
READS = ("aten::item", "aten::_local_scalar_dense", "aten::is_nonzero", "aten::nonzero", "aten::masked_select")
_ENGINE_NAMES = ("autograd::engine", "torch::autograd::")


@dataclass(frozen=True)
class Span:
    """Times in nanoseconds. `operator`: an operator of PyTorch, and no mark or Python function."""

    name: str
    start: int
    end: int
    operator: bool = True
    sequence: int = -1  # equal for an operator and its gradient
    backward: bool = False
    number: int = 0  # by which work on a GPU refers to it
    shapes: str = ""


@dataclass
class Cell:
    """All spans of one operator in one phase of one module."""

    calls: int = 0
    seconds: float = 0.0
    device_seconds: float = 0.0
    kernels: dict[str, float] = field(default_factory=dict)  # seconds by the innermost span or GPU kernel
    shapes: str = ""  # of the longest call
    longest: float = 0.0


@dataclass(frozen=True)
class _Open:
    span: Span
    phase: str
    module: str
    owner: str  # the operator that its time belongs to
    owned: bool  # by an operator further out
    shapes: str


Key = tuple[str, str, str]  # phase, module, operator


class Analysis:
    """`counted`: names that are operators of their own though others enclose them (what PyTorch dispatches to)."""

    def __init__(self, spans: Iterable[Span], counted: Collection[str], window: tuple[int, int]) -> None:
        self.cells: dict[Key, Cell] = {}
        self.flame: dict[tuple[str, ...], float] = {}
        self.launched: dict[int, Key] = {}  # by the number of the operator that launched
        self.host: list[tuple[int, int, str, bool]] = []  # start, end, phase, whether an operator runs
        self._counted = frozenset(counted)
        self._modules: dict[int, str] = {}  # by sequence number
        self._open: list[_Open] = []
        self._at = window[0]
        for span in sorted(spans, key=lambda each: (each.start, -each.end)):
            if span.end <= window[0] or span.start >= window[1]:
                continue
            self._close(span.start)
            self._advance(span.start)
            self._open.append(self._opened(span))
        self._close(window[1])
        self._advance(window[1])

    def phases(self) -> dict[str, dict[str, float]]:
        """Seconds of each phase: in "operators", in those that read a tensor back ("reads"), in the "gap" between."""
        found: dict[str, dict[str, float]] = {}
        for (phase, _, operator), cell in self.cells.items():
            into = found.setdefault(phase, {"operators": 0.0, "reads": 0.0, "gap": 0.0})
            reads = operator in READS and phase != "optimizer"
            into["gap" if operator == GAP else "reads" if reads else "operators"] += cell.seconds
        return found

    def _opened(self, span: Span) -> _Open:
        outer = self._open[-1] if self._open else None
        phase = outer.phase if outer else "between"
        module = outer.module if outer else ""
        owner, owned = (outer.owner, outer.owned) if outer else (GAP, False)
        shapes = outer.shapes if outer and outer.owned else ""
        if span.name.startswith(PHASE):
            return _Open(span, span.name[len(PHASE) :], module, GAP, False, "")
        if span.name.startswith(MODULE):
            return _Open(span, phase, span.name[len(MODULE) :], GAP, False, "")
        if not span.operator:
            return _Open(span, phase, module, owner, owned, shapes)
        if span.backward or span.name.startswith(_ENGINE_NAMES):
            module = self._modules.get(span.sequence, module) if span.sequence >= 0 else module
            if phase == "between":  # `torch.autograd.grad` passes no seam
                phase = "backward"
        elif span.sequence >= 0 and phase != "backward":
            self._modules[span.sequence] = module
        if not owned:
            owner = ENGINE if span.backward or span.name.startswith(_ENGINE_NAMES) else span.name
            owned = span.name in self._counted or span.name in READS
            shapes = span.shapes
        opened = _Open(span, phase, module, owner, owned, shapes)
        key = (phase, module, owner)
        if span.number:
            self.launched[span.number] = key
        if owner == span.name or owner == ENGINE:
            cell = self.cells.setdefault(key, Cell())
            cell.calls += 1
            length = (span.end - span.start) / 1e9
            if length > cell.longest:
                cell.longest, cell.shapes = length, span.shapes
        return opened

    def _close(self, until: int) -> None:
        while self._open and self._open[-1].span.end <= until:
            self._advance(self._open[-1].span.end)
            self._open.pop()

    def _advance(self, until: int) -> None:
        """The time from where we are belongs to the innermost open span."""
        if until <= self._at:
            return
        seconds = (until - self._at) / 1e9
        inner = self._open[-1] if self._open else None
        phase, module, owner = (inner.phase, inner.module, inner.owner) if inner else ("between", "", GAP)
        cell = self.cells.setdefault((phase, module, owner), Cell())
        cell.seconds += seconds
        if inner and owner != GAP:
            cell.kernels[inner.span.name] = cell.kernels.get(inner.span.name, 0.0) + seconds
        path = (phase, *(module.split(".") if module else ()), owner or "Python, launching")
        self.flame[path] = self.flame.get(path, 0.0) + seconds
        self.host.append((self._at, until, phase, owner != GAP))
        self._at = until
