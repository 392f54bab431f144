"""Technique `fast_cross_entropy`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.seams.parameters import parameters_of
from overdrive.techniques.compared import MOST, Compared
from overdrive.techniques.technique import CannotInstall, Knob, Technique

if TYPE_CHECKING:
    from overdrive.kernels.cross_entropy.comparison import CrossEntropy
    from overdrive.kernels.cross_entropy.operator import Call
    from overdrive.seams.hub import Handle, Seams
    from overdrive.techniques.technique import Settings

DEVICE = "cuda"
_OLDEST = 8.0  # compute capability for which the kernels were compiled
_NAME = "cross_entropy"
_NO_TRITON = "Triton, in which its kernel is written, is not installed"
_NONE = "no cross-entropy of a million logits or more was computed on a GPU"


class FastCrossEntropy(Technique):
    """Cross-entropy of classes on a GPU by a Triton kernel of Overdrive that passes over the logits once each way.

    What it does: `F.cross_entropy` (`nn.CrossEntropyLoss`) takes two kernels each way in torch: one writes the
    logarithms of all probabilities, the other reads one of each row; the backward pass fills a gradient with zeros,
    and goes over all three. Here one kernel reads the logits and keeps two numbers of each row, and another reads
    them again and writes the gradient. All sums are in 32 bits, in bf16 and fp16, too.

    When it helps: **not known. It has never run on a GPU, and no speedup is measured.** It reads or writes three
    numbers for each logit, torch by its source six or more; that may tell where rows are long (a language model's
    vocabulary). What is known: in Triton's interpreter, on a CPU, it is as exact as torch in 32 bits and more so in
    16; and compiled for the compute capabilities 8.0, 9.0 and 10.0 it spills no register.

    When it hurts: few logits, where Python's part of a call is more than it saves: below 2^20 torch's own is called.
    So it is for other types than 32 and 16 bits, probabilities as targets, images of classes, logits that are a part
    of a larger tensor, and in whatever is compiled, traced or recorded before it was compared. The first call of each
    kind waits for Triton's compiler, a second or so.

    What it watches: each call's arguments; and of each kind (type, columns, reduction, weights, smoothing, gradients;
    at most 16) the first call. Others are torch's. What would escape: logits that the program begins to change in place
    between the loss and its backward pass, which torch allows and this cannot: the run ends, with that reason. A target
    that is no class ends the program in torch; here its row, and what is made of it, is NaN.

    Contract: rounding. The first call of each kind, and strange values in its place, are held against 64 bits: beyond
    the rounding of the exact result, result and gradient may be off by what 32-bit sums come to (in 32 bits also by
    twice torch's own error), no more; else it is left out.

    Source: M. Milakov and N. Gimelshein, Online normalizer calculation for softmax, arXiv 1805.02867; P.-L. Hsu et
    al., Liger Kernel, arXiv 2410.10989, for the idea and for what went wrong with it; the code is our own.
    """

    name = "fast_cross_entropy"
    contract = Contract.ROUNDING
    targets = ("forward", "backward")
    expected_saving = 0.03
    acts_on = ("log_softmax", "cross_entropy")
    switchable = True
    lost_when_killed = "it has not run on a GPU: whether a run that is made again has the same bits is not known"
    order = 97  # it is asked after the technique that takes means over all ranks (95)
    knobs = (Knob("least", 1 << 20, "logits of a call, from which on it is done here", low=1),)

    def applies(self, facts: Facts) -> str | None:
        if reason := _on_another(facts.device):
            return reason
        if 0 < facts.compute_capability < _OLDEST:
            return f"its kernel is for GPUs of compute capability {_OLDEST:g} and above"
        if not self.own(facts).get("computes", True):
            return _NONE
        return None if find_spec("triton") else _NO_TRITON

    def observe(self, seams: Seams) -> Callable[[], Mapping[str, Any]]:
        seen: set[bool] = set()
        least = int(self.defaults()["least"])

        def look(name: str, plain: Any, args: Any, kwargs: Any) -> None:
            if True not in seen:
                seen.add(_call(name, args, kwargs, least) is not None)

        seams.loss_computed.subscribe(look)
        return lambda: {"computes": True in seen}

    def install(self, seams: Seams, settings: Settings) -> Handle:
        if not find_spec("triton"):
            raise CannotInstall(_NO_TRITON)

        def load() -> CrossEntropy:
            from overdrive.kernels.cross_entropy.comparison import CrossEntropy

            if reason := _not_here():
                raise CannotInstall(reason)
            return CrossEntropy()

        kernel = Compared(load)

        def answer(name: str, plain: Any, args: Any, kwargs: Any) -> Any:
            if (call := _call(name, args, kwargs, int(settings["least"]))) is None:
                return None
            ours = kernel.get(plain)
            if call.kind not in kernel.checked:
                if len(kernel.checked) >= MOST or _recording():
                    return None
                kernel.check(call.kind, lambda: ours.differs_on(plain, call))
            return ours(call)

        def made(optimizer: Any, models: list[Any]) -> None:
            device = next((each.device.type for each in parameters_of(optimizer)), DEVICE)
            if reason := _on_another(device) or _not_here():
                raise CannotInstall(reason)

        seams.loss_computed.subscribe(answer)
        seams.optimizer_made.subscribe(made)
        return seams.handle()


def _on_another(device: str) -> str | None:
    return None if device == DEVICE else f"the model is on the {device}, and its kernel is for GPUs by NVIDIA"


def _call(name: str, args: Any, kwargs: Any, least: int) -> Call | None:
    """If it is a cross-entropy that is done here."""
    from overdrive.kernels.cross_entropy.operator import arguments
    from overdrive.seams.torch.tracing import traced

    if name != _NAME or traced() or (call := arguments(args, kwargs, least)) is None:
        return None
    return call if call.logits.device.type == DEVICE else None


def _not_here() -> str | None:
    """Why this machine's GPU cannot run it, or None."""
    import torch

    if torch.version.cuda is None:
        return "this PyTorch is not one for GPUs by NVIDIA"
    if torch.cuda.get_device_capability() < (int(_OLDEST), 0):
        return f"its kernel is for GPUs of compute capability {_OLDEST:g} and above"
    return None


def _recording() -> bool:
    """Whether a CUDA graph records: nothing can be looked at then."""
    import torch

    return DEVICE == "cuda" and torch.cuda.is_current_stream_capturing()
