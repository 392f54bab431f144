"""The design in Verilog, where hls4ml, da4ml and Verilator are: it is hls4ml's emulation, and a wrong bit is seen."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from overdrive.core.installing import pip_install_extra
from overdrive.engines.runtime import NoEngine
from overdrive.model_state.quiet import quiet
from overdrive.targets.fpga import logic, rtl
from overdrive.targets.fpga.fixed import Fixed


class Residual(nn.Module):
    """Most kinds of layers that have a form, with channels, padding and strides."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.act = nn.Conv2d(2, 3, 3, padding=1, stride=2), nn.BatchNorm2d(3), nn.ReLU()
        self.same, self.act2, self.pool = nn.Conv2d(3, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)
        self.flat, self.fc = nn.Flatten(), nn.Linear(12, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        images = self.act(self.norm(self.conv(images)))
        return self.fc(self.flat(self.pool(self.act2(self.same(images) + images))))


def converted(model: nn.Module, shape: tuple[int, ...], folder: Path) -> Any:
    hls4ml = pytest.importorskip("hls4ml")
    pytest.importorskip("da4ml")
    with quiet():
        config = hls4ml.utils.config_from_pytorch_model(
            model.eval(), shape, granularity="name", backend="Vitis", default_precision="fixed<32,12>"
        )
        for each in config["LayerName"].values():
            for part in {"result", "weight", "bias", "scale"} & each["Precision"].keys():
                each["Precision"][part] = Fixed(4, 6 if part == "weight" else 5).text
        names = {"output_dir": str(folder), "project_name": "model", "backend": "Vitis", "io_type": "io_parallel"}
        return hls4ml.converters.convert_from_pytorch_model(model, hls_config=config, **names)


def test_the_logic_is_the_emulation_bit_by_bit(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Residual()
    model.norm.running_mean.normal_()
    model.norm.running_var.uniform_(0.5, 2)
    graph = converted(model, (2, 8, 8), tmp_path)
    with quiet():
        graph.compile()
        inputs = 3 * np.random.default_rng(0).standard_normal((200, 2, 8, 8))
        emulated = graph.predict(np.ascontiguousarray(inputs))
    assert len(np.unique(emulated)) > 50
    found = logic.logic(graph).predict(Fixed(4, 5).of(inputs))
    assert np.array_equal(found, emulated)


@pytest.mark.parametrize(
    ("layer", "told"),
    [(nn.Sigmoid(), "_1 (sigmoid)"), (nn.Softmax(dim=1), "_1 (Softmax)"), (nn.ELU(), "_1 (ParametrizedActivation)")],
)
def test_a_layer_without_a_form_is_named(layer: nn.Module, told: str, tmp_path: Path) -> None:
    with pytest.raises(NoEngine, match="its layer") as refused:
        logic.logic(converted(nn.Sequential(nn.Linear(4, 3), layer), (4,), tmp_path))
    assert told in str(refused.value)


def test_more_products_than_a_device_holds_are_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(NoEngine, match="it multiplies 60,000 times"):
        logic.logic(converted(nn.Sequential(nn.Linear(200, 300)), (200,), tmp_path))


def test_cycles_are_those_of_the_simulation_and_a_wrong_bit_is_seen(tmp_path: Path) -> None:
    if lacking := rtl.missing():
        pytest.skip(lacking)
    torch.manual_seed(0)
    graph = converted(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), (6,), tmp_path / "hls")
    inputs = np.random.default_rng(0).standard_normal((50, 6))
    cut = Fixed(4, 5).of(inputs)
    wanted = logic.logic(graph).predict(cut)
    told = rtl.verilog(graph, inputs, wanted, tmp_path / "rtl", tmp_path / "first")
    stages = len(list((tmp_path / "rtl" / "src").glob("model_stage*.v")))
    assert told["latency"] == stages > 1 and told["interval"] == 1 and told["inputs"] == 50
    wanted[17, 1] += 2.0**-5
    with pytest.raises(NoEngine, match="differs from the emulation in 1 of 50 inputs"):
        rtl.verilog(graph, inputs, wanted, tmp_path / "again", tmp_path / "second")


def test_what_is_not_there_is_named_with_what_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rtl, "find_spec", lambda name: None)
    assert f"`{pip_install_extra('fpga')}` brings it" in (rtl.missing() or "")
    monkeypatch.setattr(rtl, "find_spec", lambda name: name)
    monkeypatch.setattr(shutil, "which", lambda tool: None if tool == "verilator" else tool)
    assert rtl.missing() == "verilator is not installed: `apt-get install verilator` brings it"
    monkeypatch.setattr(shutil, "which", lambda tool: tool)
    assert rtl.missing() is None
