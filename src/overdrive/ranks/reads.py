"""What the program's Python reads of tensors is rank 0's: `loss.item()`, `if loss < best:`, `range(count)`.

A number of a rank's own may be another one in its last digits, by other hardware; where it is compared with something,
that is another way through the program. So what is read is exchanged, and all ranks go on with the first one's.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from overdrive.core.flag import FlagOfThread
from overdrive.core.whose import OURS, is_ours
from overdrive.seams.parameters import looks_at_more, parameters_of

if TYPE_CHECKING:
    from overdrive.ranks.group import Group
    from overdrive.seams.hub import Seams
    from overdrive.seams.points import Point

_UNLIKE = 1e-3  # of numbers that are read: further apart than other hardware computes the same
_FEW = 16  # numbers: more at once are data, a batch's labels or predictions
_SEAM, _OUTER = (os.path.join(OURS, "seams", "torch", name) for name in ("scalars.py", "asked.py"))


class Reads:
    """
    Args:
        say: tells something of this rank.
        goes: whether anything is exchanged now.
        step: how many steps were made.
        differing: who tell whether it is a parameter of which each rank has another part.
    """

    def __init__(
        self,
        group_of: Callable[[], Group],
        say: Callable[[str], None],
        goes: Callable[[], bool],
        step: Callable[[], int],
        differing: Sequence[Callable[[Any], bool]],
    ) -> None:
        self._group_of, self._say, self._goes = group_of, say, goes
        self._step, self._differing = step, differing
        self._told_kinds: set[str] = set()
        self._told_of_fetches: Point | None = None
        self._printing = FlagOfThread()
        self._stepping: Any = None  # the optimizer whose step is under way
        self._step_is_own: bool | None = None  # see `_is_own`; None: nothing was read in it yet

    def observe(self, seams: Seams) -> None:
        self._told_of_fetches = seams.samples_fetched
        seams.step_begins.subscribe(self._step_begins)
        seams.step_ends.subscribe(self._step_ends)
        seams.closure_called.subscribe(self._closure)
        seams.scalar_read.subscribe(self._read)
        seams.value_read.subscribe(self._value)

    # -- steps of optimizers ----------------------------------------------------------------------

    def _step_begins(self, optimizer: Any) -> None:
        self._stepping, self._step_is_own = optimizer, None

    def _step_ends(self, optimizer: Any) -> None:
        self._stepping = None

    def _closure(self, optimizer: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """It is the program's code, which may be all of a step's: Lightning's is."""
        before, self._stepping = self._stepping, None
        try:
            return call(*args, **kwargs)
        finally:
            self._stepping = before

    def _in_own_step(self) -> bool:
        """Whether an optimizer is at work which reads only what it counts, as Adam does for each parameter, or one that
        has parts of its parameters on each rank. LBFGS compares losses and gradients, and goes by what it finds."""
        if self._stepping is None:
            return False
        if self._step_is_own is None:
            self._step_is_own = self._is_own(self._stepping)
        return self._step_is_own

    def _is_own(self, optimizer: Any) -> bool:
        if not hasattr(optimizer, "param_groups") or not looks_at_more(optimizer):
            return True
        return any(differs(each) for differs in self._differing for each in parameters_of(optimizer))

    # -- what is read -----------------------------------------------------------------------------

    def _read(self, tensor: Any, call: Callable[[], Any]) -> Any:
        number = call()
        if isinstance(number, complex) or self.alone():
            return number
        asked = number if isinstance(number, float) else int(number)
        return type(number)(self._of_first([asked], "a number")[0])

    def _value(self, name: str, call: Callable[[], Any]) -> Any:
        if _asked_by_us():
            return call()
        if name == "__repr__":
            return self._printed(call)
        value = call()
        if isinstance(value, bool):
            return value if self.alone() else bool(self._of_first([int(value)], "a truth value")[0])
        if isinstance(value, (int, float)):
            return value if self.alone() else type(value)(self._of_first([value], "a number")[0])
        own = _few(value)
        if own is None or self.alone():
            return value
        told = self._of_first(own, "a number")
        return value if _same(own, told) else _with(value, told)

    def _printed(self, call: Callable[[], Any]) -> Any:
        """PyTorch reads each number for itself, as many as are shown; only rank 0 shows them."""
        with self._printing:
            return call()

    def alone(self) -> bool:
        """Whether this rank goes by its own."""
        return bool(self._printing) or not self._goes() or self._in_own_step() or self._in_fetch()

    def _in_fetch(self) -> bool:
        """Whether a data set reads this of its own tensors, as torchvision's MNIST does each label: ranks make samples
        each by itself, and where these differ so do their losses. A run that survives keeps such numbers, and answers
        for all ranks when it is made again: then rank 0 tells them."""
        from overdrive.seams.torch import fetches

        return fetches.under_way() and not (self._told_of_fetches and self._told_of_fetches.subscribers)

    def _of_first(self, own: Sequence[float | int], kind: str) -> list[float | int]:
        """Rank 0's numbers in place of these."""
        if any(isinstance(each, float) for each in own):
            own = [float(each) for each in own]
        elif not all(-(2**63) <= each < 2**63 for each in own):
            return [*own]
        told = self._group_of().numbers_of_each(own, f"{kind} that is read")
        for numbers in zip(*told, strict=True):
            self._compare(numbers, kind)
        return told[0]

    def _compare(self, told: Sequence[float | int], kind: str) -> None:
        """What a program only prints is in no comparison: of a layer in parts a norm by hand, say."""
        if kind in self._told_kinds or self._group_of().rank or all(each == told[0] for each in told):
            return
        most = _UNLIKE * max(abs(each) for each in told)
        other = next((rank for rank, each in enumerate(told) if abs(each - told[0]) > most), 0)
        if not other:
            return
        self._told_kinds.add(kind)
        shown = [str(bool(each)) if kind == "a truth value" else f"{each:.6g}" for each in (told[0], told[other])]
        self._say(
            f"reads {kind} in step {self._step() + 1} that rank {other} has otherwise ({shown[0]}, and {shown[1]} "
            "there): all go on with the first"
        )


