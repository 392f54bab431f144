"""Technique `fast_dropout`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.techniques.compared import Compared, of_no_use
from overdrive.techniques.technique import CannotInstall, Technique

if TYPE_CHECKING:
    from overdrive.kernels.dropout.operator import Dropout
    from overdrive.seams.hub import Handle, Seams
    from overdrive.techniques.technique import Settings

_NONE = "no dropout of 8,192 floats or more was trained"
_NAMES = ("dropout", "dropout_")


class FastDropout(Technique):
    """Dropout on a CPU from torch's own random numbers, by a kernel of Overdrive, compiled as the program starts.

    What it does: torch asks its generator for two words of 32 bits for each number that may be dropped, one after
    another and on one core, whatever the number of cores. The kernel makes the same words (the generator is a
    Mersenne Twister) in vector registers, 624 at once, and leaves the generator in the same state. The product, and
    with it the backward pass, is torch's. One file of C, compiled in half a second while torch is being imported, for
    this process alone. Needs a C compiler (`cc`, `gcc` or `clang`).

    When it helps: whatever trains with dropout on a CPU that is not Intel's: 0.7 ns for each number instead of 8 on
    an AMD EPYC. One thread: a step of MNIST's CNN (590,000 numbers) 1.08 times as fast, of a small transformer 1.07.

    When it hurts: tensors of few numbers, where 25 us of Python are more than it saves: below 8,192 torch's own is
    called. So it is for other types than 32 bits, for dropout within attention, in a recurrent layer or of whole
    channels, and in whatever is compiled or traced.

    What it watches: each call's arguments, and whether another thread has drawn while it drew: then torch draws, and
    it is left out. What would escape: a thread that draws in the few microseconds between that look and the state's
    being written; and a library that is exchanged while the program runs.

    Contract: exact. Before it is used, what it draws and the generator's state afterwards are compared with torch's
    for six sizes. On Intel's CPUs torch draws by MKL, from another stream: there it leaves itself out.

    Source: M. Matsumoto and T. Nishimura, Mersenne Twister, 1998; the order of draws is that of
    torch/aten/src/ATen/core/DistributionsHelper.h; the code is our own.
    """

    name = "fast_dropout"
    contract = Contract.EXACT
    targets = ("forward",)
    expected_saving = 0.1
    acts_on = ("bernoulli", "dropout")
    switchable = True
    survives = True
    order = 97  # it is asked after the techniques that draw for all ranks (95)

    def applies(self, facts: Facts) -> str | None:
        return of_no_use(facts, "" if self.own(facts).get("drops", True) else _NONE)

    def observe(self, seams: Seams) -> Callable[[], Mapping[str, Any]]:
        seen: set[bool] = set()

        def look(name: str, plain: Any, args: Any, kwargs: Any) -> None:
            from overdrive.kernels.dropout.operator import arguments
            from overdrive.seams.torch.tracing import traced

            if name in _NAMES and True not in seen and not traced():
                seen.add(arguments(args, kwargs) is not None)

        seams.random_drawn.subscribe(look)
        return lambda: {"drops": True in seen}

    def install(self, seams: Seams, settings: Settings) -> Handle:
        from overdrive.kernels.build import Building, CannotBuild

        try:
            building = Building("dropout/dropout.c")
        except CannotBuild as error:
            raise CannotInstall(str(error)) from None

        def load() -> Dropout:
            from overdrive.kernels.dropout.operator import Dropout

            return Dropout(building)

        kernel = Compared(load)

        def answer(name: str, plain: Any, args: Any, kwargs: Any) -> Any:
            from overdrive.kernels.dropout.operator import arguments
            from overdrive.seams.torch.tracing import traced

            if name not in _NAMES or traced() or (given := arguments(args, kwargs)) is None:
                return None
            return kernel.get(plain if name == "dropout" else _copied(plain))(name, *given)

        seams.random_drawn.subscribe(answer)
        seams.on_undo(building.forget)
        return seams.handle()


def _copied(plain: Any) -> Callable[..., Any]:
    """Torch's function that changes its input, as one that does not."""
    return lambda x, *given: plain(x.clone(), *given)
