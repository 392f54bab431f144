"""What the techniques that compute in 16 bits have in common: the programs that they suit, and the types to try."""

from __future__ import annotations

from collections.abc import Sequence

from overdrive.facts import Facts
from overdrive.techniques.technique import Knob, Settings

DTYPE = Knob("dtype", "bfloat16", "the 16-bit type", choices=("bfloat16", "float16"))


def unsuited(facts: Facts) -> str | None:
    """Why a PyTorch program is none for 16 bits, on any machine; None where it is."""
    if facts.own_autocast:
        return "the program has an autocast of its own"
    if not facts.modules:
        return "the trained parameters belong to no nn.Module"
    if "torch.float32" not in facts.parameter_dtypes:
        return f"the parameters are {', '.join(facts.parameter_dtypes)}, not 32-bit"
    return None


def without_units(facts: Facts) -> str | None:
    """Why this processor gains nothing by them; None on a GPU, where fp16 is there to be tried."""
    if facts.device == "cpu" and not facts.bf16_fast:
        return "this processor does not multiply bf16 in hardware"
    return None


def types_to_try(facts: Facts) -> Sequence[Settings]:
    if facts.device != "cuda":
        return [{"dtype": "bfloat16"}]
    return [*([{"dtype": "bfloat16"}] if facts.bf16_fast else []), {"dtype": "float16"}]


def format_of(settings: Settings) -> str:
    """As in the report's table of formats."""
    return "fp16" if settings["dtype"] == "float16" else "bf16"
