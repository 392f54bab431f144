"""Compiles the Triton kernels for GPUs that need not be there, and tells what each takes of one.

    make test-kernels                      (once: it installs Triton, by itself in a folder)
    PYTHONPATH=.venv/triton python benchmarks/kernels.py [--table]

Registers and spilled bytes are what `ptxas`, as Triton calls it, says; shared memory is what Triton asks for. Occupancy
is how many of a multiprocessor's 64 warps have room at once, by both and the limits of CUDA's programming guide
("technical specifications per compute capability"). Nothing is run, so nothing is known of speed. Writes
benchmarks/results/triton.json; a test holds it to the source. `--table` prints it for docs/kernels.md instead.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import re
import tempfile
from pathlib import Path
from typing import Any

from overdrive.kernels.cross_entropy.operator import tile

HERE = Path(__file__).parent
TARGET = HERE / "results" / "triton.json"
SOURCE = HERE.parent / "src" / "overdrive" / "kernels" / "cross_entropy" / "kernel.py"
COLUMNS = (10, 1000, 50257, 128256)
TYPES = {"bf16": "*bf16", "fp32": "*fp32"}
SHARED = {80: 164, 90: 228, 100: 228}  # KiB of a multiprocessor, by compute capability
WARPS, BLOCKS, REGISTERS = 64, 32, 65536  # of a multiprocessor, of all three
_UNIT, _RESERVED = 256, 1024  # registers are given to a warp in such units; bytes of shared memory beside a block's own
_POINTERS = {"targets": "*i64", "slopes": "", "logits": "", "weights": ""}  # others have 32 bits
_INTEGERS = {"rows", "columns", "row_stride", "column_stride", "target_stride", "gradient_stride", "ignored"}
_FLOATS = {"kept", "spread"}


def source_hash() -> str:
    return hashlib.sha256(SOURCE.read_bytes()).hexdigest()


def compiled(function: Any, columns: int, kind: str, options: bool, capability: int) -> dict[str, Any]:
    """One kernel as a mean's first call has it compiled; `options`: with weights and label smoothing."""
    from triton.compiler import ASTSource

    has = tile(columns)
    known: dict[str, Any] = {"SMOOTH": options, "APART": False, "ROWS": has.rows, "COLUMNS": has.columns}
    known |= {"column_stride": 1, "target_stride": 1}
    if not options:
        known |= {"weights": None, "whole": None}
    known = {name: value for name, value in known.items() if name in function.arg_names}
    sixteens = {"row_stride", "columns"} if columns % 16 == 0 else set()
    signature, divisible = {}, {}
    for index, name in enumerate(function.arg_names):
        if name in known:
            signature[name] = "constexpr"
            continue
        if name in _INTEGERS or name in _FLOATS:
            signature[name] = "fp32" if name in _FLOATS else "i32"
        else:
            signature[name] = _POINTERS.get(name, "*fp32") or TYPES[kind]
        if (name.endswith("s") and signature[name].startswith("*")) or name in sixteens or name in ("count", "whole"):
            divisible[(index,)] = [["tt.divisibility", 16]]
    source = ASTSource(function, signature, constexprs=known, attrs=divisible)
    found = _assembled(source, capability, has.warps)
    blocks = blocks_at_once(found["registers"], found["shared"], has.warps, capability)
    return found | {"warps": has.warps, "occupancy": round(blocks * has.warps / WARPS, 3)}


def blocks_at_once(registers: int, shared: int, warps: int, capability: int) -> int:
    """How many blocks have room on one multiprocessor."""
    of_warp = -(-registers * 32 // _UNIT) * _UNIT
    by_registers = REGISTERS // of_warp // warps
    by_shared = SHARED[capability] * 1024 // (shared + _RESERVED)
    return min(by_registers, by_shared, WARPS // warps, BLOCKS)


def _assembled(source: Any, capability: int, warps: int) -> dict[str, int]:
    """Compiled by Triton, in a folder where nothing is kept yet; what its assembler says of it."""
    import triton
    from triton import knobs
    from triton.backends.compiler import GPUTarget

    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as told:
        knobs.cache.dir, knobs.nvidia.dump_ptxas_log = folder, True
        options = {"num_warps": warps, "enable_fp_fusion": True}
        made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    return {
        "registers": int(re.findall(r"Used (\d+) registers", told.getvalue())[0]),
        "spilled": sum(int(each) for each in re.findall(r"(\d+) bytes spill", told.getvalue())),
        "shared": made.metadata.shared,
    }


def measured() -> dict[str, Any]:
    import triton

    from overdrive.kernels.cross_entropy import kernel

    rows = []
    for capability in SHARED:
        for columns in COLUMNS:
            for kind in TYPES:
                for name, options in (("forward", False), ("backward", False), ("forward", True), ("backward", True)):
                    found = compiled(getattr(kernel, name), columns, kind, options, capability)
                    what = {"kernel": name, "capability": capability, "columns": columns, "type": kind}
                    rows.append(what | {"options": options} | found)
                    print(json.dumps(rows[-1]), flush=True)
    return {"triton": triton.__version__, "source": source_hash(), "rows": rows}


def table(results: dict[str, Any]) -> str:
    """Of each compute capability and number of columns the worst of the two types."""
    lines = [
        "| columns | kernel | registers, sm_80, 90, 100 | spilled bytes | shared memory | occupancy |",
        "|---|---|---|---|---|---|",
    ]
    for columns in COLUMNS:
        for options in (False, True):
            for name in ("forward", "backward"):
                what = (columns, options, name)
                rows = [each for each in results["rows"] if (each["columns"], each["options"], each["kernel"]) == what]
                most = [max(each["registers"] for each in rows if each["capability"] == one) for one in SHARED]
                shown = f"{name}, weights and smoothing" if options else name
                spilled = sum(each["spilled"] for each in rows)
                lines.append(
                    f"| {columns:,} | {shown} | {', '.join(map(str, most))} | {spilled} | "
                    f"{max(each['shared'] for each in rows)} B | {min(each['occupancy'] for each in rows):.0%} |"
                )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="print what there is as a table")
    if parser.parse_args().table:
        print(table(json.loads(TARGET.read_text())))
        return
    TARGET.write_text(json.dumps(measured(), indent=1) + "\n")


if __name__ == "__main__":
    main()