def _asked_by_us() -> bool:
    """Whether a technique asks, or what is between ranks: it may do so on one of them alone. Who follows what programs
    ask, to survive, stands between the program and the seam."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != _SEAM:
        frame = frame.f_back
    if frame is None:
        return False
    asking = frame = _asking(frame.f_back)
    while frame is not None and is_ours(frame.f_code.co_filename):
        if frame.f_code.co_filename == _OUTER:
            asking = _asking(frame.f_back)
            break
        frame = frame.f_back
    return asking is not None and is_ours(asking.f_code.co_filename)


def _asking(frame: Any) -> Any:
    """Who has a tensor read: `np.asarray(x)` comes by PyTorch's `__array__`. No more of PyTorch is passed over: its
    optimizers and modules are called by seams, for the program."""
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name != "torch._tensor" and not name.startswith("numpy."):
            break
        frame = frame.f_back
    return frame


def _few(value: Any) -> list[float | int] | None:
    """The numbers of a list or an array of NumPy's; None of more than a few, and of what is none."""
    if isinstance(value, list):
        flat = _flat(value)
    elif type(value).__module__ == "numpy" and getattr(value, "size", _FEW + 1) <= _FEW:
        flat = value.ravel().tolist()
    else:
        return None
    return flat if flat and all(isinstance(each, (int, float)) for each in flat) else None


def _flat(value: list[Any]) -> list[Any]:
    """Those of the lists in it; empty where there are more than a few."""
    found: list[Any] = []
    for each in value if len(value) <= _FEW else ():
        found += _flat(each) if isinstance(each, list) else [each]
        if len(found) > _FEW:
            return []
    return found


def _with(value: Any, numbers: Sequence[float | int]) -> Any:
    """As `value`, with these numbers. An array shares its memory with a tensor, which stays as it is."""
    given = iter(numbers)
    if isinstance(value, list):
        return _nested(value, given)
    made = value.copy()
    made.flat[:] = list(given)
    return made


def _nested(value: list[Any], given: Any) -> list[Any]:
    return [_nested(each, given) if isinstance(each, list) else type(each)(next(given)) for each in value]


def _same(own: Sequence[float | int], told: Sequence[float | int]) -> bool:
    return all(one == other or (one != one and other != other) for one, other in zip(own, told, strict=True))
