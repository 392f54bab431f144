"""The device's limits, measured in place, and what a step of each model costs at the least. A process of its own.

python benchmarks/limits.py DEVICE ROWS.json   rows: {name: [model, [words]]}; prints one JSON object.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from overdrive.machine.microbenchmarks.best import Measurements
from overdrive.machine.microbenchmarks.memory import measure_memory
from overdrive.machine.microbenchmarks.products import measure_products

_FORMATS = ("fp32", "tf32", "bf16")
_SECONDS = 60.0  # for all limits, at most; they take ten


def limits(device: str) -> dict[str, float]:
    """As `overdrive doctor` measures them; what the device cannot do is left out."""
    answer = Measurements(quick=False, seconds=_SECONDS)
    measure_products(answer, device, "", _FORMATS)
    measure_memory(answer, device, "")
    found = {f"{name}_flops_per_s": answer.measures.get(f"matmul.{name}", {}).get("value") for name in _FORMATS}
    found["copy_bytes_per_s"] = answer.measures["memory.copy"]["value"]
    return {name: value for name, value in found.items() if value}


def costs(model_name: str, words: list[str], device: str) -> dict[str, float]:
    """Of one training step: floating-point operations, and the bytes that it moves at the least.

    The bytes: what is saved for backward is written once and read once; weights are read twice, gradients
    written and read, and the optimizer reads and writes weights and its state. In 32 bits, as the script has it.
    """
    program = importlib.import_module(model_name)
    args = program.arguments().parse_args([*words, "--device", device])
    inputs, targets = (tensor[: args.batch_size].to(device) for tensor in program.make_data(args))
    model = program.make_model(args).to(device)
    optimizer = program.make_optimizer(model)
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    saved: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    counter = FlopCounterMode(display=False)
    # The counter does not know the fused recurrent kernels: they are counted as what they consist of.
    with counter, torch.backends.mkldnn.flags(enabled=False), torch.backends.cudnn.flags(enabled=False):
        program.loss_of(model(inputs), targets).backward()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        program.loss_of(model(inputs), targets).backward()
    optimizer.step()
    weights = sum(parameter.nbytes for parameter in model.parameters())
    state = sum(
        value.nbytes for each in optimizer.state.values() for value in each.values() if isinstance(value, torch.Tensor)
    )
    return {
        "flops": counter.get_total_flops(),
        "bytes": 2 * sum(saved.values()) + 2 * weights + 2 * weights + 2 * weights + 2 * state,
        "batch": args.batch_size,
    }


def main() -> None:
    device, rows = sys.argv[1], json.loads(sys.argv[2])
    sys.path.insert(0, str(Path(__file__).parent / "models"))
    found: dict[str, Any] = {"limits": limits(device), "costs": {}, "failed": {}}
    for name, (model, words) in rows.items():
        try:
            found["costs"][name] = costs(model, words, device)
        except Exception as error:
            found["failed"][name] = f"{type(error).__name__}: {error}"[:200]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
