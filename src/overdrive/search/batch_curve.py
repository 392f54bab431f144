"""How long a program would take to the same loss with other batch sizes: foretold from short trials, not from runs.

Steps to a loss fall with the batch B as 1 + N / B, where N is the gradient's noise scale, if the learning rate grows as
1 / (1 + N / B) (McCandlish et al. 2018, https://arxiv.org/abs/1812.06162, equations 2.7 and 2.11). Steps times the
time of one, which is measured at each size, is the time to that loss.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from overdrive.core.batch_curve import BatchCurve, BatchSize
from overdrive.core.facts import Facts
from overdrive.core.hyperparameters import Hyperparameters
from overdrive.core.program import Program
from overdrive.core.records import Block, TrialOver
from overdrive.core.search_result import Tried
from overdrive.core.settings import Chosen
from overdrive.core.trial_spec import TrialSpec
from overdrive.search.parameters import Parameter, set_in
from overdrive.trials.pool import TrialPool
from overdrive.trials.trial import Trial

_UNTIMED = 3  # steps of a trial that go before
_BLOCKS, _BLOCK_SECONDS = 5, 0.4
_NOISE_STEPS = 24  # whose gradients the noise scale is taken from
NO_NOISE = (
    "The noise of gradients, by which a batch curve is foretold, is measured of PyTorch's optimizers only: "
    "`overdrive search --vary batch-size` tries the sizes."
)


def tells_noise(facts: Facts | None) -> bool:
    """Whether the noise of a program's gradients can be measured: in Keras they are inside of a compiled step."""
    return facts is None or facts.framework == "torch"


def cost_of_curve(defaults: Tried, sizes: Sequence[int], default: int) -> float:
    """Seconds that a curve over these sizes takes, as the run of the default one tells."""
    seconds = _NOISE_STEPS * defaults.pace
    for size in {*sizes, default}:
        step = defaults.pace * max(1.0, size / default)  # a smaller batch may take as long
        seconds += defaults.start + _UNTIMED * step + _BLOCKS * (max(_BLOCK_SECONDS, step) + step)
    return seconds


def batch_curve(
    pool: TrialPool,
    program: Program,
    parameter: Parameter,
    sizes: Sequence[int],
    techniques: Sequence[Chosen],
    tell: Callable[[str], None],
) -> BatchCurve | None:
    """None where the default cannot be measured. A size that the program does not live with is left out."""
    default = int(parameter.default)
    seconds: dict[int, float] = {}
    noise = 0.0
    for size in sorted({*sizes, default}, key=lambda each: each != default):
        tell(f"the time of a step with batches of {size}")
        varied, keys = set_in(program, [parameter], {} if size == default else {parameter.name: size})
        trial = Trial(pool, TrialSpec(varied, tuple(techniques), hyperparameters=Hyperparameters(keys)))
        with suppress(TrialOver):
            try:
                seconds[size] = _step_seconds(trial)
                if size == default:
                    trial.run(_NOISE_STEPS, profile=True)
                    noise = trial.facts().noise_scale
            finally:
                trial.stop()
        if default not in seconds or not noise:
            return None
    return foretold(program.command(), default, noise, seconds)


def _step_seconds(trial: Trial) -> float:
    trial.first_step(time.monotonic() + trial.pool.first_patience)
    block = trial.run(_UNTIMED)
    found: list[float] = []  # of which the least counts: what else runs only makes it longer
    try:
        for _ in range(_BLOCKS):
            block = trial.run(_steps(block), lead=1)
            found.append(block.seconds / block.steps)
    except TrialOver:
        if not found:  # too few steps for one block: those that were to be untimed are all there is
            return block.seconds / block.steps
    return min(found)


def _steps(block: Block) -> int:
    return max(1, round(_BLOCK_SECONDS * block.steps / max(block.seconds, 1e-6)))


def foretold(program: str, default: int, noise: float, seconds: dict[int, float]) -> BatchCurve:
    """From the seconds of a step by batch size, the default's among them.

    Args:
        noise: the scale in samples; infinite where the gradients that were seen point nowhere together: then it is as
            large as all of their samples, at least.
    """
    at_least = math.isinf(noise)
    noise = float(_NOISE_STEPS * default) if at_least else noise

    def steps(batch: int) -> float:
        return (1 + noise / batch) / (1 + noise / default)

    sizes = tuple(
        BatchSize(batch, taken, steps(batch), steps(batch) * taken / seconds[default], 1 / steps(batch))
        for batch, taken in sorted(seconds.items())
    )
    return BatchCurve(program, default, noise, at_least, sizes)
