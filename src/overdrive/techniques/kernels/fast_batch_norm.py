"""Technique `fast_batch_norm`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.techniques.kernels.compared import Compared
from overdrive.techniques.technique import CannotInstall, Technique

if TYPE_CHECKING:
    from overdrive.kernels.batch_norm.operator import BatchNorm
    from overdrive.seams.hub import Handle, Seams
    from overdrive.techniques.technique import Settings

_NONE = "no batch normalisation of 65,536 floats or more, in torch's usual memory order, was trained"


class FastBatchNorm(Technique):
    """Batch normalisation in training on a CPU by a kernel of Overdrive's own, compiled when the program starts.

    What it does: torch adds up each channel's mean and variance in 64 bits, one number after another, each addition
    waiting for the one before. The kernel holds the sums of eight channels in one vector register and adds them up
    beside each other: each in torch's order, so that every bit is the same. The backward pass is torch's own. One
    file of C, compiled in half a second while torch is being imported, for this process alone. Needs a C compiler
    (`cc`, `gcc` or `clang`).

    When it helps: convolutional networks that train on a CPU with batch normalisation, most of all those of small
    convolutions: it is MEASURED. 16 x 64 x 56 x 56 numbers take MEASURED.

    When it hurts: small tensors, where 50 us of Python are more than it saves: below 65,536 numbers torch's own is
    called. So it is in evaluation, with channels last, in bf16 and fp64, in planes of less than 16 numbers
    (`BatchNorm1d` on vectors), and in whatever is compiled or traced.

    What it watches: each call's arguments: mode, type, device, memory order, shapes of the parameters. What would
    escape: values, or an input's 17th shape and later ones, for which its kernel is not torch's: these are not
    compared.

    Contract: exact. Results, running statistics and gradients are compared with torch's in every bit on the
    program's own first inputs of each shape, and at the first difference it is left out: a library that was compiled
    otherwise may add and multiply in another way.

    Source: the order of operations is that of torch/aten/src/ATen/native/cpu/batch_norm_kernel.cpp and
    Normalization.cpp; the code is our own.
    """

    name = "fast_batch_norm"
    contract = Contract.EXACT
    targets = ("forward",)
    expected_saving = 0.1
    acts_on = ("batch_norm",)
    switchable = True
    survives = True
    order = 97  # it is asked after the techniques that normalise over the batches of all ranks (95)

    def applies(self, facts: Facts) -> str | None:
        from overdrive.kernels.build import compiler

        if facts.device != "cpu":
            return f"the model is on the {facts.device}, and its kernel is for CPUs"
        if facts.own_compile:
            return "the program compiles its model itself"
        if not self.own(facts).get("norms", True):
            return _NONE
        return None if compiler() else "there is no C compiler on this machine"

    def observe(self, seams: Seams) -> Callable[[], Mapping[str, Any]]:
        seen: set[bool] = set()

        def look(plain: Any, args: Any, kwargs: Any) -> None:
            from overdrive.kernels.batch_norm.operator import arguments, fits

            if True not in seen:
                seen.add(fits(arguments(args, kwargs)))

        seams.operator_called("batch_norm").subscribe(look)
        return lambda: {"norms": True in seen}

    def install(self, seams: Seams, settings: Settings) -> Handle:
        from overdrive.kernels.build import Building, CannotBuild

        try:
            building = Building("batch_norm/batch_norm.c")
        except CannotBuild as error:
            raise CannotInstall(str(error)) from None

        def load() -> BatchNorm:
            from overdrive.kernels.batch_norm.operator import BatchNorm

            return BatchNorm(building)

        kernel = Compared(load)

        def answer(plain: Any, args: Any, kwargs: Any) -> Any:
            from overdrive.kernels.batch_norm.operator import arguments, fits

            given = arguments(args, kwargs)
            if not fits(given):
                return None
            norm = kernel.get(plain)
            x = given["input"]
            kernel.check((x.shape, given["weight"] is None), lambda: norm.differs_on(plain, given))
            return norm(given)

        def first_step(optimizer: Any) -> None:
            seams.step_ends.unsubscribe(first_step)
            if not kernel.checked:
                raise CannotInstall(_NONE)

        seams.operator_called("batch_norm").subscribe(answer)
        seams.step_ends.subscribe(first_step)
        seams.on_undo(building.forget)
        return seams.handle()
