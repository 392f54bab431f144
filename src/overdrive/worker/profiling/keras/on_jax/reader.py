"""What JAX's recordings say, by the text of the train step that JAX compiled."""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from pathlib import Path
from typing import Any

from overdrive.machine.memory import peak_resident
from overdrive.seams.hub import Seams
from overdrive.seams.keras.control import peak_memory
from overdrive.worker.profiling.keras.events import TraceEvent
from overdrive.worker.profiling.keras.moments import OperatorRun, OperatorSpan
from overdrive.worker.profiling.keras.on_jax import trace
from overdrive.worker.profiling.keras.on_jax.counting import count, product
from overdrive.worker.profiling.keras.on_jax.hlo import Module, parse
from overdrive.worker.profiling.keras.on_jax.purposes import purposes
from overdrive.worker.profiling.keras.recording import Recording
from overdrive.worker.profiling.keras.tally import Count
from overdrive.worker.profiling.timeline import GRAPH, Timeline

_NUMBER = re.compile(r"\.\d+$")


class StepReader:
    """See `graph_details.Reader`."""

    def __init__(self, timeline: Timeline, folder: Path) -> None:
        self._timeline = timeline
        self._folder = folder
        self._lowered: Any = None
        self._wants = False
        self._name = ""  # of the compiled step, as events have it
        self._module = Module()
        self._purposes: dict[str, tuple[str, str]] = {}
        self._counts: dict[str, Count] = {}
        self._temporary = 0
        self._scopes: set[str] = set()  # of optimizers

    def __call__(self, seams: Seams) -> None:
        seams.step_called.subscribe(self._step)

    def _step(self, model: Any, function: Any, *given: Any) -> None:
        """A train step is about to be called."""
        if self._wants and hasattr(function, "lower"):  # else it runs operation by operation
            self._wants = False
            self._scopes.add(getattr(model.optimizer, "inner_optimizer", model.optimizer).name)
            self._lowered = function.lower(*given)

    def recording(self, batch: int) -> Recording:
        self._wants = not self._name
        return Recording(trace, self._timeline, self._folder / "jax")

    def runs(self, events: Sequence[TraceEvent], layers: Set[str]) -> list[OperatorRun]:
        if self._lowered is not None:
            self._read(self._lowered, layers)
            self._lowered = None
        found = []
        for each in events:
            name = each.details.get("hlo_op")
            if name and not each.device and each.end > each.start:
                found.append(self._run(each, str(name), each.details.get("hlo_module") == self._name))
        return found

    def _read(self, lowered: Any, layers: Set[str]) -> None:
        """Compiles the step once more, since JAX does not hand out what it runs."""
        compiled = lowered.compile()
        text = compiled.as_text()
        told = re.match(r"HloModule ([\w.\-]+)", text)
        self._name = told.group(1) if told else ""
        self._module = parse(text)
        self._purposes = purposes(self._module, layers, self._scopes)
        self._temporary = int(getattr(compiled.memory_analysis(), "temp_size_in_bytes", 0))

    def _run(self, event: TraceEvent, name: str, trains: bool) -> OperatorRun:
        instruction = self._module.instructions.get(name) if trains else None
        if instruction is None:
            return OperatorRun(
                OperatorSpan(event.start, event.end, event.thread, "XLA " + _NUMBER.sub("", name), GRAPH), ""
            )
        part, layer = self._purposes.get(name, (GRAPH, ""))
        operator = product(self._module, instruction) or _NUMBER.sub("", name)
        return OperatorRun(OperatorSpan(event.start, event.end, event.thread, operator, part, layer), name)

    def shapes(self, run: OperatorRun) -> str:
        instruction = self._module.instructions.get(run.name)
        given = self._module.given(instruction) if instruction is not None else []
        return ", ".join(["x".join(map(str, each.sizes)) for each in given if each.sizes][:3])

    def count(self, run: OperatorRun) -> Count:
        if run.name not in self._counts:
            instruction = self._module.instructions.get(run.name)
            self._counts[run.name] = count(self._module, instruction) if instruction is not None else Count()
        return self._counts[run.name]

    def memory(
        self, there: dict[str, int], events: Sequence[TraceEvent], runs: Sequence[OperatorRun], window: tuple[int, int]
    ) -> dict[str, Any]:
        on_gpu = peak_memory()
        most = ("of the GPU at its peak", on_gpu) if on_gpu else ("the whole process at its peak", peak_resident())
        within = {"temporary, within the step": self._temporary} if self._temporary else {}
        return {"standing": {**there, **within}, "most": {"name": most[0], "bytes": most[1]}}
