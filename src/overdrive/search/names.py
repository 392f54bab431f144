"""The names of hyperparameters: one for each, however a program spells it."""

from __future__ import annotations

import re

from overdrive.core.hyperparameters import DEPTH, DROPOUT, HEADS, KERNEL, OPTIMIZER, SCHEDULE, WIDTH, ValuePlace

LR, WEIGHT_DECAY, MOMENTUM, BETA1, BETA2 = "lr", "weight-decay", "momentum", "beta1", "beta2"
BATCH_SIZE, DROPOUT_RATE = "batch-size", "dropout"
ANNEAL = "anneal"  # the share of the run over which the learning rates fall
BLOCKS, HIDDEN = "depth", "width"  # of a model
OF_TRAINING = (LR, BATCH_SIZE, WEIGHT_DECAY, MOMENTUM, BETA1, BETA2, ANNEAL)
USUAL = (LR, BATCH_SIZE)  # what is varied unless the user names others

_SPELLINGS = {
    LR: r"(.*-)?(lr|learning-?rate|lrate)",
    BATCH_SIZE: r"(.*-)?(batch-?size|bs|bsz|batch)",
    WEIGHT_DECAY: r"(.*-)?(weight-?decay|wd|l2)",
    MOMENTUM: r"(.*-)?(momentum|mom)",
    BETA1: r"(.*-)?(beta-?1|b1)",
    BETA2: r"(.*-)?(beta-?2|b2)",
    DROPOUT_RATE: r"(.*-)?(drop-?out(-?(rate|p|prob))?|drop|pdrop)",
    BLOCKS: r"(n-?|num-?(of-?)?)?(layers?|blocks?|hidden-layers)|depth",
    HEADS: r"heads|(n-?|num-?(attention-?)?)heads?",
    KERNEL: r"kernel(-?size)?",
    HIDDEN: r"(n-?|d-?|num-?)?(hidden|hid|ff|ffn|intermediate)(-?(size|dim|dims|units|features|channels))?|width",
}
_WORDS = {
    "lr": "learning rate",
    "weight_decay": "weight decay",
    "batch_size": "batch size",
    "p": "dropout rate",
    "width": "hidden size",
    HEADS: "number of heads",
    KERNEL: "kernel size",
}
_NOT = re.compile(r"(^|-)(min|final|end|eval|test|val|valid|validation|log|print)(-|$)")


def spelled(name: str) -> str:
    """`--batch_size`, `batchSize` and `Config.BATCH_SIZE` are `batch-size`, and a name in a table its own part."""
    word = name.lstrip("-").rsplit(".", 1)[-1]
    word = re.sub(r"(?<=[a-z0-9])(?=[A-Z][a-z])", "-", word)
    return word.lower().replace("_", "-").strip("-")


def means(name: str) -> str:
    """Which of the usual hyperparameters a name stands for, by its spelling; nothing where none is known."""
    word = spelled(name)
    if _NOT.search(word):
        return ""
    return next((meant for meant, pattern in _SPELLINGS.items() if re.fullmatch(pattern, word)), "")


def usual(place: ValuePlace) -> str:
    """Which of them a value stands for that the program's author named; a flag or a word is none of these numbers."""
    return "" if isinstance(place.value, (bool, str)) else means(place.name)


def at_seam(place: ValuePlace) -> str:
    """The name of what stands at a seam."""
    if place.kind == DROPOUT:
        return DROPOUT_RATE
    if place.kind in (DEPTH, WIDTH):
        return BLOCKS if place.kind == DEPTH else HIDDEN
    if place.kind in (HEADS, KERNEL):
        return place.kind
    if place.kind == SCHEDULE:
        return ANNEAL
    return spelled(place.name) if place.kind == OPTIMIZER else BATCH_SIZE


def told(place: ValuePlace) -> str:
    """What a seam's value is, for people: `learning rate of Adam`."""
    if place.kind == DEPTH:
        return f"number of blocks in {place.name}"
    if place.kind == SCHEDULE:
        return "fall of all learning rates"
    what = _WORDS.get(place.name, place.name if place.kind == OPTIMIZER else "batch size")
    of = place.of or "the model's input"
    return f"{what} of {of}" + (f" ({place.where})" if place.where else "")
