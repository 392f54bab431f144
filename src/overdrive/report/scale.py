"""Prints steps on ranks in growing numbers, and what breaks first."""

from __future__ import annotations

from collections.abc import Sequence

from overdrive.core.requirements_result import PARTS_AT_SIZE, AtSize, AtSizes
from overdrive.core.units import duration, rate, several
from overdrive.report.paper import Paper

_HEADS = ("its share", "beside", "slowest", "network", "failures")
_MEANT = {
    "beside": "what each rank computes beside its share",
    "slowest": "the wait for the slowest rank",
    "network": "the wait for the network",
    "failures": "what snapshots and lost ranks cost",
}
_HALF = 0.5
_DIVIDED = 2  # samples for each rank: with fewer a model is called whole (techniques/parallel/data_parallel)


def sizes(found: AtSizes, paper: Paper) -> None:
    """Print all of it."""
    told = [each for each in found.rows if each.parts]
    with_failures = any(each.parts["failures"] or each.ends < 1 for each in told)
    shown = PARTS_AT_SIZE if with_failures else PARTS_AT_SIZE[:-1]
    head = ("ranks", "a step", "speed", *(_HEADS[: len(shown)]))
    body = [(f"{each.ranks:,}", *_row(each, shown, found.seconds)) for each in told]
    if with_failures:
        head = (*head, "lost", "a run")
        body = [(*row, *_run(each)) for row, each in zip(body, told, strict=True)]
    paper.rows(head, body, right=True)
    _untold(found.rows, paper)
    if few := next((each.ranks for each in told if _DIVIDED * each.ranks > found.samples), 0):
        paper.say(
            f"From {few:,} ranks on the batch of {several(round(found.samples), 'sample')} is too small: each rank "
            "makes all of a call that has fewer than two samples for it."
        )
    if told:
        paper.say(breaks(found.seconds, told), "bold")
    _how(found, paper)


def _row(each: AtSize, shown: Sequence[str], alone: float) -> tuple[str, ...]:
    seconds = sum(each.parts.values())
    if not each.ends:
        return ("-", "-", *(f"{each.parts[name] / seconds:.0%}" for name in shown[:-1]), "no end")
    return rate(seconds, "s"), f"{alone / seconds:.3g}x", *(f"{each.parts[name] / seconds:.0%}" for name in shown)


def _run(each: AtSize) -> tuple[str, str]:
    ends = "" if each.ends == 1 else f" ({each.ends:.0%} end)"
    return f"{each.lost:.3g}", "no end" if each.run is None else f"{duration(each.run)}{ends}"


def breaks(alone: float, rows: Sequence[AtSize]) -> str:
    """What breaks first, and at which size, in a sentence; and where more ranks are no faster."""
    said = f"Up to {rows[-1].ranks:,} ranks, half of a step or more is a rank's share of the work: nothing breaks."
    for each in rows:
        seconds = sum(each.parts.values())
        if each.ends < _HALF:
            said = f"From {each.ranks:,} ranks on most runs do not come to their end: too many ranks are lost in a row."
            break
        if each.parts["share"] < _HALF * seconds:
            name = max(_MEANT, key=lambda part: each.parts[part])
            said = (
                f"What breaks first is {_MEANT[name]}: {'at' if each is rows[0] else 'from'} {each.ranks:,} ranks"
                f"{' already' if each is rows[0] else ' on'}, less than half of a step is a rank's share of the work, "
                f"and {each.parts[name] / seconds:.0%} is this."
            )
            break
    ending = [each for each in rows if each.ends >= _HALF]
    if not ending:
        return said
    best = min(ending, key=lambda each: sum(each.parts.values()))
    if sum(best.parts.values()) >= alone:
        return f"{said} No number of these is faster than one process."
    return said if best is rows[-1] else f"{said} More than {best.ranks:,} ranks are no faster."


def _untold(rows: Sequence[AtSize], paper: Paper) -> None:
    """Why some sizes are not in the table; and what rank 0 said, where it is not what it said at the size before."""
    before: tuple[str, ...] = ()
    for each in rows:
        if not each.parts:
            paper.say(f"Nothing is foretold of {each.ranks:,} ranks: {each.why}.")
        elif each.told != before:
            before = each.told
            for line in each.told:
                paper.say(f"From {each.ranks:,} ranks on: {line}.")


def _how(found: AtSizes, paper: Paper) -> None:
    steps, longest = found.varied
    stated = f" Stated, not measured: {'; '.join(found.stated)}." if found.stated else ""
    paper.say(
        f"What one rank of so many does was measured here ({found.layout}=N, the program's own batch), with the others "
        f"imagined; all of them are played, over rings of {found.network}. They vary as {several(steps, 'step')} did "
        f"here, of which the longest took {longest:.3g} times the median.{stated} So many ranks were never run: "
        "docs/scale.md tells what was compared with real ones."
    )
    paper.say()
