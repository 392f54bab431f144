"""Screening: what many candidates do to a program's speed, from blocks in which all are switched at random.

Each block of a live trial tells about every candidate at once. Blocks come in fold-over pairs, a row of switches and
its mirror image; the difference of their log times has main effects in it, their sum has interactions. This package
is the statistics, and runs nothing:

- `factors`: a `Factor` is what is switched (its levels exclude each other), a `Row` one level for each, and an
  `Observation` what was measured in a block of steps under one.
- `design`: `Design.next_pair(active, rng)` gives the next two rows.
- `estimate`: `estimate(blocks, factors)` gives `Effects`, with errors that hold for other processes too; interactions
  that show are in it (`interactions`), and disturbed blocks do not count.
- `race`: at a look, `race(effects, active, candidates, factors)` says who leaves, whether it is over, and what the
  plan is (`choice`, by `beliefs`, with each candidate's `prior`).
- `processes`: when a fresh process should take the place of the live one.
- `carry_over`: whether blocks still feel the row before them; then more steps have to go by untimed.
- `of_processes`: effects of what cannot be switched inside a process.

All gains are on the logarithm of speed (.05 is 5 % faster), and intervals are speedups (1.05).

    factors = [on_off("autocast"), Factor("threads", ("1 thread", "2 threads")), on_off("placebo", placebo=True)]
    candidates = [Alternative("autocast", Contract.STATISTICAL), Alternative("1 thread"), Alternative("2 threads")]
    design, rng, blocks = Design(factors), np.random.default_rng(0), []
    active, look = set(labels_of(factors)), next_look(0)
    for pair in itertools.count():
        for row in design.next_pair(active, rng):
            began, took, steps = trial.run(on=on_in(row, factors))  # the caller's
            blocks.append(Observation(process, pair, row, math.log(took / steps), began))
        if pair + 1 == look:
            effects = estimate(blocks, factors, noise=0.05)
            look_result = race(effects, active, candidates, factors)
            if look_result.stop:
                break  # look_result.plan, effects.speedup_of(look_result.plan), effects.speedup("autocast")
            active -= look_result.drop
            look = next_look(look)

benchmarks/results/screening.json has how often that finds the best plan, and what the intervals cover.
"""

from overdrive.evidence.screening.carry_over import CarryOver, carry_over
from overdrive.evidence.screening.choice import Alternative, choose
from overdrive.evidence.screening.design import Design
from overdrive.evidence.screening.effects import Effects
from overdrive.evidence.screening.estimate import estimate
from overdrive.evidence.screening.factors import (
    Factor,
    Observation,
    Row,
    labels_of,
    on_in,
    on_off,
    rivals_of,
    row_with,
)
from overdrive.evidence.screening.of_processes import ProcessMean, error_of, estimate_of_processes, mean_of
from overdrive.evidence.screening.prior import USUAL, Prior, learned, shipped
from overdrive.evidence.screening.processes import pairs_of_process
from overdrive.evidence.screening.race import LookResult, next_look, race

__all__ = [
    "USUAL",
    "Alternative",
    "CarryOver",
    "Design",
    "Effects",
    "Factor",
    "LookResult",
    "Observation",
    "Prior",
    "ProcessMean",
    "Row",
    "carry_over",
    "choose",
    "error_of",
    "estimate",
    "estimate_of_processes",
    "labels_of",
    "learned",
    "mean_of",
    "next_look",
    "on_in",
    "on_off",
    "pairs_of_process",
    "race",
    "rivals_of",
    "row_with",
    "shipped",
]
