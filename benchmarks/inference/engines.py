"""Calls of one model, by PyTorch, by engines under it and by the same libraries by hand: python engines.py [NAME...]

All in one process, in blocks of a fifth of a second or one call, in random order, 30 rounds, or as many as --seconds
allow (8 at least); ratios to PyTorch's own calls, each round a pair, with 95 % intervals. What is timed is the call
alone, with its input there, under `torch.inference_mode()`; "by hand" is OpenVINO (fp32, bf16) or ONNX Runtime on an
exported model, with the library's own threads as many as PyTorch's, or `torch.compile`. Writes
benchmarks/results/engines.json; a minute or two for each model. ResNet-50 and MobileNetV3 need torchvision.
"""

from __future__ import annotations

import argparse
import datetime
import json
import random
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from overdrive.evidence.speed import Pair, speedup_of_these
from overdrive.machine.inventory import summary, versions
from overdrive.worker.session import Session

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parent / "results" / "engines.json"
ROUNDS, FEWEST, BLOCK_SECONDS = 30, 8, 0.2
# By their arms' names. Those in fewer bits are for the level `statistical`.
TECHNIQUES: dict[str, tuple[str, dict[str, Any]]] = {
    "openvino": ("openvino", {}),
    "onnxruntime": ("onnxruntime", {}),
    "openvino_narrow, bf16": ("openvino_narrow", {"format": "bfloat16"}),
    "openvino_narrow, int8": ("openvino_narrow", {"format": "int8"}),
}


def model_of(*words: str) -> Any:
    """What a script of this folder builds, before it answers anything."""
    none = ("--pictures", "0", "--size", "64") if words[0] in OF_PICTURES else ("--requests", "0")
    argv, sys.argv = sys.argv, [*words, *none]
    space: dict[str, Any] = {"__name__": "__main__"}
    try:
        exec(compile((HERE / words[0]).read_text(), words[0], "exec"), space)
    finally:
        sys.argv = argv
    return space["model"]


OF_PICTURES = ("resnet18.py", "known_models.py")
CASES: dict[str, tuple[tuple[str, ...], Callable[[], torch.Tensor]]] = {
    "resnet18, 224, batch 16": (("resnet18.py",), lambda: torch.randn(16, 3, 224, 224)),
    "resnet18, 224, batch 1": (("resnet18.py",), lambda: torch.randn(1, 3, 224, 224)),
    "resnet18, 32, batch 64": (("resnet18.py",), lambda: torch.randn(64, 3, 32, 32)),
    "resnet50, 224, batch 16": (("known_models.py", "resnet50"), lambda: torch.randn(16, 3, 224, 224)),
    "mobilenet_v3, 224, batch 1": (("known_models.py", "mobilenet_v3_large"), lambda: torch.randn(1, 3, 224, 224)),
    "encoder, 1 x 64": (("encoder.py",), lambda: torch.randint(30000, (1, 64))),
    "encoder, 32 x 128": (("encoder.py",), lambda: torch.randint(30000, (32, 128))),
    "gpt, 1 x 64": (("gpt.py",), lambda: torch.randint(5000, (1, 64))),
    "tagger, 4 x 32": (("forgetful.py",), lambda: torch.randint(10000, (4, 32))),
    "perceptron, 32 rows": (("perceptron.py",), lambda: torch.randn(32, 64)),
}


def compiled_by_hand(model: Any, x: torch.Tensor) -> Callable[[], Any]:
    made = torch.compile(model)
    return lambda: made(x)


