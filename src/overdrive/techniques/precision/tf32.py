"""Technique `tf32`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.techniques.technique import CannotInstall, Knob, Settings, Technique

if TYPE_CHECKING:
    from overdrive.seams.hub import Handle, Seams

_PLACES = (("cuda", "matmul"), ("mkldnn", "matmul"), ("mkldnn", "conv"), ("mkldnn", "rnn"))


class Tf32(Technique):
    """Lets matrix products of 32-bit numbers round what they multiply to fewer bits.

    What it does: when the optimizer is made, allows cuBLAS to multiply fp32 matrices in TF32 (10 bits after
    the point instead of 23; sums stay in fp32). Convolutions and recurrent layers of cuDNN are left as they
    are: PyTorch computes those in TF32 by default. On a CPU, `precision = "bf16"` allows oneDNN the same with
    bf16 (7 bits), for products, convolutions and recurrent layers. All tensors stay 32-bit. It is done with
    `torch.set_float32_matmul_precision`: after a write through the newer `fp32_precision` PyTorch 2.13 raises
    an error wherever the program, or a library, reads the older setting; the other way round both can be read.

    When it helps: programs in fp32 whose time goes into matrix products, on NVIDIA GPUs since Ampere (A100: 156
    TF32 TFLOP/s against 19.5 in fp32, says NVIDIA) and on CPUs with avx512_bf16 or AMX.

    When it hurts: programs that subtract nearly equal results of products (distances by the dot product, solvers).
    Where the program or its environment has set the precision itself, it is left alone.

    What it watches: whether the program has set the precision of products itself, whenever an optimizer is made. What
    would escape: a program that sets it later, whose word stands unnoticed, or that asks for it.

    Contract: statistical. Products are rounded to 11 (TF32) or 8 (bf16) significant bits.

    Source: https://docs.pytorch.org/docs/stable/notes/cuda.html#tf32-on-ampere
    """

    name = "tf32"
    contract = Contract.STATISTICAL
    targets = ("forward", "backward")
    switchable = True
    order = 15
    knobs = (Knob("precision", "tf32", "what products are rounded to; bf16 is for CPUs", choices=("tf32", "bf16")),)

    def applies(self, facts: Facts) -> str | None:
        if "torch.float32" not in facts.parameter_dtypes:
            return f"the parameters are {', '.join(facts.parameter_dtypes) or 'unknown'}, not 32-bit"
        if facts.device == "cuda" and 0 < facts.compute_capability < 8:
            return f"a GPU of compute capability {facts.compute_capability:g} has no TF32 (it came with 8.0)"
        if facts.device == "cpu" and not facts.bf16_fast:
            return "this processor multiplies neither TF32 nor bf16 in hardware"
        return None

    def candidates(self, facts: Facts) -> Sequence[Settings]:
        return [{"precision": "bf16" if facts.device == "cpu" else "tf32"}]

    def computes_in(self, settings: Settings) -> str:
        return str(settings["precision"])

    def install(self, seams: Seams, settings: Settings) -> Handle:
        precision = str(settings["precision"])
        default: list[str] = []
        ours: list[str] = []
        devices: list[Any] = []  # of the optimizers, in the order in which they were made

        def made(optimizer: Any, models: list[Any]) -> None:
            devices.append(optimizer.param_groups[0]["params"][0].device)
            if handle.active:
                allow()

        def allow() -> None:
            import torch

            from overdrive.seams.torch.control import set_product_precision

            if not devices:
                return
            found = _state()
            if ours:
                if found != ours:
                    raise CannotInstall("the program sets the precision of products itself")
                return
            # "none" is PyTorch's default: a program that asks for full precision leaves "ieee" behind.
            if set(found) != {"none"}:
                raise CannotInstall("the program, or its environment, sets the precision of products itself")
            if reason := _not_here(precision, devices[-1]):
                raise CannotInstall(reason)
            default[:] = found
            torch.set_float32_matmul_precision("medium" if precision == "bf16" else "high")
            if precision == "bf16":
                for backend, operation in _PLACES[2:]:
                    set_product_precision(backend, operation, "bf16")
            ours[:] = _state()

        def put_back() -> None:
            import torch

            from overdrive.seams.torch.control import set_product_precision

            if ours and _state() == ours:
                torch.set_float32_matmul_precision("highest")  # this leaves "ieee", which is not the default
                for (backend, operation), before in zip(_PLACES, default, strict=True):
                    set_product_precision(backend, operation, before)
            ours.clear()

        seams.optimizer_made.subscribe(made)
        seams.on_undo(put_back)
        handle = seams.handle(allow, put_back)
        return handle


def _state() -> list[str]:
    from overdrive.seams.torch.control import product_precision

    return [product_precision(*place) for place in _PLACES]


def _not_here(precision: str, device: Any) -> str | None:
    """Why this device cannot multiply so, or None."""
    import torch

    from overdrive.seams.torch.internals import onednn_multiplies_bf16

    if precision == "bf16":
        there = device.type == "cpu" and onednn_multiplies_bf16()
        return None if there else f"oneDNN multiplies no bf16 on this {device.type}"
    if device.type != "cuda":
        return f"the parameters are on the {device.type}, which has no TF32"
    return None if torch.cuda.is_tf32_supported() else "this GPU has no TF32"
