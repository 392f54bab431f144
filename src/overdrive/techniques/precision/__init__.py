"""What the techniques of 16 bits judge by."""

from __future__ import annotations

from overdrive.core.facts import Facts


def unfit_for_16_bits(facts: Facts) -> str | None:
    """Why a PyTorch program is none for 16 bits, on any device; None where it is."""
    if facts.own_autocast:
        return "the program has an autocast of its own"
    if none := facts.without_module():
        return none
    if "torch.float32" not in facts.parameter_dtypes:
        return f"the parameters are {', '.join(facts.parameter_dtypes)}, not 32-bit"
    return None


def no_16_bit_units(facts: Facts) -> str | None:
    """Why a processor gains nothing by 16 bits; None on a GPU, where fp16 is there to be tried."""
    if facts.device == "cpu" and not facts.bf16_fast:
        return "this processor does not multiply bf16 in hardware"
    return None


def types_of_16_bits(facts: Facts) -> list[str]:
    """Those to be tried on the program's device."""
    if facts.device != "cuda":
        return ["bfloat16"]
    return [*(["bfloat16"] if facts.bf16_fast else []), "float16"]
