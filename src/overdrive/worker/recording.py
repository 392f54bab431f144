"""What a run did: steps, samples, losses, learning rates, and a hash of where it ended."""

from __future__ import annotations

from typing import Any

from overdrive.seams import frameworks
from overdrive.seams.frameworks import StepRecorder
from overdrive.seams.hub import Seams
from overdrive.worker.clock import Clock, TrainingClock


class Recorder:
    """An observer for `Session`. Costs a few microseconds a step; reads no tensor until asked.

    With `losses` it also keeps every step's losses and learning rate, and the optimizers for the hashes.
    """

    def __init__(self, losses: bool = False, clock: Clock | None = None) -> None:
        self.clock: Clock = clock or TrainingClock()
        self._seen = 0  # steps of the clock, at the last optimizer's step
        self.first_step_at: float | None = None  # time.perf_counter() when the first step was done
        self.first_step_samples = 0
        self.framework = ""  # whose optimizer steps; before the first step, that which arrived first
        self._first_steps = 0  # that were made at once with the first: a call may make many
        self._with_losses = losses
        self._step_recorders: dict[str, StepRecorder] = {}

    def __call__(self, seams: Seams) -> None:
        def arrived() -> None:
            name = seams.frameworks[-1]
            self._step_recorders[name] = frameworks.seams_of(name).make_step_recorder(seams, self._with_losses)
            self.framework = self.framework or name

        def stepped(optimizer: Any) -> None:
            self._stepped(optimizer)
            if self.first_step_at is not None and not (self._with_losses or seams.inference):
                seams.step_ends.unsubscribe(stepped)  # it is known whose steps they are, and nothing is kept of each

        def rests() -> None:
            if self.clock.steps:
                seams.between_steps.unsubscribe(rests)
                self._first_step_done()

        seams.framework_arrived.subscribe(arrived)
        self.clock.watch(seams)
        seams.step_ends.subscribe(stepped)
        seams.between_steps.subscribe(rests)

    def _stepped(self, optimizer: Any) -> None:
        steps = self.clock.steps
        ticked = steps != self._seen  # this completed a step
        self._seen = steps
        for name, step_recorder in self._step_recorders.items():
            if step_recorder.stepped(optimizer, ticked) and self.first_step_at is None:
                self.framework = name

    def _first_step_done(self) -> None:
        self.first_step_at = self.clock.ticked_at
        self._first_steps = self.clock.steps
        self.first_step_samples = self.samples

    @property
    def step_recorder(self) -> StepRecorder | None:
        return self._step_recorders.get(self.framework)

    @property
    def samples(self) -> int:
        """Trained on so far: only a batch that leads to a gradient counts."""
        return self.step_recorder.samples if self.step_recorder else 0

    @property
    def rates(self) -> list[float]:
        """Learning rate of the stepping optimizer's first group, by training step."""
        return self.step_recorder.rates if self.step_recorder else []

    @property
    def optimizers(self) -> list[Any]:
        """Kept alive: a script's own are gone when its main() returns."""
        return self.step_recorder.optimizers if self.step_recorder else []

    def losses(self) -> list[list[float]]:
        """The losses sent backward, by training step; reading them waits for the device."""
        return self.step_recorder.losses() if self.step_recorder else []

    def seconds_per_step(self) -> float | None:
        """Mean over all steps after the first, evaluation between them included."""
        if self.first_step_at is None or self.clock.steps <= self._first_steps:
            return None
        return (self.clock.ticked_at - self.first_step_at) / (self.clock.steps - self._first_steps)

    def samples_per_second(self) -> float | None:
        if self.first_step_at is None or self.samples == self.first_step_samples:
            return None
        if self.clock.ticked_at <= self.first_step_at:  # gradients without a second step
            return None
        return (self.samples - self.first_step_samples) / (self.clock.ticked_at - self.first_step_at)

    def parameters_hash(self) -> str | None:
        """sha256 of all parameters of all optimizers that stepped, in their order; None before any step."""
        return self.step_recorder.parameters_hash() if self.step_recorder else None

    def trained(self) -> str:
        """How much is trained, as text: optimizers that stepped, their tensors and scalars with a gradient."""
        return self.step_recorder.trained() if self.step_recorder else ""

    def call_sizes(self) -> dict[str, int]:
        """Of a program that trains nothing: its calls, by the sizes of what they were given."""
        return self.step_recorder.call_sizes() if self.step_recorder else {}

    def state_hash(self) -> str:
        """sha256 of parameters, optimizer states and random states: equal only where the runs are equal."""
        return self.step_recorder.state_hash() if self.step_recorder else ""
