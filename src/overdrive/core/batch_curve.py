"""What is foretold of batch sizes, as plain data: what `search --batch-curve --json` writes and its report shows."""

from __future__ import annotations

from dataclasses import dataclass

VERSION = 1


@dataclass(frozen=True)
class BatchSize:
    """What is foretold of one.

    Attributes:
        seconds: of a step, measured.
        steps: to the same loss, as a multiple of those that the default takes.
        time: to the same loss, as a multiple of the default's.
        rate: of learning, as a multiple of the default's.
    """

    batch: int
    seconds: float
    steps: float
    time: float
    rate: float

    @property
    def throughput(self) -> float:
        """Samples a second."""
        return self.batch / self.seconds


@dataclass(frozen=True)
class BatchCurve:
    """Sizes in their order; `noise_scale` in samples: where the steps seen show no direction in common, `at_least`."""

    program: str
    default: int
    noise_scale: float
    at_least: bool
    sizes: tuple[BatchSize, ...]
    version: int = VERSION

    @property
    def best(self) -> BatchSize:
        return min(self.sizes, key=lambda each: each.time)

    def sentence(self) -> str:
        """What it says, and what a larger batch costs."""
        best, largest = self.best, self.sizes[-1]
        about = "above" if self.at_least else "about"
        noise = f"{about} {float(f'{self.noise_scale:.1g}'):,.0f} samples"
        samples = largest.steps * largest.batch / self.default
        cost = f"a batch of {largest.batch} sees {samples:.2g} times the samples for the same loss"
        head = f"Foretold from the step's time at each size and the gradient's noise scale early on ({noise}): "
        if best.batch == self.default:
            return f"{head}no other batch comes to the same loss sooner than {self.default}; {cost}."
        return (
            f"{head}a batch of {best.batch} comes to the same loss in {best.time:.2f} of the time, "
            f"with {best.rate:.2g} times the learning rate; {cost}."
        )
