"""What people read of a design for an FPGA: the page in its folder, and the lines after the export."""

from __future__ import annotations

from overdrive.targets.fpga.verdict import Cycles, Designed, OwnTimes
from overdrive.targets.pages import milliseconds


def lines(result: Designed) -> list[str]:
    """What `export` prints of it."""
    widths = ", ".join(f"{each['name']} {each['result'].partition(',TRN')[0]}>" for each in result.layers)
    told = [
        f"{result.model}: {result.inputs:,} different recorded inputs, all emulated bit by bit.",
        *(f"  {each}" for each in result.notes),
        f"proof   {result.sentence}",
        f"layers  {widths}",
    ]
    if result.cycles is None:
        told.append(f"verilog left out: {result.left_out}")
    else:
        told += [f"verilog {_same(result.cycles)}", f"cycles  {_cycles(result.cycles)}; {_size(result.cycles)}"]
    told += [f"here    {_called(each)}: {_times(each)}" for each in result.own]
    return [*told, f"folder  {result.folder}"]


def readme(result: Designed, command: str) -> str:
    """`command`: the program's."""
    told = [
        f"# {result.model}, for an FPGA",
        "",
        f"Made by `overdrive export --to fpga {command}`, by hls4ml {result.versions['hls4ml']} for {result.backend}.",
        "`project/` is what Vitis HLS synthesises; `project/firmware` is the C++ that was emulated.",
        "",
        "## Answers",
        "",
        f"{result.sentence[0].upper()}{result.sentence[1:]}.",
        *_over_all(result),
        "",
        *_verilog(result),
        "## Layers",
        "",
        "| layer | kind | result | weights | weights that are not 0 |",
        "|---|---|---|---|---|",
        *(
            f"| {each['name']} | {each['kind']} | {each['result']} | {each['weights'].get('weight', '')} | "
            f"{each['weights_not_0'] or ''} |"
            for each in result.layers
        ),
        "",
        *(f"- {each}." for each in result.notes),
    ]
    return "\n".join(told).rstrip() + "\n"


def _over_all(result: Designed) -> list[str]:
    """Of answers that are no classes all is said already."""
    if not result.classes:
        return []
    same = f"Over all {result.inputs:,} recorded inputs {result.same_class:.2%} have the same class"
    return [f"{same}, and answers are {result.error:.2g} of their size off."]


def _verilog(result: Designed) -> list[str]:
    cycles = result.cycles
    if cycles is None:
        return ["## Verilog", "", f"Left out: {result.left_out}. No latency and no resources are told.", ""]
    return [
        "## Verilog",
        "",
        f"`rtl/` is the same design in Verilog, by da4ml {result.versions['da4ml']}; `rtl/sim/bench.cpp` is what "
        f"Verilator {cycles.verilator} simulated it by.",
        f"{_same(cycles).capitalize()}.",
        "",
        f"It takes {_cycles(cycles)}. The clock is assumed: no place and route has shown that a device holds it.",
        f"da4ml counts {_size(cycles)}; it states no error of that count, and multiplies by additions alone, without a "
        "device's multipliers.",
        "",
        "| | latency | inputs in a second | energy of an input |",
        "|---|---|---|---|",
        f"| this design at {cycles.clock / 1e6:.0f} MHz, ways in and out left aside | {cycles.seconds * 1e9:.0f} ns | "
        f"{cycles.rate:,.0f} | not known |",
        *(_row(each) for each in result.own),
        "",
    ]


def _row(own: OwnTimes) -> str:
    rate = f"{own.rows / own.p50.estimate:,.0f}" if own.p50 else ""
    energy = f"{own.joules / own.rows * 1e6:,.3g} µJ, by the processor's packages" if own.joules else "not known"
    return f"| the program on the machine of this export, {_called(own)} | {_times(own)} | {rate} | {energy} |"


def _times(own: OwnTimes) -> str:
    known = {"p50": own.p50, "p99": own.p99}
    return ", ".join(f"{name} {milliseconds(each)} ms" for name, each in known.items() if each) or "too few calls"


def _called(own: OwnTimes) -> str:
    return f"{own.rows:,} input{'s' if own.rows > 1 else ''} a call"


def _same(cycles: Cycles) -> str:
    return f"simulated cycle by cycle, it gives the emulation's answer to all {cycles.inputs:,} inputs, bit for bit"


def _cycles(cycles: Cycles) -> str:
    every = "each cycle" if cycles.interval == 1 else f"every {cycles.interval} cycles"
    time = f"{cycles.seconds * 1e9:.0f} ns at {cycles.clock / 1e6:.0f} MHz"
    return f"{cycles.latency} clock cycles, and an input {every}: {time}"


def _size(cycles: Cycles) -> str:
    return f"{cycles.luts:,} look-up tables and {cycles.registers:,} bits of registers"
