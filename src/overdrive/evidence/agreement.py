"""Level `statistical` for programs that only call their model: how often the answer to a sample is another one.

The program as it is and the candidate answer the same inputs. Nothing is drawn at random but which samples the program
happens to send, so the samples are what the figures are taken over, those of calls with the same inputs once. Three
things have to hold for each tensor of an answer:

- **Other answers.** A sample's answer is another one where the class with the largest score is (of a single score:
  its sign), or a label, or a whole number; of an answer with many places (tokens, pixels) the share of them. It is
  another one, too, where it is thirty times as far off as the median sample's (and 5 % of a standard deviation over
  samples): lower precision is spread over all samples alike, a defect is not (a length that was frozen in one call of
  seven moved no mean). The upper end of the 95 % interval of the share of other answers is no more than the margin.
  Whatever counts right answers cannot move by more than that: with a margin of 2 % an accuracy stays within two points,
  whatever the labels.
- **Values.** The mean squared error is no more than 1 % of the variance of the output over samples, with the same
  confidence: 99 % of what tells answers apart stays.
- **No single sample** is off by more than a standard deviation, and no class loses more than five times the
  margin: a rare kind of sample that is answered wrongly moves no mean.

A share in [0, 1] spreads at most as far as yes and no do (Hoeffding, 1963, for its means), so the exact binomial
interval (Clopper and Pearson, 1934) of the rounded-up sum errs on the safe side.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import Any

import numpy as np

from overdrive.core.proof_record import AgreementRecord
from overdrive.evidence.binomial import at_least, at_most, samples_needed, up_to

MARGIN = 0.02
_ALPHA = 0.05
_LOST_MARGIN = 0.01
_FARTHEST = 1.0  # standard deviations over samples: the answer to another sample is 1.4 off
_APART, _NEAR = 30.0, 0.05  # times the median sample's error; standard deviations
_HOPEFUL = 0.5  # of the margin
_OF_A_CLASS = 5.0  # margins; a class may be small, and is told by few
_CLASS_P = 0.01  # for all classes together (Bonferroni)
_FEWEST = 30  # samples, for a normal approximation of the mean error
_CONSTANT = 1e-6  # of the size: an output that hardly differs from sample to sample is judged by its size


@dataclass(frozen=True)
class Agreed:
    """`holds`: None where too few samples were seen to tell."""

    holds: bool | None
    sentence: str
    record: AgreementRecord | None = None


@dataclass
class _Output:
    """One tensor of the answers: what came of each sample."""

    name: str
    other: list[float] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)  # squared, as a share of the variance
    classes: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    fault: str = ""


def judge(replay: Mapping[str, Any], margin: float = MARGIN) -> Agreed:
    """By what a trial in the role "agreement" reports.

    Args:
        margin: the share of other answers that is allowed, fixed beforehand.
    """
    others = set(replay.get("other_inputs", ()))
    without = {*others, *replay.get("repeated", ())}
    rows = [row for row in replay.get("rows", ()) if row["step"] not in without]
    # A tensor without a sample, such as the boxes of a detector that finds nothing, says nothing.
    outputs = [each for each in _outputs(rows, replay.get("spreads", {})) if each.fault or each.other]
    if not outputs:
        return Agreed(None, f"no answer could be compared{_left_out(len(others))}")
    calls = len({row["step"] for row in rows})
    judged = [_judged(each, calls, margin) for each in outputs]
    # One that is refused tells more than one that is not established, and that more than one that holds.
    told = min(judged, key=lambda each: ({False: 0, None: 1, True: 2}[each.holds], -_other(each)))
    return replace(told, sentence=told.sentence + _left_out(len(others)))


def _left_out(calls: int) -> str:
    """What is said of those with other inputs than the program's own."""
    if not calls:
        return ""
    return f"; {calls:,} {'call' if calls == 1 else 'calls'} with other inputs could not be compared"


def _outputs(rows: Sequence[Mapping[str, Any]], spreads: Mapping[str, Sequence[float]]) -> list[_Output]:
    found: dict[str, _Output] = {}
    for row in rows:
        name = row["tensor"]
        output = found.setdefault(name, _Output(name))
        if not row.get("form", True) or not row.get("finite", True):
            of = "has another form" if row.get("finite", True) else "is not finite where it was, or the other way round"
            output.fault = output.fault or f"{name} {of} in call {row['step']}"
            continue
        if any(map(math.isnan, row["other"])):  # it has samples, and no place in them
            continue
        output.other += row["other"]
        spread, size = spreads.get(name, (0.0, 0.0))
        scale = spread if spread > _CONSTANT * size else size
        output.errors += [_share(each, scale) for each in row.get("error", ())]
        for kind, other in zip(row.get("classes", ()), row["other"], strict=False):
            output.classes[kind].append(other)
    return list(found.values())


