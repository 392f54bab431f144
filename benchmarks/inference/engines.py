"""Calls of one model, by PyTorch, by engines under it and by the same libraries by hand: python engines.py [NAME...]

Of each engine three are set beside each other: PyTorch's own calls, those of the engine, in a session of its own, and
the library's by hand. In one process, in blocks of a fifth of a second or one call, in random order, 30 rounds, or as
many as --seconds allow (8 at least); ratios to PyTorch's own calls and to those by hand, each round a pair, with 95 %
intervals. What is timed is the call alone, with its input there, under `torch.inference_mode()`; "by hand" is OpenVINO
(fp32, bf16) or ONNX Runtime on an exported model, with the library's own threads as many as PyTorch's, or
`torch.compile`. Writes benchmarks/results/engines.json; a minute or two for each model. ResNet-50 and MobileNetV3 need
torchvision.
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
FIRST_CALLS = 20  # in which an engine is calibrated and built, and its first answers are compared
# By their arms' names: the technique, its settings, who does the same by hand. Those in fewer bits are for the level
# `statistical`.
TECHNIQUES: dict[str, tuple[str, dict[str, Any], str]] = {
    "openvino": ("openvino", {}, "openvino by hand"),
    "onnxruntime": ("onnxruntime", {}, "onnxruntime by hand"),
    "openvino_narrow, bf16": ("openvino_narrow", {"format": "bfloat16"}, "openvino by hand, bf16"),
    "openvino_narrow, int8": ("openvino_narrow", {"format": "int8"}, ""),
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
    for name, value in space.items():  # where the compiler looks for them
        vars(sys.modules["__main__"]).setdefault(name, value)
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
    most /= 1 + len(TECHNIQUES)
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        by_hand = {
            "openvino by hand": openvino_by_hand(model, x),
            "openvino by hand, bf16": openvino_by_hand(model, x, "bf16"),
            "onnxruntime by hand": onnxruntime_by_hand(model, x),
        }
        rows = beside_each_other({"pytorch": lambda: model(x), "compile by hand": compiled_by_hand(model, x)}, most)
        for name, (technique, settings, rival) in TECHNIQUES.items():
            with Session([(technique, settings)], inference=True) as session:
                if technique not in session.handles:  # its library is not there
                    continue
                arms = {"pytorch": lambda: model(x), name: lambda: model(x)}
                if rival:
                    arms[rival] = by_hand[rival]
                found = beside_each_other(arms, most, {name: session.handles[technique]})
                if rival:
                    found[name]["as_fast_as_by_hand"] = ratio_of(found[rival]["seconds"], found[name]["seconds"])
            del found["pytorch"]
            rows |= found
    for row in rows.values():
        del row["seconds"]
    return rows


def beside_each_other(
    arms: dict[str, Callable[[], Any]], most: float, handles: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Rows of these arms, with the seconds a call of each round. `handles`: of techniques that are on in one alone."""
    rng, handles = random.Random(0), handles or {}
    for handle in handles.values():
        handle.off()
    expected = arms["pytorch"]()
    errors: dict[str, float] = {}
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    began = time.monotonic()
    for turn in range(-2, ROUNDS):
        if turn >= FEWEST and time.monotonic() - began > most:
            break
        for name in rng.sample(list(arms), len(arms)):
            if handle := handles.get(name):
                handle.on()
            calls = 1 if turn >= 0 else FIRST_CALLS if handle else 2
            for _ in range(calls):  # cold after the others
                errors[name] = float((arms[name]() - expected).abs().max() / expected.abs().max())
            took = block(arms[name])
            if handle:
                handle.off()
            if turn >= 0:
                seconds[name].append(took)
    rows: dict[str, Any] = {}
    for name, took in seconds.items():
        rows[name] = {"milliseconds": round(1e3 * statistics.median(took), 3), "seconds": took}
        if name != "pytorch":
            rows[name]["times_as_fast"] = ratio_of(seconds["pytorch"], took)
            rows[name]["largest_error"] = float(f"{errors[name]:.2g}")
    return rows


def ratio_of(before: list[float], after: list[float]) -> list[float]:
    ratio = speedup_of_these([Pair(0, 1, a, b, True) for a, b in zip(before, after, strict=True)])
    return [round(each, 3) for each in (ratio.low, ratio.estimate, ratio.high)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="the models whose names begin so; all by default")
    parser.add_argument("--seconds", type=float, default=600.0, help="of each model's rounds, at most")
    args = parser.parse_args()
    names = args.names
    found = json.loads(RESULTS.read_text())["models"] if RESULTS.exists() else {}
    for name, (words, make) in CASES.items():
        if names and not any(name.startswith(each) for each in names):
            continue
        told = {"date": datetime.date.today().isoformat(), "machine": vars(summary()), "versions": versions()}
        found[name] = {**told, "arms": measured(words, make, args.seconds)}
        print(name, json.dumps(found[name]["arms"], indent=1), flush=True)
        RESULTS.write_text(json.dumps({"models": found}, indent=1, default=str) + "\n")


if __name__ == "__main__":
    main()
