"""What is kept of a model's calls, whatever framework it is of: the last of each shape, and how many there were."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

_OF_A_SHAPE = 12  # calls that are kept
_MOST_SHAPES = 8
_MOST_COUNTED = 1000  # shapes of which no input is kept
_MOST_BYTES = 512 << 20  # of all that is kept

Sizes = tuple[Sequence[int], ...]  # of each tensor


class Call(Protocol):
    """What one call was given: a copy, on the CPU."""

    @property
    def size(self) -> int:
        """Bytes."""


@dataclass
class Shape:
    """Calls with the same structure, shapes, types and plain values. `form`: the same without the shapes."""

    form: Any
    kept: deque[Any]
    count: int = 0


@dataclass
class KeptCalls:
    """Of one model. `framework`: its room's name, "torch" or "keras"."""

    framework: ClassVar[str] = ""

    model: Any
    count: int = 0
    shapes: dict[Any, Shape] = field(default_factory=dict)
    beyond: Counter[tuple[Any, Sizes]] = field(default_factory=Counter)  # calls of further shapes, by form
    left: Counter[str] = field(default_factory=Counter)  # calls that no artefact could answer, by reason
    of_a_shape: int = _OF_A_SHAPE  # calls that are kept

    def of_classes(self, outputs: int) -> bool:
        """Whether so many outputs are known to be classes, of which the largest is the answer."""
        return False

    def forget(self) -> None:
        """All that was kept so far."""
        self.shapes.clear()
        self.beyond.clear()
        self.left.clear()

    def keep(self, key: Any, form: Any, sizes: Sizes, call: Call) -> Shape | None:
        """None where there are too many shapes already. `key`: of the shape."""
        if key not in self.shapes and len(self.shapes) >= _MOST_SHAPES:
            further = form, sizes
            if further in self.beyond or len(self.beyond) < _MOST_COUNTED:
                self.beyond[further] += 1
            else:
                self.left[f"there are more than {_MOST_COUNTED:,} shapes of inputs"] += 1
            return None
        shape = self.shapes.setdefault(key, Shape(form, deque(maxlen=self.of_a_shape)))
        shape.count += 1
        shape.kept.append(call)
        while sum(each.size for other in self.shapes.values() for each in other.kept) > _MOST_BYTES:
            longest = max(self.shapes.values(), key=lambda each: len(each.kept))
            if len(longest.kept) <= 1:  # of each shape one stays, however large
                break
            longest.kept.popleft()
        return shape

    def chosen(self) -> tuple[Any, list[Any], list[int]]:
        """The form that most calls have, its calls, the most usual shape first, and how many the program made, by the
        first call of each shape. Calls of other forms are left."""
        forms: Counter[Any] = Counter()
        for each in self.shapes.values():
            forms[each.form] += each.count
        for (form, _), count in self.beyond.items():
            forms[form] += count
        chosen = max((each.form for each in self.shapes.values()), key=lambda form: forms[form])
        self.left["they have other inputs that are no tensors, or tensors of other types"] += (
            forms.total() - forms[chosen]
        )
        calls: list[Any] = []
        counts: list[int] = []
        for shape in sorted(self.shapes.values(), key=lambda each: -each.count):
            if shape.form == chosen:
                calls += shape.kept
                counts += [shape.count, *[0] * (len(shape.kept) - 1)]
        return chosen, calls, counts

    def beyond_of(self, form: Any) -> dict[Sizes, int]:
        """Calls of this form of which no inputs are kept, by their sizes."""
        return {sizes: count for (each, sizes), count in self.beyond.items() if each == form}
