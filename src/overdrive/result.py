"""From findings to what people keep: the plan, the JSON result, the report's data."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

from overdrive.contract import Contract
from overdrive.evidence.equivalence import proof_data, step_losses
from overdrive.evidence.speed import break_even_steps
from overdrive.facts import Facts
from overdrive.findings import Adopted, Findings, Rejected, leftovers
from overdrive.interval import Interval
from overdrive.machine.inventory import machine, versions
from overdrive.plan import Plan, PlannedTechnique
from overdrive.plan import Rejected as PlanRejected
from overdrive.techniques.catalogue import catalogue
from overdrive.trials.duel import Duel, Side

_MOST_LOSSES = 2000  # points of a loss curve that a report needs


def result_of(found: Findings, plan_path: str) -> dict[str, Any]:
    """Everything that `--json`, the report and the ledger hold, as plain JSON data."""
    confirmation = found.confirmation
    control = found.control
    before = _before(found)
    after = _side(confirmation.new_side, confirmation.new_facts) if confirmation and found.chosen else None
    return {
        "program": found.program.command(),
        "contract": str(found.contract),
        "verdict": found.verdict.value,
        "speedup": _interval(confirmation.interval) if confirmation else None,
        "noise_floor": found.noise(),
        "baseline": before,
        "tuned": after,
        "techniques": [
            {
                "name": each.name,
                "settings": dict(each.settings),
                "contract": str(_kept(each)),
                "verdict": each.duel.verdict.value,
                "speedup": _interval(each.duel.interval),
                "check": each.check.sentence,
            }
            for each in found.chosen
        ],
        "rejected": [_rejected(each) for each in _all_rejected(found)],
        "check": found.proof.sentence if found.proof else None,
        "proof": proof_data(found.proof) if found.proof else None,
        "attribution": {
            **found.attribution.to_dict(),
            "dropped": [{"name": each.name, "reason": each.reason} for each in found.dropped],
        }
        if found.attribution
        else None,
        "tuning_seconds": round(found.seconds, 1),
        "break_even_steps": _break_even(found),
        "whole_run": [
            {"steps": steps, "speedup": round(whole_run(before, after, steps), 3)} for steps in (1_000, 10_000, 100_000)
        ]
        if before and after
        else [],
        "machine": _machine(),
        "versions": versions(),
        "duels": _duels(found),
        "losses": {
            "baseline": _curve(control.old_trace if control else None)
            if not confirmation
            else _curve(confirmation.old_trace),
            "tuned": _curve(confirmation.new_trace) if confirmation and found.chosen else [],
            "seeds": [losses[:_MOST_LOSSES] for losses in found.seeds],
        },
        "proxy": bool(found.proof and found.proof.proxy),
        "plan": plan_path,
        "date": datetime.date.today().isoformat(),
        "isolation": found.isolation,
        "notes": [*([found.refusal] if found.refusal else []), *_whole_run_note(before, after), *found.notes],
    }


def plan_of(found: Findings, result: Mapping[str, Any]) -> Plan:
    confirmation = found.confirmation
    return Plan(
        program=found.program.name,
        contract=found.contract,
        techniques=tuple(
            PlannedTechnique(each.name, dict(each.settings), _kept(each), each.duel.verdict.value, each.duel.interval)
            for each in found.chosen
        ),
        verdict=found.verdict.value,
        speedup=confirmation.interval if confirmation else None,
        noise_floor=result["noise_floor"],
        baseline=_rates(result["baseline"]),
        tuned=_rates(result["tuned"]),
        rejected=tuple(PlanRejected(each.name, dict(each.settings), each.reason) for each in _all_rejected(found)),
        tuning_seconds=result["tuning_seconds"],
        break_even_steps=result["break_even_steps"],
        machine={key: value for key, value in result["machine"].items() if isinstance(value, (str, int, float, bool))},
        versions=result["versions"],
        created=result["date"],
    )


def _kept(adopted: Adopted) -> Contract:
    """The level a plan may promise: what was seen here, but no stricter than the technique promises anywhere."""
    declared = catalogue()[adopted.name].contract
    seen = adopted.check.level or declared
    return seen if declared.allows(seen) is False else declared


def whole_run(before: Mapping[str, Any], after: Mapping[str, Any], steps: int) -> float:
    """The speedup of a run of so many steps, start-up included; evaluation counts as far as blocks held it."""
    old, new = (side["setup_seconds"] + (steps - 1) * side["seconds_per_step"] for side in (before, after))
    return float(old / new)


def _whole_run_note(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> list[str]:
    if not before or not after:
        return []
    gains = ", ".join(f"{whole_run(before, after, steps):.2g}x for {steps:,}" for steps in (1_000, 10_000, 100_000))
    return [
        f"The speed-up is that of a training step. With start-up, a whole run gains by its length in steps: {gains}."
    ]


def _all_rejected(found: Findings) -> list[Rejected]:
    facts = _last_facts(found)
    lost = (
        []
        if found.chosen
        else [
            Rejected(each.name, each.settings, "won its duel, but the whole plan was not confirmed", each.duel)
            for each in found.adopted
        ]
    )
    return [*found.rejected, *found.dropped, *lost, *(leftovers(found, facts) if not found.refusal else [])]


def _last_facts(found: Findings) -> Facts | None:
    for duel in [each.duel for each in reversed(found.adopted)]:
        if duel.new_facts:
            return duel.new_facts
    return found.control.old_facts if found.control else None


def _rejected(each: Rejected) -> dict[str, Any]:
    return {
        "name": each.name,
        "settings": dict(each.settings),
        "reason": each.reason,
        "verdict": each.duel.verdict.value if each.duel else None,
        "speedup": _interval(each.duel.interval) if each.duel else None,
    }


def _before(found: Findings) -> dict[str, Any] | None:
    duel = found.confirmation if found.confirmation and found.confirmation.pairs else found.control
    if duel is None:
        return None
    facts = found.control.old_facts if found.control else None
    return _side(duel.old_side, facts)


def _side(side: Side, facts: Facts | None) -> dict[str, Any] | None:
    if not side.steps:
        return None
    samples = side.samples or (facts.samples_per_step * side.steps if facts else 0.0)
    return {
        "samples_per_s": samples / side.seconds if samples else None,
        "seconds_per_step": side.seconds_per_step,
        "shares": dict(facts.shares) if facts else {},
        "setup_seconds": side.setup_seconds,
    }


def _rates(side: Mapping[str, Any] | None) -> dict[str, float]:
    if side is None:
        return {}
    return {name: side[name] for name in ("samples_per_s", "seconds_per_step") if side[name] is not None}


def _break_even(found: Findings) -> int | None:
    duel = found.confirmation
    if duel is None or not found.chosen:
        return None
    setup = found.seconds + max(0.0, duel.new_side.setup_seconds - duel.old_side.setup_seconds)
    return break_even_steps(setup, duel.old_side.seconds_per_step, duel.new_side.seconds_per_step)


def _duels(found: Findings) -> list[dict[str, Any]]:
    fought: list[tuple[str, Duel]] = []
    if found.control:
        fought.append(("control (A/A)", found.control))
    fought += [(each.name, each.duel) for each in found.adopted]
    fought += [(each.name, each.duel) for each in (*found.rejected, *found.dropped) if each.duel]
    if found.confirmation:
        fought.append(("confirmation", found.confirmation))
    return [
        {
            "name": name,
            "settings": dict(duel.new.techniques[-1][1]) if duel.new.techniques and name != "confirmation" else {},
            "against": duel.old.name(),
            "verdict": duel.verdict.value,
            "speedup": _interval(duel.interval),
            "pairs": [vars(pair) for pair in duel.pairs],
        }
        for name, duel in fought
    ]


def _machine() -> dict[str, Any]:
    """The machine in the few words that a report needs."""
    found = machine()
    return {
        "cpu": found["cpu"].get("model", "unknown"),
        "cores": found["cpu"].get("granted_cores"),
        "memory_bytes": found["memory_bytes"],
        "gpus": [gpu.get("name", "GPU") for gpu in found["gpus"]],
        "os": found["os"],
    }


def _interval(interval: Interval | None) -> dict[str, float] | None:
    return vars(interval).copy() if interval else None


def _curve(trace: Any) -> list[float]:
    return step_losses(trace)[:_MOST_LOSSES] if trace else []
