"""The states of random generators that a program makes for itself: Python's, numpy's and torch's."""

from __future__ import annotations

import random
from typing import Any

import numpy as np


def state_of(generator: Any) -> Any:
    if isinstance(generator, random.SystemRandom):
        return None
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, np.random.Generator):
        of_seed: Any = generator.bit_generator.seed_seq  # how many were made from it
        return {**generator.bit_generator.state, "made": getattr(of_seed, "n_children_spawned", None)}
    if isinstance(generator, np.random.RandomState):
        return generator.get_state(legacy=False)
    return generator.get_state()


def set_state(generator: Any, state: Any) -> None:
    if isinstance(generator, random.SystemRandom):
        return
    if isinstance(generator, random.Random):
        generator.setstate(state)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = {key: value for key, value in state.items() if key != "made"}
    else:
        generator.set_state(state)


def seed_generator(generator: Any, seed: int) -> None:
    if isinstance(generator, (random.Random, np.random.RandomState)):
        generator.seed(seed % 2**32)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = type(generator.bit_generator)(seed).state
    else:
        generator.manual_seed(seed)


def frozen(state: Any) -> Any:
    """A state that can be compared, and is the generator's own no more."""
    if isinstance(state, dict):
        return tuple((key, frozen(value)) for key, value in state.items())
    if isinstance(state, np.ndarray):
        return state.tobytes()
    return bytes(state.numpy()) if hasattr(state, "numpy") else state
