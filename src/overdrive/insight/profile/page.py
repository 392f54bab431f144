"""The profile as one static HTML file, in the report's style: no script, nothing fetched, every string escaped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from overdrive.core.tune_result import MachineSummary, TuneResult
from overdrive.insight.profile import drawings, wording
from overdrive.insight.profile.drawings import milliseconds
from overdrive.report import charts
from overdrive.report.html import machine_rows, template
from overdrive.report.plots import Plot, plot
from overdrive.report.reading import mapping, mappings, positive, read, sequence, word

_ROWS = 30


def page(result: Mapping[str, Any]) -> str:
    """The whole page as text, to be written as UTF-8."""
    said, _, rest = wording.sentence(result).partition(": ")
    step = wording.step_seconds(result)
    idle = positive(result.get("gpu_idle_seconds"))
    peak = sum(positive(each) or 0.0 for each in mapping(mapping(result.get("memory")).get("peak")).values())
    numbers = [
        ("one step", milliseconds(step) if step else ""),
        ("memory at the peak", wording.size(peak) if peak else ""),
    ]
    numbers.append(("the GPU does nothing", f"{milliseconds(idle)} of a step" if idle else ""))
    program = word(result.get("program"), 2000)
    claim = said or "A profile"
    return template("profile.html").render(
        program=program,
        title=f"{program or 'Overdrive'}: {claim}",
        date=word(result.get("date"), 60),
        claim=claim,
        rest=rest[:1].upper() + rest[1:],
        numbers=[(name, text) for name, text in numbers if text],
        step=_step(result),
        names=wording.PART_NAMES,
        flame=_flame(result),
        roofline=_roofline(result),
        operators=(wording.OPERATOR_HEAD, wording.operator_rows(result, _ROWS)),
        modules=(wording.MODULE_HEAD, wording.module_rows(result, _ROWS)),
        reads=wording.read_rows(result, _ROWS),
        memory=_memory(result),
        categories=[word(each, 40) for each in sequence(mapping(result.get("memory")).get("categories"))],
        advice=wording.advice(result) if result.get("advice") is not None else None,
        notes=wording.notes(result),
        machine=machine_rows(read(MachineSummary, result.get("machine")), read(TuneResult, result).versions),
    )


def _step(result: Mapping[str, Any]) -> Plot | None:
    known = wording.parts(result)
    if not known:
        return None
    bars = [("A step", known)]
    data = [(name, seconds) for name, each in mapping(result.get("data")).items() if (seconds := positive(each))]
    if data:
        bars.append(("of which waiting for data", [(word(name, 40), seconds) for name, seconds in data]))
    rows = wording.part_rows(result)
    return plot(
        lambda width: charts.stacked(bars, width, "The parts of a step", "per step"),
        ("part", "time", "share", "of which"),
        rows,
        key=[name for name, _ in known],
    )


def _flame(result: Mapping[str, Any]) -> Plot | None:
    tree = mapping(result.get("flame"))
    if not drawings.flame(tree, 720):
        return None
    return plot(lambda width: drawings.flame(tree, width), (), ())


def _roofline(result: Mapping[str, Any]) -> Plot | None:
    roof, operators = mapping(result.get("roof")), mappings(result.get("operators"))
    if not drawings.roofline(operators, roof, 720):
        return None
    flops, moved = positive(roof.get("flops")) or 0.0, positive(roof.get("bytes")) or 0.0
    kind = word(roof.get("format"), 20)
    note = (
        f"The roof is what this machine was measured to do: {wording.rate(flops)} in {kind} and "
        f"{moved / 1e9:.3g} GB/s from memory; they meet at {flops / moved:.3g} operations a byte. "
        "The dashed line is its caches. Bytes are those of all tensors that go in and come out."
    )
    return plot(lambda width: drawings.roofline(operators, roof, width), (), (), [note])


def _memory(result: Mapping[str, Any]) -> Plot | None:
    data = mapping(result.get("memory"))
    if not drawings.memory(data, 720):
        return None
    return plot(lambda width: drawings.memory(data, width), ("at the peak", ""), wording.memory_rows(result))
