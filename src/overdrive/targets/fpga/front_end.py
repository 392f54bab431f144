"""What hls4ml's front end of a framework, and the search for precision, ask of a model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from overdrive.engines.runtime import Array
from overdrive.targets.fpga.fixed import Fixed

BACKEND = "Vitis"
WIDE = "fixed<32,12>"  # what is not said otherwise
PROJECT = "model"

Types = Mapping[str, Fixed]  # of layers, by hls4ml's names


class Layers(Protocol):
    """Of a model as hls4ml reads it. The numbers here are a search's guide: what is claimed comes from hls4ml's own
    bit-accurate emulation.

    Attributes:
        names: its layers with an output of their own, in order.
        ends_in_softmax: of the layer that answers.
    """

    names: list[str]

    @property
    def ends_in_softmax(self) -> bool: ...

    def ranges(self, inputs: Array) -> dict[str, float]:
        """The largest size of what each layer gives."""

    def answers(self, inputs: Array, types: Types) -> Array:
        """What it answers where these layers, weights and biases are of these types."""

    def weight_bits(self, name: str) -> int | None:
        """Bits before the point that its weights and biases need; None where it has none."""


class FrontEnd(Protocol):
    """`notes`: what people are to know of how the model is read."""

    notes: list[str]

    def answers(self, inputs: Array) -> Array:
        """The model's own.

        Raises:
            NoEngine: they are not one array of rows.
        """

    def read(self, shape: tuple[int, ...]) -> dict[str, Any]:
        """hls4ml's configuration of the model, for rows of this shape.

        Raises:
            NoEngine: it does not take a layer; the message names it.
        """

    def layers(self) -> Layers:
        """Of the model as it was read."""

    def converted(self, config: dict[str, Any], place: Path) -> Any:
        """hls4ml's graph of it, whose project will be in `place`."""

    def refusal(self, error: Exception) -> str:
        """Why hls4ml does not take the model. It names the kind of a layer: the first of that kind is told."""


def converting(config: dict[str, Any], place: Path) -> dict[str, Any]:
    """What hls4ml is asked for."""
    how = {"backend": BACKEND, "io_type": "io_parallel"}
    return {"output_dir": str(place), "project_name": PROJECT, "hls_config": config, **how}