def _share(error: float, scale: float) -> float:
    return error / scale**2 if scale > 0 else (0.0 if error == 0 else math.inf)


def _judged(output: _Output, calls: int, margin: float) -> Agreed:
    if output.fault:
        return Agreed(False, output.fault, AgreementRecord(tensor=output.name, holds=False, calls=calls))
    shares = _with_the_far(output)
    samples, others = len(shares), math.ceil(sum(shares) - 1e-9)
    record = AgreementRecord(
        tensor=output.name,
        calls=calls,
        samples=samples,
        other=sum(shares) / samples,
        other_at_most=at_most(others, samples),
        margin=margin,
        lost=float(np.mean(output.errors)) if output.errors else 0.0,
        lost_at_most=_mean_bound(output.errors, 1.0),
        lost_margin=_LOST_MARGIN,
        worst=math.sqrt(max(output.errors, default=0.0)),
    )
    holds, why = _verdict(output, record, others)
    return Agreed(holds, _told(record, why), _finite(record, holds))


def _verdict(output: _Output, record: AgreementRecord, others: int) -> tuple[bool | None, str]:
    assert record.samples and record.margin and record.other_at_most is not None and record.lost_at_most is not None
    if record.worst is not None and record.worst > _FARTHEST:
        return False, f"the answer to one sample is {record.worst:.2g} standard deviations off"
    if lost := _lost_class(output, record.margin):
        return False, lost
    if record.other_at_most <= record.margin and record.lost_at_most <= _LOST_MARGIN:
        return True, ""
    if at_least(others, record.samples) > record.margin or _mean_at_least(output.errors) > _LOST_MARGIN:
        return False, "that is too many" if record.other_at_most > record.margin else "that is too far off"
    other, more = record.other or 0.0, ""
    if other <= _HOPEFUL * record.margin:  # the nearer, the more: millions at last
        needed = samples_needed(record.margin, other)
        more = f"; {needed:,} samples would be enough" if needed > record.samples else ""
    return None, f"that is not enough to tell{more}"


def _lost_class(output: _Output, margin: float) -> str:
    """The class of which so many are answered otherwise that it cannot be chance, in words."""
    least = _OF_A_CLASS * margin
    for kind, others in sorted(output.classes.items()):
        lost = math.floor(sum(others))
        if lost and 1 - up_to(lost - 1, len(others), min(0.5, least)) < _CLASS_P / len(output.classes):
            return f"of class {kind} {lost:,} of {len(others):,} are answered otherwise"
    return ""


def _with_the_far(output: _Output) -> list[float]:
    """Of each sample the share of its answer that is another one: all, where it is far farther off than most."""
    if not output.errors:
        return output.other
    limit = max(_NEAR**2, _APART**2 * float(np.median(output.errors)))
    return [1.0 if error > limit else other for other, error in zip(output.other, output.errors, strict=True)]


def _mean_at_least(errors: Sequence[float]) -> float:
    return max(0.0, _mean_bound(errors, -1.0)) if len(errors) >= _FEWEST else 0.0


def _mean_bound(errors: Sequence[float], side: float) -> float:
    """An end of the one-sided 95 % interval of the mean; of few, the largest."""
    if len(errors) < _FEWEST or not math.isfinite(max(errors)):
        return max(errors, default=0.0)
    half = NormalDist().inv_cdf(1 - _ALPHA) * float(np.std(errors, ddof=1)) / math.sqrt(len(errors))
    return float(np.mean(errors)) + side * half


def _other(agreed: Agreed) -> float:
    return (agreed.record.other or 0.0) if agreed.record else 0.0


def _finite(record: AgreementRecord, holds: bool | None) -> AgreementRecord:
    """As it may stand in a file."""
    lost, most, worst = (
        each if each is not None and math.isfinite(each) else None
        for each in (record.lost, record.lost_at_most, record.worst)
    )
    return replace(record, holds=holds, lost=lost, lost_at_most=most, worst=worst)


def _told(record: AgreementRecord, why: str) -> str:
    assert record.other is not None and record.other_at_most is not None and record.margin is not None
    assert record.lost is not None and record.samples is not None and record.calls is not None
    return (
        f"{record.samples:,} samples in {record.calls:,} calls: {_percent(record.other)} are answered otherwise, "
        f"at most {_percent(record.other_at_most)} where {_percent(record.margin)} are allowed, and "
        f"{_percent(max(0.0, 1 - record.lost))} of what tells answers apart stays{f': {why}' if why else ''}"
    )


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
