"""What a duel says of the level `rounding`, before any proof: its first losses come from the same weights and batch."""

from __future__ import annotations

from overdrive.core.facts import Facts
from overdrive.core.records import Trace

# Of the losses' size. An original in fp32 is off by 1e-6 in its worst state, and a proof refuses seven bits more.
_FAR = 2.0**-11


def no_rounding(facts: Facts, original: Trace, candidate: Trace) -> str | None:
    """How far its first losses are off, where no proof at `rounding` can pass; None where one may, or it is not known.

    Of public MNIST a proof took 92 of 300 seconds to say it of `channels_last`, under which dropout draws other masks:
    the first loss was off by 0.14 %.
    """
    reduced = facts.own_autocast or any(_bits(dtype) < 32 for dtype in facts.parameter_dtypes)
    if facts.device != "cpu" or reduced or not (original.losses and candidate.losses):  # a GPU may round to TF32
        return None
    size = max((abs(loss) for losses in original.losses for loss in losses), default=0.0)
    pairs = zip(original.losses[0], candidate.losses[0], strict=False)
    off = max((abs(one - other) for one, other in pairs), default=0.0)
    if not off > _FAR * size:
        return None
    return f"its first loss is off by {off / size:.2g} of its size, which is no rounding"


def _bits(dtype: str) -> int:
    """Of a floating-point type by its name, such as "torch.bfloat16"."""
    digits = "".join(letter for letter in dtype if letter.isdigit())
    return int(digits or 32)
