"""The frameworks that have seams, and what their packages of seams offer. Nothing here imports one.

`overdrive.seams.NAME` is imported when the program has imported the framework, and offers the functions of
`FrameworkSeams`; `overdrive.worker.NAME` offers the observers of trials (see `worker.observers`). No code outside these
packages, and the techniques that are for one framework, needs to know which it is.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    from overdrive.seams.hub import Seams

# By name: the modules whose import is its arrival. At the first, techniques may still set what must be set before it
# is used; at the last, all is there that the seams patch.
MODULES: Mapping[str, tuple[str, ...]] = {"torch": ("torch",), "keras": ("tensorflow", "keras")}
_TITLES = {"torch": "PyTorch", "keras": "Keras"}


class StepRecorder(Protocol):
    """What one framework's steps left behind: kept by `recording.Recorder`, which tells it of each step.

    With `losses` it keeps losses, learning rates and optimizers; else it counts samples only.
    """

    samples: int
    rates: list[float]  # learning rate of the stepping optimizer's first group, by training step
    optimizers: list[Any]  # that stepped

    def stepped(self, optimizer: Any, ticked: bool) -> bool:
        """An optimizer stepped; `ticked`: that completed a training step. False where it is not of this framework."""

    def losses(self) -> list[list[float]]:
        """Those sent backward, by training step; may wait for the device."""

    def parameters_hash(self) -> str | None: ...

    def trained(self) -> str:
        """How much is trained, as text."""

    def call_sizes(self) -> dict[str, int]:
        """Calls by the sizes of their inputs, as text; of a program that trains none."""

    def state_hash(self) -> str:
        """Of parameters, optimizer states and random states: equal only where the runs are equal."""


class LossValues(Protocol):
    def noted(self, loss: Any, steps: Callable[[], int]) -> tuple[int, float] | None:
        """`loss` is sent backward. The first step known by now whose loss is not finite, with its value.

        Waits for no device: a loss on one is known some steps later.

        Args:
            steps: complete ones so far.
        """


class FrameworkSeams(Protocol):
    """The module `overdrive.seams.NAME`."""

    def enter(self, hub: Seams) -> Callable[[], None]:
        """Patch what the hub's subscribers need; returns what takes every patch away again."""

    def make_step_recorder(self, hub: Seams, losses: bool) -> StepRecorder: ...

    def make_loss_values(self, every: int, heard: Callable[[int, float], None] | None = None) -> LossValues | None:
        """Of losses on a device one in `every` is looked at; `heard` is told step and value of each that is finite.
        None where this framework's are not seen."""

    def seed(self, seed: int) -> None:
        """Seed the framework's own generators."""

    def synchronize(self) -> None:
        """Wait for the device, where one is in use."""

    def peak_memory(self) -> int:
        """The most bytes of device memory that were in use at once so far; 0 where none is used."""

    def refuse_chance(self) -> None:
        """Have operations fail that may differ from run to run."""

    def compute_carefully(self) -> None:
        """Compute as exactly as the program's own precision allows, on one thread; may be called again."""

    def shorten_epochs(self, samples: int) -> None:
        """Have epochs of loaders end after so many samples, in whole batches, where that can be done."""


def seams_of(name: str) -> FrameworkSeams:
    """Imports the framework, which must have arrived."""
    return cast(FrameworkSeams, importlib.import_module(f"overdrive.seams.{name}"))


def title(name: str) -> str:
    """As people write it."""
    return _TITLES[name]
