"""Other kernels for the same sums: for `legal.py` only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from overdrive.core.contract import Contract
from overdrive.seams.patch import Patches
from overdrive.techniques.technique import Settings, Technique

if TYPE_CHECKING:
    from overdrive.seams.hub import Handle, Seams


class NativeKernels(Technique):
    """What it does: PyTorch's own convolutions and recurrences in the place of oneDNN's. Contract: rounding."""

    name = "native_kernels"
    family = "benchmark"
    contract = Contract.ROUNDING
    targets = ()

    def install(self, seams: Seams, settings: Settings) -> Handle:
        def arrived() -> None:
            import torch

            before = torch.backends.mkldnn.set_flags(False)[0]
            seams.on_undo(lambda: torch.backends.mkldnn.set_flags(before))

        seams.framework_arrived.subscribe(arrived)
        return seams.handle()


class OtherOrder(Technique):
    """What it does: products are summed from the last input channel to the first. Contract: rounding."""

    name = "other_order"
    family = "benchmark"
    contract = Contract.ROUNDING
    targets = ()

    def install(self, seams: Seams, settings: Settings) -> Handle:
        def arrived() -> None:
            import torch.nn.functional as F

            linear, convolve = F.linear, F.conv2d

            def reversed_linear(x: Any, weight: Any, bias: Any = None) -> Any:
                return linear(x.flip(-1), weight.flip(-1), bias)

            def reversed_convolution(x: Any, weight: Any, *args: Any, **kwargs: Any) -> Any:
                if x.shape[1] != weight.shape[1]:  # in groups
                    return convolve(x, weight, *args, **kwargs)
                return convolve(x.flip(1), weight.flip(1), *args, **kwargs)

            patches = Patches()
            patches.replace(F, "linear", reversed_linear)
            patches.replace(F, "conv2d", reversed_convolution)
            seams.on_undo(patches.restore)

        seams.framework_arrived.subscribe(arrived)
        return seams.handle()
