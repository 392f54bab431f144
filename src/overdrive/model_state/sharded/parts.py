"""Gradients of which each rank keeps its share, and what programs do with `.grad`.

Who looks at one finds it whole, and in its place; it stays there until it is set to None. Clipping by norm and
`zero_grad` work on the shares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from overdrive.core.flag import Flag
from overdrive.model_state.sharded.held import Held
from overdrive.ranks.group import Group
from overdrive.ranks.norms import norm_of_parts
from overdrive.seams.parameters import parameters_of
from overdrive.seams.torch.internals import in_backward


class GradientParts:
    """
    Args:
        of: the parameter's `Held`, if it is one.
        all_held: those that there are.
        settle: is to be told where a gradient has come or gone.
    """

    def __init__(
        self,
        group: Callable[[], Group],
        of: Callable[[Any], Held | None],
        all_held: Callable[[], Iterable[Held]],
        settle: Callable[[Held], None],
    ) -> None:
        self._group_of, self._of, self._all, self._settle = group, of, all_held, settle
        self._aside, self._shown = Flag(), Flag()

    def shown(self, held: Held) -> torch.Tensor | None:
        """This rank's share, where that is what `.grad` is to give now."""
        return held.gradient if self._shown and not self._aside else None

    def asked(self, held: Held, parameter: Any, access: str, value: Any) -> None:
        """`.grad` of it is read, set or deleted."""
        if self._aside:
            return
        if access != "__get__":
            held.gradient = None
            held.looked = value is not None
        elif held.gradient is not None:
            may_gather(self._group_of())
            whole = held.share.whole(held.gradient, self._group_of(), "a gradient that is looked at")
            held.gradient, held.looked = None, True
            with self.aside():
                parameter.grad = whole
        self._settle(held)

    def aside(self) -> Flag:
        """Within it, `.grad` is what is in its place, and to write to it says nothing of the shares."""
        return self._aside

    def takes(self, leaf: Any) -> Held | None:
        """Where it is one whose gradient is to be in parts, and not in its place."""
        held = self._of(leaf)
        return None if held is None or held.looked else held

    def add(self, held: Held, mean: torch.Tensor) -> None:
        """
        Args:
            mean: all of its gradient, flat, as it lies in memory; or what comes to what was there.
        """
        part = mean.narrow(0, sum(held.share.sizes[: held.share.rank]), held.share.size)
        if held.gradient is None:
            held.gradient = part.to(held.like.dtype, copy=True)
            self._settle(held)
        else:
            held.gradient.add_(part)

    def zeroed(self, subject: Any, call: Callable[..., Any], set_to_none: bool = True) -> Any:
        """By `zero_grad` of an optimizer or a module."""
        trained = parameters_of(subject) if hasattr(subject, "param_groups") else subject.parameters()
        for held in filter(None, map(self._of, trained)):
            if set_to_none:
                held.gradient, held.looked = None, False
                self._settle(held)
            elif held.gradient is not None:
                held.gradient.zero_()
        with self.aside():
            return call(set_to_none)

    def clipped(self, parameters: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with self._shown:
            return call(*args, **kwargs)

    def norm(self, call: Callable[..., Any], gradients: Sequence[Any], kind: float, foreach: Any) -> Any:
        """Of all gradients together, with the shares of all ranks; None where there are none."""
        own = {id(each.gradient) for each in self._all() if each.gradient is not None}
        return norm_of_parts(call, gradients, own, kind, foreach, self._group_of())


def may_gather(group: Group) -> None:
    """
    Raises:
        RuntimeError: there are no other ranks here to have anything from.
    """
    if not (group.mine() or in_backward()):
        raise RuntimeError("what is divided over ranks is not to be had in another thread or process")
