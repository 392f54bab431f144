"""Technique `xla_clusters`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.techniques.technique import Settings, Technique

if TYPE_CHECKING:
    from overdrive.seams.hub import Seams

_FLAGS = "TF_XLA_FLAGS"
_CLUSTERS = ("--tf_xla_auto_jit=2", "--tf_xla_cpu_global_jit")


class XlaClusters(Technique):
    """Lets TensorFlow compile those parts of its graphs by XLA that it holds worth it.

    What it does: sets `TF_XLA_FLAGS` before the process starts, so that every graph is searched for clusters of
    operations to compile together, on the CPU too. It reaches the program's own `tf.function`s.

    When it helps: loops of the program's own, and models of which XLA cannot compile the whole.

    When it hurts: where all runs eagerly, without a `tf.function`, it does nothing. As with `jit_compile`, compiling
    takes time, at every new shape again, and XLA's convolutions on the CPU are slower than oneDNN's. Flags that the
    user has set stay; where they set this one, nothing is done.

    What it watches: nothing: the flag is read when TensorFlow starts. What would escape: functions that are first
    called after the proof, whose clusters it has not seen.

    Contract: rounding. Fused operations round at other places. It falls to statistical where what is compiled draws
    random numbers, which XLA makes by another generator.

    Source: https://openxla.org/xla/tf2xla (auto-clustering)
    """

    name = "xla_clusters"
    frameworks = ("keras",)
    programs = ("training", "inference")
    contract = Contract.ROUNDING
    fallback_contract = Contract.STATISTICAL
    targets = ("forward", "backward", "optimizer", "other")
    expected_saving = 0.15
    conflicts = ("jit_compile",)
    order = 43

    def applies(self, facts: Facts) -> str | None:
        if elsewhere := facts.not_on_tensorflow():
            return elsewhere
        if "tf_xla_auto_jit" in os.environ.get(_FLAGS, ""):
            return f"{_FLAGS} says already what is to be compiled"
        if not facts.inference and not self.own(facts).get("functions", True):
            return "it runs eagerly: no tf.function was called"
        return None

    def observe(self, seams: Seams) -> Callable[[], Mapping[str, Any]]:
        called = [0]

        def returned() -> None:
            called[0] += 1

        seams.at_work.subscribe(returned)  # told after each outermost call of a `tf.function`
        return lambda: {"functions": called[0]}

    def environment(self, settings: Settings) -> dict[str, str]:
        present = os.environ.get(_FLAGS, "").split()
        if any(each.startswith("--tf_xla_auto_jit") for each in present):
            return {_FLAGS: os.environ[_FLAGS]}  # as it is, also when this is asked inside the process
        return {_FLAGS: " ".join((*present, *_CLUSTERS))}
