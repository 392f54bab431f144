"""Technique `fast_max_pool`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.techniques.compared import Compared, of_no_use
from overdrive.techniques.technique import CannotInstall, Technique

if TYPE_CHECKING:
    from overdrive.kernels.max_pool.operator import MaxPool
    from overdrive.kernels.max_pool.windows import Windows
    from overdrive.seams.hub import Handle, Seams
    from overdrive.techniques.technique import Settings

_NO_POOL = "no max pool of 2 x 2 elements in steps of 2, or of 3 x 3 in steps of 1 or 2, was called"


class FastMaxPool(Technique):
    """Max pooling of 2 x 2 or 3 x 3 elements on a CPU by kernels of Overdrive, compiled when the program starts.

    What it does: `max_pool2d` of 2 x 2 elements in steps of 2 (`nn.MaxPool2d(2)`), which torch computes element by
    element, is done in vector registers, 16 windows at a time, in 32 bits and in bf16; what the backward pass needs
    is one byte a window instead of eight, and each gradient is written once. Windows of 3 x 3 in steps of 1 or 2
    (`nn.MaxPool2d(3, 2, 1)`, with which ResNets begin), for which torch takes a branch for each of nine numbers, are
    done eight at a time, in 32 bits and torch's usual memory order; their backward pass is torch's. Each kernel is
    one file of C, compiled in half a second while torch is being imported, for this process alone. Needs a C
    compiler (`cc`, `gcc` or `clang`).

    When it helps: convolutional networks on a CPU. Forward, at batch 64 with 16 channels of 32 x 32, two cores with
    AVX-512: 2.2 ms to 0.07 in torch's usual memory order, 0.22 to 0.06 with channels last, 0.23 to 0.12 in bf16;
    backward 0.27 to 0.08, 0.13 to 0.06 and 0.26 to 0.04. Less memory, too: the pool's input is not kept for it.
    3 x 3 in steps of 2, one thread: 24 ms to 2.8 for 4 images of 64 x 112 x 112; a ResNet-18's step 1.03 times as fast.

    When it hurts: tiny images, where 25 us of Python a call are more than they save. Other windows, dilated ones,
    3 x 3 with channels last, and pools that return indices, are torch's as before; so is what is compiled or traced.

    What it watches: each call's arguments: window, steps, padding, type, device, gradients, whether something traces or
    compiles. What would escape: values, or an input's 17th shape and later ones, for which its kernel is not torch's:
    these are not compared.

    Contract: exact. Of equal elements the same one is chosen; results and gradients are compared with torch's in
    every bit, on values that may come out in another way and on the program's own first images of each shape, and
    at the first difference it is left out.

    Source: the semantics are those of torch/aten/src/ATen/native/cpu/MaxPoolKernel.cpp; the code is our own.
    """

    name = "fast_max_pool"
    programs = ("training", "inference")
    contract = Contract.EXACT
    targets = ("forward", "backward")
    expected_saving = 0.15  # after channels_last and autocast: each of them gains by itself only where pooling is slow
    acts_on = ("max_pool",)
    switchable = True
    survives = True
    order = 34

    def applies(self, facts: Facts) -> str | None:
        return of_no_use(facts, "" if self.own(facts).get("pools", True) else _NO_POOL)

    def observe(self, seams: Seams) -> Callable[[], Mapping[str, Any]]:
        seen: set[bool] = set()

        def look(plain: Any, args: Any, kwargs: Any) -> None:
            from overdrive.kernels.max_pool import operator, windows

            if True not in seen:
                seen.add(operator.fits(args, kwargs) or windows.arguments(args, kwargs) is not None)

        seams.operator_called("max_pool2d").subscribe(look)
        return lambda: {"pools": True in seen}

    def install(self, seams: Seams, settings: Settings) -> Handle:
        from overdrive.kernels.build import Building, CannotBuild

        buildings: list[Building] = []

        def forget() -> None:
            for each in buildings:
                each.forget()

        seams.on_undo(forget)
        try:
            buildings += [Building("max_pool/max_pool.c")]
            buildings += [Building("max_pool/windows.c")]
        except CannotBuild as error:
            raise CannotInstall(str(error)) from None

        def pairs() -> MaxPool:
            from overdrive.kernels.max_pool.operator import MaxPool

            return MaxPool(buildings[0])

        def windows() -> Windows:
            from overdrive.kernels.max_pool.windows import Windows

            return Windows(buildings[1])

        two, three = Compared(pairs), Compared(windows)

        def answer(plain: Any, args: Any, kwargs: Any) -> Any:
            from overdrive.kernels.max_pool.operator import fits
            from overdrive.kernels.max_pool.windows import arguments

            if fits(args, kwargs):
                pool, x = two.get(plain), args[0]
                two.check((x.dtype, x.shape, x.stride()), lambda: pool.differs_on(plain, x))
                return pool(x)
            if (given := arguments(args, kwargs)) is None:
                return None
            large = three.get(plain)
            three.check((given[0].shape, *given[1:]), lambda: large.differs_on(plain, *given))
            return large(*given)

        def first_step(optimizer: Any) -> None:
            seams.step_ends.unsubscribe(first_step)
            if not two.checked and not three.checked:
                raise CannotInstall(_NO_POOL)

        seams.operator_called("max_pool2d").subscribe(answer)
        seams.step_ends.subscribe(first_step)
        return seams.handle()
