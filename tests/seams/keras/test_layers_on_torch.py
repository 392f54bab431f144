"""Layers of Keras are PyTorch's modules on its backend, in their own way."""

from __future__ import annotations

from tests.keras_driver import told_by


def test_layers_are_known_with_what_they_keep_and_compute_in_fp64() -> None:
    found = told_by("tests.seams.keras.layers_driver", "torch")
    assert {"dense", "normal", "dropout"} <= {*found["layers"]} and not found["known to PyTorch"]
    assert found["of a plain module"] == 2
    assert found["kept"] == 3 and found["are kept"] and found["trained is not"]  # two means, and a generator's state
    assert found["trainer's"] == ["history", "optimizer", "stop_training"] and not found["of a layer"]
    assert not found["hidden"]
    assert found["types"] == ["torch.float32", "torch.float64"] and found["off"] < 1e-12
