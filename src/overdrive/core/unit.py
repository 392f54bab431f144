"""What a step of a program is called, for people: one that trains nothing makes calls."""

from __future__ import annotations


def unit_of(inference: bool) -> str:
    return "call" if inference else "step"


def whole_unit_of(inference: bool) -> str:
    return "call of the model" if inference else "training step"
