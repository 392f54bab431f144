"""Technique `bf16_weights`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.techniques.precision import unfit_for_16_bits
from overdrive.techniques.technique import CannotInstall, Settings, Technique

if TYPE_CHECKING:
    from overdrive.seams.hub import Handle, Seams


class Bf16Weights(Technique):
    """Computes the whole training forward and backward pass in bf16, with the 32-bit weights as master copy.

    What it does: while gradients are recorded, the outermost model call sees bf16 copies of its weights,
    buffers and inputs, so that every operation of it, not only products, moves and computes half the bytes.
    Its result, and what it keeps on its modules, is handed back in 32 bits. Batch normalisation keeps 32-bit weights
    and statistics, and buffers stay in 32 bits once the model has written to them: a count, an average. The program
    itself sees 32-bit parameters, gradients and checkpoints, and the optimizer steps the 32-bit weights: a
    small update is not lost in rounding. Evaluation is computed as before. What `torch.utils.checkpoint` computes
    again within the model finds the same copies; where the program has the whole model computed again, that fails.

    When it helps: large networks on hardware with bf16 arithmetic whose time goes into reading and writing
    activations, where `autocast` leaves normalisations, softmax and additions in 32 bits. What is kept for the
    backward pass takes half the memory.

    When it hurts: small models, since all weights are copied at each call; chips without bf16. A loss that is
    computed inside the model is in bf16 too. Left out where the program has an autocast of its own, and where
    a model changes its weights or its inputs while it is called.

    What it watches: at each call, the type of the parameters, an autocast of the program's own, writes to the copies;
    in the first call of each mode, and in each 256th, what the model keeps. What would escape: a model that begins,
    after its first call, to write to its weights through `.data` while it is called: it writes to copies; and
    activations that it adds to a list, or that a hook keeps, which stay in bf16.

    Contract: statistical. All intermediate values are rounded to 8 significant bits, sums of large
    reductions and updates of weights are not.

    Source: Kalamkar et al., A Study of BFLOAT16 for Deep Learning Training, 2019, https://arxiv.org/abs/1905.12322
    """

    name = "bf16_weights"
    contract = Contract.STATISTICAL
    targets = ("forward", "backward")
    expected_saving = 0.25
    aims = ("time", "memory")
    conflicts = ("autocast", "fp32_from_fp64")
    switchable = True
    survives = True
    order = 48

    def applies(self, facts: Facts) -> str | None:
        slow = None if facts.bf16_fast else "this device does not compute bf16 in hardware"
        return unfit_for_16_bits(facts) or slow

    def computes_in(self, settings: Settings) -> str:
        return "bf16"

    def install(self, seams: Seams, settings: Settings) -> Handle:
        copies: list[Any] = []
        own: list[Any] = []  # autocasts that the program entered

        def call_in_bf16(model: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            import torch

            from overdrive.seams.torch.internals import has_running_means
            from overdrive.seams.torch.modules import first_parameter
            from overdrive.seams.torch.weights import Copies

            if not copies:
                # Batch norm's kernels take 16-bit inputs with 32-bit weights, and its running means need the bits.
                copies.append(Copies(torch.float32, torch.bfloat16, has_running_means))
            if own:
                raise CannotInstall("the program has an autocast of its own")
            first = first_parameter(model)
            if first is None or first.dtype != torch.float32 or not torch.is_grad_enabled():
                return call(*args, **kwargs)
            if torch.is_autocast_enabled(first.device.type):
                return call(*args, **kwargs)
            result = copies[0].call(model, call, args, kwargs)
            if copies[0].written:  # to a copy: it is undone, and made again without us
                raise CannotInstall(copies[0].written)
            return result

        seams.autocast_entered.subscribe(own.append, always=True)
        seams.call_checkpointed.subscribe(lambda function: copies[0].again(function) if copies else function)
        seams.model_called.subscribe(call_in_bf16)
        return seams.handle()
