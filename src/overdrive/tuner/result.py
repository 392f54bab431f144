"""From findings to what people keep: the plan, the JSON result, the report's data."""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping
from typing import Any

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.core.interval import Interval
from overdrive.core.plan import Plan, PlannedTechnique
from overdrive.core.plan import Rejected as PlanRejected
from overdrive.evidence.equivalence import OPEN, proof_data, step_losses
from overdrive.evidence.speed import break_even_steps
from overdrive.machine.inventory import machine, versions
from overdrive.machine.shared_memory import PLACE, needed
from overdrive.techniques.catalogue import catalogue
from overdrive.trials.duel import Duel, Side
from overdrive.tuner.devices import devices_of
from overdrive.tuner.findings import Adopted, Findings, Rejected, leftovers
from overdrive.tuner.formats import precision_table

_AGAIN = ", again"  # of a duel that decided whether a technique is dropped
_MOST_LOSSES = 2000  # points of a loss curve that a report needs
_CROWDED = 0.5  # share of the free shared memory; measured while the program's own workers held some of it


def result_of(found: Findings, plan_path: str) -> dict[str, Any]:
    """Everything that `--json`, the report and the ledger hold, as plain JSON data."""
    confirmation = found.confirmation
    control = found.control
    before = _before(found)
    after = _after(found)
    return {
        "program": found.program.command(),
        "contract": str(_contract(found)),
        "objective": str(found.objective),
        "verdict": found.verdict.value,
        "speedup": _speedup(found),
        "noise_floor": found.noise(),
        "baseline": before,
        "tuned": after,
        "devices": devices_of(found),
        "loaders": _loaders(control.old_facts if control else None),
        "tuned_loaders": _loaders(confirmation.new_facts) if confirmation and found.chosen else [],
        "techniques": [
            {
                "name": each.name,
                "settings": dict(each.settings),
                "contract": str(_kept(found, each)),
                "verdict": each.duel.verdict.value,
                "speedup": _interval(each.duel.interval),
                "check": each.check.sentence,
            }
            for each in found.chosen
        ],
        "rejected": [_rejected(each) for each in _all_rejected(found)],
        "precision": precision_table(found, _all_rejected(found)),
        "check": found.proof.sentence if found.proof else None,
        "proof": proof_data(found.proof) if found.proof and found.proof is not OPEN else None,
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
        "notes": [
            *([found.refusal] if found.refusal else []),
            *_whole_run_note(before, after),
            *_crowded(found),
            *_noise_scale(found),
            *found.notes,
        ],
    }


