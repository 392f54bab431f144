"""The report as one static HTML file: no script, nothing fetched, every string escaped."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined, Template

from overdrive.report import plots, proof_plots, words
from overdrive.report.precision import precision
from overdrive.report.proof import LEVELS, Level, Proof, proof
from overdrive.report.reading import interval, mapping, mappings, positive, sequence, word

_MARKS = {True: ("good", "✓"), False: ("bad", "✗"), None: ("still", "·")}


def page(result: Mapping[str, Any]) -> str:
    """The whole page as text, to be written as UTF-8."""
    claim, rest = words.headline(result)
    verdict = words.verdict(result)
    program = word(result.get("program"), 2000)
    found = proof(result)
    return template("page.html").render(
        program=program,
        title=f"{program or 'Overdrive'}: {claim.lower()}",
        claim=claim,
        rest=rest,
        tight=rest[:1] in (",", ":"),
        tone="good" if words.usable(result) else "bad" if verdict in ("FASTER", "SLOWER") else "",
        faster=words.adopted(result),
        usable=words.usable(result),
        notice=words.notice(result),
        unconfirmed=words.unconfirmed(result),
        date=word(result.get("date"), 60),
        asked=word(result.get("contract"), 40),
        numbers=words.before_after(result),
        devices=words.devices(result),
        devices_head=words.DEVICES_HEAD,
        sentences=words.sentences(result),
        techniques=_techniques(result),
        waterfall=plots.waterfall(result),
        step_time=plots.step_time(result),
        item_time=plots.item_time(result),
        item_parts=words.ITEM_PARTS,
        precision=precision(result),
        proof=_proof(found) if found else None,
        rounding=proof_plots.rounding(result),
        statistical=proof_plots.statistical(result),
        losses=plots.losses(result),
        duels=plots.duels(result),
        rejected=[_rejected(item) for item in words.dropped(result)],
        machine=machine_rows(result),
        command=" ".join(words.command(result)),
    )


@cache
def template(name: str) -> Template:
    """A template of this folder, which may include others of it by name. All strings are escaped."""
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
        loader=FunctionLoader(lambda part: files("overdrive.report").joinpath(part).read_text(encoding="utf-8")),
    )
    return environment.get_template(name)


def _techniques(result: Mapping[str, Any]) -> list[dict[str, str]]:
    shares = dict(words.contributions(result))
    found = []
    for item in mappings(result.get("techniques")):
        name = word(item.get("name"), 80) or "(no name)"
        measured = shares.get(name) or interval(item.get("speedup"))
        found.append(
            {
                "name": name,
                "settings": words.settings(item.get("settings")),
                "contract": word(item.get("contract"), 40),
                "speedup": plots.times(measured) if measured else "not recorded",
                "check": word(item.get("check")) or "No check is recorded.",
            }
        )
    return found


def _proof(found: Proof) -> dict[str, Any]:
    """The proof for the template: a verdict with its mark for all of it, and for everything compared."""
    return {
        "sentence": found.sentence[:1].upper() + found.sentence[1:],
        "invariants": [(*_MARKS[same], what, detail) for what, detail, same in found.invariants],
        "levels": [
            {
                "name": str(each.level),
                "meaning": LEVELS[each.level],
                "mark": _level_mark(each, found),
                "detail": each.detail or _not_compared(each, found),
                "claimed": each.level is found.claimed,
            }
            for each in found.levels
        ],
        "proxy": found.proxy,
    }


def _level_mark(each: Level, found: Proof) -> tuple[str, str, str]:
    """(tone, mark, verdict): a level that the plan need not keep is never marked as a fault."""
    tone, mark = _MARKS[each.holds]
    if each.holds is False and each.level is not found.claimed:
        return "still", "✗", "does not hold, and need not"
    if each.holds is None and not each.detail:
        follows = found.claimed is not None and found.claimed.rank < each.level.rank and found.holds
        return ("good", "✓", "follows") if follows else ("still", "·", "not compared")
    return tone, mark, {True: "holds", False: "does not hold", None: "not established"}[each.holds]


def _not_compared(each: Level, found: Proof) -> str:
    if found.claimed is not None and found.holds and found.claimed.rank < each.level.rank:
        return f"Whatever is {found.claimed} keeps this level too."
    return ""


def _rejected(item: Mapping[str, Any]) -> dict[str, str]:
    return {
        "name": word(item.get("name"), 80) or "(no name)",
        "settings": words.settings(item.get("settings")),
        "reason": words.reason(item),
    }


def machine_rows(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Name and value of what the numbers were measured on."""
    data, found = mapping(result.get("machine")), []
    if cpu := word(data.get("cpu")):
        found.append(("Processor", cpu))
    if cores := positive(data.get("cores")):
        found.append(("Cores", f"{cores:,.0f}"))
    if memory := positive(data.get("memory_bytes")):
        found.append(("Memory", f"{memory / 2**30:,.1f} GiB"))
    if system := word(data.get("os")):
        found.append(("System", system))
    gpus = sequence(data.get("gpus"))
    names = [word(gpu.get("name")) if isinstance(gpu, Mapping) else word(gpu) for gpu in gpus]
    if "gpus" in data:  # a plan does not list them
        found.append(("GPU", ", ".join(name for name in names if name) or "none"))
    for name, version in mapping(result.get("versions")).items():
        found.append((word(name, 60), word(version, 120)))
    return found
