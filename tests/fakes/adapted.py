"""Brought into trials, for what looks for a GPU before a program enters its stand-in, or is made for hardware alone."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any


def _built_for_gpus() -> None:
    """Some ask PyTorch as it is imported, and what they hear of one for CPUs ends them before the program begins."""
    from overdrive.seams.hub import Seams

    plain = Seams.__init__

    def told() -> None:
        import torch

        torch.version.cuda = "13.0"
        torch.cuda.is_available = lambda: True
        _uncounted_undoing()

    def made(self: Seams, *args: Any, **kwargs: Any) -> None:
        plain(self, *args, **kwargs)
        self.framework_arrived.subscribe(told)

    Seams.__init__ = made  # type: ignore[method-assign]


def _uncounted_undoing() -> None:
    """Under any technique a model's call is provided for to be undone, also under one that does nothing."""
    from overdrive.seams.torch.undoing import Moment, Undoable
    from tests.fakes.gpu import uncounted

    def silent(plain: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(plain)
        def called(*args: Any, **kwargs: Any) -> Any:
            with uncounted:
                return plain(*args, **kwargs)

        return called

    for owner, name in ((Undoable, "before"), (Moment, "over"), (Moment, "undo")):
        setattr(owner, name, silent(getattr(owner, name)))


def _cross_entropy() -> None:
    """PyTorch's operator is the kernel, which is Triton's; the stand-in is no target for that. That it was called is
    seen by a copy of what it is given."""
    from overdrive.techniques.kernels import fast_cross_entropy

    def computed(self: Any, call: Any) -> Any:
        import torch

        given = call.logits.clone(), call.target, call.weight, call.reduction, call.ignored, call.smoothing
        return torch.ops.aten.cross_entropy_loss(*given)

    def not_here() -> None:
        from overdrive.kernels.cross_entropy.comparison import CrossEntropy

        CrossEntropy.__call__ = computed  # type: ignore[method-assign]
        CrossEntropy.differs_on = lambda *_: None  # type: ignore[method-assign, assignment, misc]

    fast_cross_entropy._not_here = not_here
    fast_cross_entropy.find_spec = lambda name: fast_cross_entropy.__spec__  # type: ignore[assignment]


if "STAND_IN_TELLS" in os.environ:  # of a trial, which is a process of its own; that of the tests stays as it is
    _built_for_gpus()
    _cross_entropy()
