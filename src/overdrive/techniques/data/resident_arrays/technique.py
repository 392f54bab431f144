"""Technique `resident_arrays`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.techniques.technique import CannotInstall, Knob, Settings, Technique

if TYPE_CHECKING:
    from overdrive.seams.hub import Handle, Seams


class ResidentArrays(Technique):
    """Holds the arrays given to Keras's `fit` on the GPU, and gathers each batch there.

    What it does: Keras takes each batch out of NumPy arrays in main memory and copies it to the GPU. Here the arrays
    (inputs, targets, weights, and those for validation) are sent there once, when a `fit` begins, and its own adapter
    shuffles and batches the numbers of their samples instead. Only these are copied in each step. All is let go of
    when `fit` ends.

    When it helps: small models with large samples, where the copy, or gathering on the CPU, takes longer than the
    step. It has not been measured, and has not run on a GPU yet.

    When it hurts: where the GPU's memory is needed for something else. A `fit` of one epoch gains nothing. On
    TensorFlow batches are fetched one by one, so that the loop of `steps_per_execution` would be in Python again: it is
    one or the other. Left alone: data that are not plain arrays of numbers (data sets, generators, tables, sparse or
    backend tensors), models that are spread over devices, arrays larger than the share of the GPU's memory that the
    knob allows.

    What it watches: the arrays' kinds and sizes, at each `fit`, when they are sent anew. What would escape: arrays that
    a callback, or a thread, writes to while `fit` runs: they are seen as they were when it began.

    Contract: exact. The same values in the same batches, by the same random draws.

    Source: keeping small data sets on the device is a known habit, as in
    https://github.com/KellerJordan/cifar10-airbench.
    """

    name = "resident_arrays"
    frameworks = ("keras",)
    contract = Contract.EXACT
    targets = ("data", "other")  # the copy to the GPU is made between the parts
    expected_saving = 0.4
    conflicts = ("steps_per_execution",)
    order = 22
    knobs = (Knob("memory_share", 0.3, "share of the GPU's memory that the arrays may take", low=0.01, high=0.9),)

    def applies(self, facts: Facts) -> str | None:
        if facts.device != "cuda":
            return "the program runs on the CPU"
        return None if facts.fits else "the program does not call fit()"

    def install(self, seams: Seams, settings: Settings) -> Handle:
        holding = _Holding(float(settings["memory_share"]))

        def first_step(*_: Any) -> None:
            seams.step_ends.unsubscribe(first_step)
            if not holding.used:
                raise CannotInstall(holding.reason)

        seams.fit_called.subscribe(holding.fit)
        seams.data_opened.subscribe(holding.opened)
        seams.step_ends.subscribe(first_step)
        return seams.handle()


class _Holding:
    def __init__(self, memory_share: float) -> None:
        self._memory_share = memory_share
        self._fits = 0  # under way
        self._room = 0.0
        self._device: Any = None
        self.reason = "the program does not call fit()"
        self.used = False

    def fit(self, model: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._device is None:
            self._device, self._memory = place()
        if _is_spread(model):
            self.reason = "the model is spread over devices"
            return call(*args, **kwargs)
        if not self._fits:
            self._room = self._memory_share * self._memory
        self._fits += 1
        try:
            return call(*args, **kwargs)
        finally:
            self._fits -= 1

    def opened(self, data: Any) -> None:
        """`data`: Keras's iterator over epochs, which is about to ask its adapter for batches."""
        if not self._fits:
            return
        from overdrive.techniques.data.resident_arrays.keras_arrays import HeldArrays, bytes_in

        size = bytes_in(data.data_adapter)
        if size is None:
            self.reason = "fit is given other data than arrays of numbers"
        elif size > self._room:
            self.reason = f"the arrays take {size >> 20} MiB, more than {int(self._room) >> 20} MiB of the GPU's memory"
        else:
            data.data_adapter = HeldArrays(data.data_adapter, self._device)
            self._room -= size
            self.used = True


def _is_spread(model: Any) -> bool:
    import keras

    if keras.distribution.distribution() is not None:
        return True
    return getattr(getattr(model, "distribute_strategy", None), "num_replicas_in_sync", 1) > 1


def place() -> tuple[Any, int]:
    """The GPU that Keras computes on, as its backend names it, and the bytes of its memory."""
    import keras

    from overdrive.machine import gpu
    from overdrive.seams.keras.control import gpus

    if not gpus():
        raise CannotInstall("there is no GPU at work")
    sizes = [each["memory_bytes"] for each in gpu.gpus() if "memory_bytes" in each]
    if not sizes:
        raise CannotInstall("the size of the GPU's memory is not known")
    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        return jax.local_devices()[0], min(sizes)
    return {"tensorflow": "/GPU:0", "torch": "cuda"}[backend], min(sizes)
