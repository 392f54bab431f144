"""The report as one static HTML file: no script, nothing fetched, every string escaped."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined, Template
from markupsafe import Markup, escape

from overdrive.core.tune_result import MachineSummary, NotKept, TuneResult
from overdrive.report import figures, plots, proof_plots, scaling, techniques, words
from overdrive.report.precision import precision
from overdrive.report.proof import LEVELS, Level, Proof, proof
from overdrive.report.reading import harmless

_MARKS = {True: ("good", "✓"), False: ("bad", "✗"), None: ("still", "·")}


def page(result: TuneResult) -> str:
    """The whole page as text, to be written as UTF-8."""
    result = harmless(result)
    claim, rest = words.headline(result)
    verdict = words.verdict(result)
    program = result.program[:2000]
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
        notice=result.notice,
        unconfirmed=result.unconfirmed,
        date=result.date,
        asked=result.contract,
        numbers=figures.before_after(result),
        devices=figures.devices(result),
        devices_head=figures.DEVICES_HEAD,
        scaling=_scaling(result),
        next_step=result.next_step,
        sentences=[*filter(None, [figures.one_size(result)]), *words.sentences(result)],
        techniques=list(_techniques(result)),
        waterfall=plots.waterfall(result),
        unit=result.unit,
        step_time=plots.step_time(result),
        item_time=plots.item_time(result),
        call_sizes=plots.call_sizes(result),
        precision=precision(result),
        proof=_proof(found) if found else None,
        rounding=proof_plots.rounding(result),
        statistical=proof_plots.statistical(result),
        losses=plots.losses(result),
        duels=plots.duels(result),
        rejected=[_rejected(each) for each in techniques.tried(result)],
        untried=techniques.untried(result),
        others=[_rejected(each) for each in techniques.others(result)],
        machine=machine_rows(result.machine, result.versions),
        command=" ".join(words.command(result)),
    )


def coded(sentence: str) -> Markup:
    """A sentence, escaped, with what stands in backquotes as code."""
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(sentence))))


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
    environment.filters["coded"] = coded
    return environment.get_template(name)


def _techniques(result: TuneResult) -> Iterable[dict[str, str]]:
    shares = dict(techniques.contributions(result))
    for each in result.techniques:
        name = each.name or "(no name)"
        measured = shares.get(name) or each.speedup
        yield {
            "name": name,
            "settings": techniques.settings(each.settings),
            "contract": each.contract,
            "speedup": plots.times(measured) if measured else "not recorded",
            "check": each.check or "No check is recorded.",
        }


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


def _scaling(result: TuneResult) -> dict[str, Any] | None:
    strong = scaling.strong(result)
    if not strong:
        return None
    return {
        "tables": [
            (lead, head, rows)
            for lead, head, rows in (
                (scaling.STRONG, scaling.strong_head(result), strong),
                (scaling.WEAK, scaling.WEAK_HEAD, scaling.weak(result)),
            )
            if rows
        ],
        "notes": scaling.notes(result),
    }


def _rejected(item: NotKept) -> dict[str, str]:
    return {
        "name": item.name or "(no name)",
        "settings": techniques.settings(item.settings),
        "reason": techniques.reason(item),
    }


def machine_rows(machine: MachineSummary, versions: Mapping[str, str]) -> list[tuple[str, str]]:
    """Name and value of what the numbers were measured on."""
    rows = [
        ("Processor", machine.cpu),
        ("Cores", f"{machine.cores:,}" if machine.cores else ""),
        ("Memory", f"{machine.memory_bytes / 2**30:,.1f} GiB" if machine.memory_bytes else ""),
        ("System", machine.os),
        ("GPU", "" if machine.gpus is None else ", ".join(machine.gpus) or "none"),  # a plan does not list them
        *versions.items(),
    ]
    return [(name, value) for name, value in rows if value]
