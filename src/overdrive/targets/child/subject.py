"""What is exported, whatever framework the model is of: a function of arrays, and the calls of one form that the
program made of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from overdrive.engines.ranges import Bounds
from overdrive.targets.child import dimensions
from overdrive.targets.child.dimensions import Arrays
from overdrive.targets.fpga.front_end import FrontEnd

Shapes = Sequence[Sequence[int | str]]  # a name is a dimension that may vary


@dataclass(frozen=True)
class Names:
    inputs: list[str]
    outputs: list[str]


class Written(Protocol):
    """A graph of the model, as the framework's own exporter has made it, and its file.

    Attributes:
        shapes: of its inputs.
        bounds: inputs that places in a table are made of, as `engines.ranges` has them.
    """

    artefact: str
    shapes: list[list[int | str]]
    bounds: Bounds

    def end(self, name: str) -> int | None:
        """The largest size of this name by what the model's code asks for; None where it asks for nothing."""


class Model(Protocol):
    """A model as one function of its tensors: what structure they come in, and all that is no tensor, is part of it.

    Attributes:
        framework: its room's name, "torch" or "keras".
    """

    framework: str

    def answers(self, given: Arrays) -> Arrays:
        """As the program has them; what the model raises passes."""

    def exact(self, given: Arrays) -> Arrays:
        """In fp64."""

    def own_call(self, given: Arrays) -> Callable[[], Any]:
        """The program's own call of these, to be timed."""

    def write(self, target: str, example: Arrays, marks: dimensions.Marks, names: Names, folder: Path) -> Written:
        """The artefact in this folder.

        Args:
            example: zeros, which is all that exporting may look at.
            marks: dimensions that may vary; the framework may fix some.

        Raises:
            NoEngine: there can be none.
        """

    def digest(self) -> str:
        """sha256 of its weights."""

    def front_end(self) -> FrontEnd:
        """hls4ml's, of this model.

        Raises:
            NoEngine: it has none.
        """


@dataclass
class Subject:
    """The model, as it answers, and recorded calls of one form, the most usual first.

    Attributes:
        counts: calls that the program made, by recorded call's shape, in the order of `calls`.
        beyond: calls of the same form of which no inputs are kept, by their sizes.
        with_values: it is given numbers or words beside arrays.
    """

    name: str
    model: Model
    calls: list[Arrays]
    counts: list[int]
    beyond: Mapping[tuple[Sequence[int], ...], int]
    left: Counter[str]
    notes: list[str]
    names: Names
    with_values: bool = False

    def inputs(self, shapes: Shapes) -> list[Arrays]:
        """Of the recorded calls that are of these shapes."""
        return [each for each in self.calls if dimensions.sizes_of(shapes, each) is not None]
