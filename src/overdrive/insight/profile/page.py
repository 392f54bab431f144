"""The profile as one static HTML file, in the report's style: no script, nothing fetched, every string escaped."""

from __future__ import annotations

from overdrive.core.units import milliseconds
from overdrive.insight.profile import drawings, wording
from overdrive.insight.profile.record import Profile
from overdrive.report import charts
from overdrive.report.html import machine_rows, template
from overdrive.report.plots import Plot, plot
from overdrive.report.reading import harmless

_ROWS = 30


def page(profile: Profile) -> str:
    """The whole page as text, to be written as UTF-8."""
    found = harmless(profile)
    said, _, rest = (found.bottleneck.sentence if found.bottleneck else "").partition(": ")
    step, idle, peak = found.step_seconds, found.gpu_idle_seconds, sum(found.memory.peak.values())
    numbers = [
        (f"one {found.unit}", milliseconds(step) if step > 0 else ""),
        ("memory at the peak", wording.size(peak) if peak > 0 else ""),
        ("the GPU does nothing", f"{milliseconds(idle)} of a {found.unit}" if idle else ""),
    ]
    claim = said or "A profile"
    return template("profile.html").render(
        program=found.program,
        title=f"{found.program or 'Overdrive'}: {claim}",
        date=found.date,
        claim=claim,
        rest=rest[:1].upper() + rest[1:],
        numbers=[(name, text) for name, text in numbers if text],
        step=_step(found),
        names=wording.PART_NAMES,
        flame=_flame(found),
        roofline=_roofline(found),
        operators=(wording.operator_head(found), wording.operator_rows(found, _ROWS)),
        modules=(wording.module_head(found, _ROWS), wording.module_rows(found, _ROWS)),
        reads=wording.read_rows(found, _ROWS),
        memory=_memory(found),
        categories=found.memory.categories,
        advice=found.advice,
        unit=found.unit,
        notes=wording.notes(found),
        machine=machine_rows(found.machine, found.versions),
    )


def _step(found: Profile) -> Plot | None:
    known = wording.parts(found)
    if not known:
        return None
    bars = [(f"A {found.unit}", known)]
    if data := [(name, seconds) for name, seconds in found.data.items() if seconds > 0]:
        bars.append(("of which waiting for data", data))
    rows = wording.part_rows(found)
    return plot(
        lambda width: charts.stacked(bars, width, f"The parts of a {found.unit}", f"per {found.unit}"),
        ("part", "time", "share", "of which"),
        rows,
        key=[name for name, _ in known],
    )


def _flame(found: Profile) -> Plot | None:
    if not drawings.flame(found.flame, 720):
        return None
    return plot(lambda width: drawings.flame(found.flame, width), (), ())


# Of a GPU, for programs in fp32.
_TF32 = (
    "Convolutions, and products of matrices where that is allowed, are computed in tf32, at up to {rate}, and can "
    "lie above. "
)


def _roofline(found: Profile) -> Plot | None:
    roof = found.roof
    tf32 = _TF32.format(rate=wording.rate(roof.tf32_flops)) if roof and roof.headroom > 1 else ""
    if roof is None or not drawings.roofline(found.operators, roof, 720):
        return None
    note = (
        f"The roof is what this machine was measured to do: {wording.rate(roof.flops)} in {roof.format} and "
        f"{roof.bytes / 1e9:.3g} GB/s from memory; they meet at {roof.flops / roof.bytes:.3g} operations a byte. {tf32}"
        "The dashed line is its caches. Bytes are those of all tensors that go in and come out."
    )
    return plot(lambda width: drawings.roofline(found.operators, roof, width), (), (), [note])


def _memory(found: Profile) -> Plot | None:
    if not drawings.memory(found.memory, 720):
        return None
    return plot(lambda width: drawings.memory(found.memory, width), ("at the peak", ""), wording.memory_rows(found))
