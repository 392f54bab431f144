"""Technique `onednn`."""

from __future__ import annotations

import os

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.techniques.technique import Knob, Settings, Technique

_SWITCH = "TF_ENABLE_ONEDNN_OPTS"


class Onednn(Technique):
    """Switches oneDNN's kernels off, or on, in TensorFlow on the CPU.

    What it does: sets `TF_ENABLE_ONEDNN_OPTS` before the process starts. TensorFlow has them on by itself on x86.

    When it helps: off, small models, for which oneDNN's preparing of its primitives costs more than its kernels save.
    On, processors on which TensorFlow leaves them off.

    When it hurts: off, large convolutions and matrix products, and all arithmetic in bf16. Where the user has set the
    variable, it stays.

    What it watches: nothing: the kernels are chosen before the process starts. What would escape: operations that are
    first called after the proof, whose other kernels it has not seen.

    Contract: rounding. Other kernels take sums in another order.

    Source: https://github.com/tensorflow/community/blob/master/rfcs/20210930-enable-onednn-ops.md
    """

    name = "onednn"
    frameworks = ("keras",)
    programs = ("training", "inference")
    contract = Contract.ROUNDING
    targets = ("forward", "backward", "optimizer", "other")
    order = 17
    knobs = (Knob("enabled", False, "whether oneDNN's kernels are used"),)

    def applies(self, facts: Facts) -> str | None:
        if elsewhere := facts.not_on_tensorflow():
            return elsewhere
        if facts.device != "cpu":
            return "the work is done on the GPU"
        return f"{_SWITCH} is set already" if _SWITCH in os.environ else None

    def environment(self, settings: Settings) -> dict[str, str]:
        return {_SWITCH: "1" if settings["enabled"] else "0"}