def openvino_by_hand(model: Any, x: torch.Tensor, precision: str = "f32") -> Callable[[], Any]:
    import openvino as ov

    graph = ov.convert_model(torch.export.export(model, (x,)))
    graph.reshape(list(x.shape))
    settings = {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": str(torch.get_num_threads())}
    compiled = ov.Core().compile_model(graph, "CPU", {**settings, "PERFORMANCE_HINT": "LATENCY"})
    return lambda: torch.from_numpy(compiled([x.numpy()])[0])


def onnxruntime_by_hand(model: Any, x: torch.Tensor) -> Callable[[], Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    graph = torch.onnx.export(model, (x,), dynamo=True, verbose=False).model_proto.SerializeToString()
    session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda: torch.from_numpy(session.run(None, {name: x.numpy()})[0])


def block(call: Callable[[], Any]) -> float:
    """Seconds a call."""
    began, calls = time.perf_counter(), 0
    while not calls or time.perf_counter() - began < BLOCK_SECONDS:
        call()
        calls += 1
    return (time.perf_counter() - began) / calls


def measured(words: tuple[str, ...], make: Callable[[], torch.Tensor], most: float) -> dict[str, Any]:
    model, x = model_of(*words), make()
    rng = random.Random(0)
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = model(x)
        by_hand = {
            "compile by hand": compiled_by_hand(model, x),
            "openvino by hand": openvino_by_hand(model, x),
            "openvino by hand, bf16": openvino_by_hand(model, x, "bf16"),
            "onnxruntime by hand": onnxruntime_by_hand(model, x),
        }
        arms: dict[str, tuple[str, Callable[[], Any]]] = {"pytorch": ("", lambda: model(x))}
        arms |= {name: (name, lambda: model(x)) for name in _sessions}
        arms |= {name: ("", call) for name, call in by_hand.items()}
        errors: dict[str, float] = {}
        seconds: dict[str, list[float]] = {name: [] for name in arms}
        began = time.monotonic()
        for turn in range(-2, ROUNDS):
            if turn >= FEWEST and time.monotonic() - began > most:
                break
            for name in rng.sample(list(arms), len(arms)):
                technique, call = arms[name]
                handle = handle_of(technique)
                if handle:
                    handle.on()
                for _ in range(_first_calls(name) if turn < 0 else 1):  # cold after the others
                    errors[name] = float((call() - expected).abs().max() / expected.abs().max())
                took = block(call)
                if handle:
                    handle.off()
                if turn >= 0:
                    seconds[name].append(took)
    rows: dict[str, Any] = {}
    for name, took in seconds.items():
        if name == "pytorch":
            rows[name] = {"milliseconds": round(1e3 * statistics.median(took), 3)}
            continue
        pairs = [Pair(0, 1, a, b, True) for a, b in zip(seconds["pytorch"], took, strict=True)]
        ratio = speedup_of_these(pairs)
        rows[name] = {
            "milliseconds": round(1e3 * statistics.median(took), 3),
            "times_as_fast": [round(each, 3) for each in (ratio.low, ratio.estimate, ratio.high)],
            "largest_error": float(f"{errors[name]:.2g}"),
        }
    return rows


_sessions: dict[str, Any] = {}  # one each: in one plan they exclude each other


def _first_calls(name: str) -> int:
    """In which an engine is built, and its first answers are compared."""
    return 20 if name == "openvino_narrow, int8" else 12 if name in _sessions else 2


def handle_of(arm: str) -> Any:
    return _sessions[arm].handles[TECHNIQUES[arm][0]] if arm else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="the models whose names begin so; all by default")
    parser.add_argument("--seconds", type=float, default=600.0, help="of each model's rounds, at most")
    args = parser.parse_args()
    names = args.names
    found = json.loads(RESULTS.read_text())["models"] if RESULTS.exists() else {}
    for arm, (technique, settings) in TECHNIQUES.items():
        session = Session([(technique, settings)], inference=True)
        session.__enter__()
        if technique in session.handles:  # else its library is not there
            _sessions[arm] = session
            handle_of(arm).off()
    for name, (words, make) in CASES.items():
        if names and not any(name.startswith(each) for each in names):
            continue
        told = {"date": datetime.date.today().isoformat(), "machine": vars(summary()), "versions": versions()}
        found[name] = {**told, "arms": measured(words, make, args.seconds)}
        print(name, json.dumps(found[name]["arms"], indent=1), flush=True)
        RESULTS.write_text(json.dumps({"models": found}, indent=1, default=str) + "\n")


if __name__ == "__main__":
    main()
