"""What the page in an export's folder says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from overdrive.core import installing
from overdrive.core.proof_record import RoundingRecord
from overdrive.engines.onnx_runtime import OnnxRuntime
from overdrive.targets.child import formats
from overdrive.targets.pages import readme, remarks
from overdrive.targets.result import AnswersProof, Exported

SIGNATURE = {
    "inputs": [{"name": "tokens", "shape": ["batch", "size_1"], "dtype": "int64"}],
    "outputs": [{"name": "output", "shape": ["batch", 3], "dtype": "float32"}],
    "dimensions": {"batch": {"min": 1, "max": 64}, "size_1": {"min": 2, "max": 256}},
    "versions": {},
}


def page(versions: dict[str, str]) -> str:
    return readme(result(versions), "infer.py")


def result(versions: dict[str, str], **more: Any) -> Exported:
    sizes = {"batch": [1, 4], "size_1": [2, 9]}
    proof = AnswersProof("rounding", "it holds", {"recorded": 4}, sizes, RoundingRecord())
    signature = {**SIGNATURE, "versions": versions, **more}
    return Exported("out", "onnx", "Net", "model.onnx", signature, proof, (), 4, 4)


def test_it_names_the_package_that_was_proved_whatever_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"onnxruntime-gpu": "1.23.2", "torch": "2.9.0", "onnx": "1.19", "onnxscript": "0.5"}
    monkeypatch.setattr(installing, "version", lambda name: known[name])
    monkeypatch.setattr(installing, "packages_distributions", lambda: {"onnxruntime": ["onnxruntime-gpu"]})
    assert formats.versions("onnx") == known
    assert "pip install numpy onnxruntime-gpu==1.23.2\n" in page(known)
    assert OnnxRuntime().versions == "onnxruntime-gpu 1.23.2, onnx 1.19, onnxscript 0.5"
    assert "pip install numpy onnxruntime-gpu\n" in page({"torch": "2.9.0"})


def test_it_tells_where_a_dimension_ends() -> None:
    told = page({"onnxruntime": "1.23"})
    assert "`batch` may vary from 1 to 64; compared were 1, 4." in told
    assert "`size_1` may vary from 2 to 256; compared were 2, 9." in told


def test_it_tells_what_is_compiled_for_one_processor() -> None:
    assert remarks(result({})) == []
    assert "is compiled for the processor of this machine" in remarks(result({}, instructions=["avx2"]))[0]


def test_it_tells_what_tritons_own_server_does_not_look_at() -> None:
    made = replace(result({"onnxruntime": "1.23"}), target="triton")
    assert "does not hold requests to" in readme(made, "infer.py")
    assert "Triton" not in page({"onnxruntime": "1.23"})