def plan_of(found: Findings, result: Mapping[str, Any]) -> Plan:
    confirmation = found.confirmation
    return Plan(
        program=found.program.name,
        contract=_contract(found),
        techniques=tuple(
            PlannedTechnique(
                each.name, dict(each.settings), _kept(found, each), each.duel.verdict.value, each.duel.interval
            )
            for each in found.chosen
        ),
        verdict=found.verdict.value,
        speedup=None if found.needed() or confirmation is None else confirmation.interval,
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


def _contract(found: Findings) -> Contract:
    """What was asked for; open where a technique was asked for by name that changes the training itself."""
    return max((found.contract, *(each.check.level or found.contract for each in found.chosen)), key=lambda c: c.rank)


def _kept(found: Findings, adopted: Adopted) -> Contract:
    """The level a plan may promise: what was seen here, but no stricter than the technique promises anywhere."""
    declared = catalogue()[adopted.name].contract
    proof = found.proof if adopted.joined else None  # it was never proved but with the whole plan
    seen = (proof.level if proof else adopted.check.level) or declared
    return seen if declared.allows(seen) is False else declared


def whole_run(before: Mapping[str, Any], after: Mapping[str, Any], steps: int) -> float:
    """The speedup of a run of so many steps, start-up included; evaluation counts as far as blocks held it."""
    old, new = (side["setup_seconds"] + (steps - 1) * side["seconds_per_step"] for side in (before, after))
    if (times := _times_the_batch(before, after)) > 1:
        new = after["setup_seconds"] + (steps - 1) / times * after["seconds_per_step"]
    return float(old / new)


def _times_the_batch(before: Mapping[str, Any], after: Mapping[str, Any]) -> int:
    """How many times as many samples a step has: for as many samples it takes so many fewer steps."""
    one, other = ((side["samples_per_s"] or 0) * side["seconds_per_step"] for side in (before, after))
    return max(1, round(other / one)) if one else 1


def _noise_scale(found: Findings) -> list[str]:
    """What a larger batch can be worth, where one was tried."""
    facts = found.control.old_facts if found.control else None
    tried = {each.name for each in found.adopted} | {
        each.name for each in [*found.rejected, *found.dropped] if each.duel
    }
    opened = any(name in catalogue() and catalogue()[name].contract is Contract.OPEN for name in tried)
    if facts is None or not facts.noise_scale or not opened:
        return []
    # A rough figure: three looks at one small program, at different steps, gave 45, 68 and 342 samples.
    size = (
        f"roughly {float(f'{facts.noise_scale:.1g}'):,.0f} samples, from a few steps"
        if math.isfinite(facts.noise_scale)
        else "too large to be told from a few steps"
    )
    return [
        f"The gradient's noise scale early in this training is {size} (a batch has {facts.samples_per_step:,.0f}). "
        "Batches well below it need nearly as many samples as now for the same loss, and fewer steps; batches "
        "above it need more samples. It grows during training. Speeds are in samples, whatever the batch."
    ]


def _whole_run_note(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> list[str]:
    if not before or not after:
        return []
    gains = ", ".join(f"{whole_run(before, after, steps):.2g}x for {steps:,}" for steps in (1_000, 10_000, 100_000))
    return [
        f"The speed-up is that of a training step. With start-up, a whole run gains by its length in steps: {gains}."
    ]


def _loaders(facts: Facts | None) -> list[dict[str, Any]]:
    """Where an item's time goes, for each loader that the program iterated over."""
    return [
        {
            "batch_size": each.batch_size,
            "workers": each.workers,
            "samples": each.length,
            "batch_bytes": each.batch_bytes,
            "seconds_per_item": dict(each.seconds_per_item),
            "not_split": each.not_split,
            "draws": each.draws,
        }
        for each in (facts.loaders if facts else ())
    ]


def _crowded(found: Findings) -> list[str]:
    """A warning where the program's own workers come near the limit of the shared memory."""
    facts = found.control.old_facts if found.control else None
    if facts is None or facts.shared_memory is None:
        return []
    most = sum(needed(each.workers, each.prefetch, each.batch_bytes) for each in facts.loaders)
    if most <= _CROWDED * facts.shared_memory:
        return []
    return [
        f"The program's own workers may put {most / 1e6:,.0f} MB into {PLACE} at once, and "
        f"{facts.shared_memory / 1e6:,.0f} MB were free there: when it is full, a worker ends with a bus error. "
        "Fewer workers, a smaller prefetch_factor or a larger limit (docker: --shm-size) avoid that."
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


def _speedup(found: Findings) -> dict[str, float] | None:
    """Of the whole plan against the untouched program; none where that does not run."""
    return _interval(found.confirmation.interval) if found.confirmation and not found.needed() else None


def _after(found: Findings) -> dict[str, Any] | None:
    duel, needed = found.confirmation, found.needed()
    if duel and found.chosen and len(found.chosen) > len(needed):
        return _side(duel.new_side, duel.new_facts)
    if not needed:
        return None
    if found.control and found.control.pairs:
        return _side(found.control.old_side, found.control.old_facts)
    return _side(needed[-1].duel.new_side, None)


def _before(found: Findings) -> dict[str, Any] | None:
    if found.needed():
        return None  # it did not run
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
        "peak_memory": side.peak_memory or None,
    }


def _rates(side: Mapping[str, Any] | None) -> dict[str, float]:
    if side is None:
        return {}
    return {name: side[name] for name in ("samples_per_s", "seconds_per_step") if side[name] is not None}


def _break_even(found: Findings) -> int | None:
    duel = found.confirmation
    if duel is None or not found.chosen or found.needed():
        return None
    # Filling a cache is in both: where it lies on disk, the trials filled it, once; where it lies in memory, each
    # process fills it anew before its first step, to which its set-up reaches.
    setup = found.seconds + max(0.0, duel.new_side.setup_seconds - duel.old_side.setup_seconds)
    times = 1.0
    if duel.old_side.samples and duel.new_side.samples:
        larger = duel.new_side.samples / duel.new_side.steps / (duel.old_side.samples / duel.old_side.steps)
        times = max(1, round(larger))  # as `_times_the_batch`: steps of before are what is counted
    return break_even_steps(setup, duel.old_side.seconds_per_step, duel.new_side.seconds_per_step / times)


def _duels(found: Findings) -> list[dict[str, Any]]:
    duels: list[tuple[str, Duel]] = []
    if found.control:
        duels.append(("control (A/A)", found.control))
    duels += [(each.name, each.duel) for each in found.adopted]
    duels += [(f"{name}{_AGAIN}", duel) for name, duel in found.again]
    duels += [(each.name, each.duel) for each in (*found.rejected, *found.dropped) if each.duel]
    if found.confirmation:
        duels.append(("confirmation", found.confirmation))
    return [
        {
            "name": name,
            "settings": dict(dict(duel.new.techniques).get(name.removesuffix(_AGAIN), {})),
            "against": duel.old.name(),
            "verdict": duel.verdict.value,
            "speedup": _interval(duel.interval),
            "peak_memory": [duel.old_side.peak_memory or None, duel.new_side.peak_memory or None],
            "pairs": [vars(pair) for pair in duel.pairs],
        }
        for name, duel in duels
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
