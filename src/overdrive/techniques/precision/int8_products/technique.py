"""Technique `int8_products`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from overdrive.core.by_identity import ByIdentity
from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.techniques.technique import CannotInstall, Settings, Technique

if TYPE_CHECKING:
    from overdrive.seams.hub import Handle, Seams
    from overdrive.techniques.precision.int8_products.rounded import RoundedWeights

_MOST_CHANGES = 4  # of a model's weights: one whose weights change all the time is left alone


class Int8Products(Technique):
    """Multiplies with the weights of linear layers in eight bits, where the program only calls its model.

    What it does: when a linear layer is first called its weights are rounded to eight bits, those of each output by
    their own largest value. A product rounds its inputs, too, by their least and largest value at each
    call, and adds up in 32 bits (`quantized::linear_dynamic` of PyTorch). All else is computed as before. The
    program's own weights stay as they are; a quarter of their memory is added.

    When it helps: models that no engine answers for, since they keep keys and values between calls or go ways that
    depend on their data: decoders that write token by token read a quarter of the bytes. On two cores of an Intel Xeon
    with AMX a token of a decoder of 12 layers of 768 took 15 to 17 ms instead of 28 to 33 (three turns of each), on one
    core 21 to 22 instead of 44 to 46.

    When it hurts: processors without VNNI, which have no arithmetic for it; models that fit into the caches (of a
    decoder of 6 layers of 384, 5 ms a token, a duel found 0.91x [0.80, 1.04]); small layers, so that those of fewer
    than 65,536 weights are left; models whose activations have few very large values (large language models from some
    billions of parameters on), which leave few of 256 steps for the others. The proof refuses those.

    What it watches: before each call whether any of these weights was written to, moved or replaced, and whether the
    inputs are finite; for each product its type, and whether gradients are recorded: then it is PyTorch's own. What
    would escape: NaN that first arises within the model may come out as a number; products that are not made by
    `F.linear` or `torch.addmm` of a whole parameter (attention by PyTorch's fast path) stay in 32 bits.

    Contract: statistical. Answers to recorded inputs are compared with the model's own, sample by sample.

    Source: Dettmers et al., LLM.int8(), 2022, https://arxiv.org/abs/2208.07339 (what large values do);
    https://docs.pytorch.org/docs/stable/quantization.html (dynamic quantisation)
    """

    name = "int8_products"
    programs = ("inference",)
    contract = Contract.STATISTICAL
    targets = ("forward",)
    expected_saving = 0.5
    usual_start = 2.0
    switchable = True
    conflicts = ("openvino", "onnxruntime", "openvino_narrow", "autocast", "compile")
    order = 39

    def applies(self, facts: Facts) -> str | None:
        return "the model is on the GPU" if facts.device != "cpu" else facts.not_in_32_bits()

    def computes_in(self, settings: Settings) -> str:
        return "int8"

    def install(self, seams: Seams, settings: Settings) -> Handle:
        known: ByIdentity[RoundedWeights] = ByIdentity()
        changes: ByIdentity[int] = ByIdentity()
        thread = _Thread()
        lock = threading.Lock()

        def of(model: Any) -> RoundedWeights:
            from overdrive.techniques.precision.int8_products.rounded import RoundedWeights

            with lock:
                found = known.get(model)
                if found is None or found.changed():
                    changes[model] = changes.get(model, -1) + 1
                    if changes[model] > _MOST_CHANGES:
                        raise CannotInstall("the model's weights change from call to call")
                    found = known[model] = RoundedWeights(model)
                return found

        def called(model: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            import torch

            from overdrive.seams.torch.modules import first_parameter
            from overdrive.seams.torch.tracing import traced
            from overdrive.techniques.precision.int8_products.rounded import all_finite

            if torch.is_grad_enabled() or traced() or first_parameter(model) is None or not all_finite(args, kwargs):
                return call(*args, **kwargs)
            before, thread.weights = thread.weights, of(model)
            try:
                return call(*args, **kwargs)
            finally:
                thread.weights = before

        def linear(plain: Any, args: Any, kwargs: Any) -> Any:
            return None if thread.weights is None else thread.weights.linear(*args, **kwargs)

        def addmm(plain: Any, args: Any, kwargs: Any) -> Any:
            return None if thread.weights is None else thread.weights.addmm(*args, **kwargs)

        seams.model_called.subscribe(called)
        seams.operator_called("linear").subscribe(linear)
        seams.operator_called("addmm").subscribe(addmm)
        return seams.handle()


class _Thread(threading.local):
    weights: RoundedWeights | None = None  # of the model whose call this thread makes
