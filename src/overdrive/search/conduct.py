"""A whole search of a program: from its list of parameters to the result."""

from __future__ import annotations

import hashlib
import math
import re
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from overdrive.core.atomic_file import write_atomically
from overdrive.core.batch_curve import BatchCurve
from overdrive.core.hyperparameters import ANNEALED
from overdrive.core.ledger import default_path
from overdrive.core.metric import Metric
from overdrive.core.program import Program
from overdrive.core.search_result import RUNNING, SearchResult, Tried
from overdrive.core.settings import Chosen, in_words
from overdrive.core.units import duration
from overdrive.machine.inventory import fingerprint
from overdrive.search import names, samplers
from overdrive.search.batch_curve import NO_NOISE, batch_curve, tells_noise
from overdrive.search.beside import beside
from overdrive.search.chosen_plan import run_of_chosen
from overdrive.search.comparison import Comparison
from overdrive.search.domain import Domain, DomainError, Wish, domain_of, sensible
from overdrive.search.engine import Engine, import_optuna
from overdrive.search.goal import Goal
from overdrive.search.knowledge import begin_with_knowledge, sizes_of
from overdrive.search.labels import hint, labels
from overdrive.search.listing import PATIENCE, ParameterList, listing
from overdrive.search.model_tree import tree_diff
from overdrive.search.parameters import Parameter, command_of, find
from overdrive.search.plan_cover import chosen_of, loosest_of, planned
from overdrive.search.runs import Runs
from overdrive.search.search import CannotSearch, Search
from overdrive.trials.pool import TrialPool

_VALIDATION, _TEST = re.compile(r"(?i)\bval|\bdev\b"), re.compile(r"(?i)\btest")
_OTHER_LOSS = "the loss of another batch is another number, whatever is learned"
_WORTH_A_TUNE = 120.0  # seconds that are left of the budget
# Values that leave the training loss what it is, the size of a model beside them.
_OF_THE_WAY = (names.LR, names.MOMENTUM, names.BETA1, names.BETA2, names.ANNEAL)


@dataclass(frozen=True)
class SearchRequest:
    """What a user asks for."""

    program: Program
    wishes: tuple[Wish, ...]
    metric: Metric
    goal: Goal
    budget: float  # seconds
    plan: Path | None = None
    judge: Metric | None = None  # of the comparison
    study: Path | None = None  # the folder that processes share, be their machines or GPUs others
    sampler: str = samplers.TPE  # who proposes configurations
    model: bool = False  # vary all of the model that can be
    plan_of_chosen: Path | None = None  # where a plan for what was chosen is written
    sampler_seed: int = 1  # by which chance they are proposed: not that of the program's runs

    def aim(self) -> str:
        """`the largest Accuracy`."""
        if self.goal.target is not None:
            return f"{self.metric.name} {self.goal.target:g} soonest"
        if self.goal.against:
            return f"the same {self.metric.name} at less of its cost ({self.goal.against})"
        within = f" after {duration(self.goal.within)}" if self.goal.within else ""
        return f"the {'largest' if self.goal.maximize else 'smallest'} {self.metric.name}{within}"


def conduct(request: SearchRequest, pool: TrialPool, tell: Callable[[str], None]) -> SearchResult:
    """
    Raises:
        CannotList, CannotSearch, UnknownParameter, DomainError, NoOptuna, NoSampler, Damaged, PlanError.
        OSError: the journal cannot be written.
    """
    import_optuna()  # first: what comes now takes a run of the program
    samplers.check_installed(request.sampler)
    plan = planned(request.plan)
    techniques = chosen_of(plan)
    began = time.monotonic()
    models = request.model or _of_models(request.wishes)
    found = listing(pool, request.program, models, max(PATIENCE, request.budget))
    looked = Tried(0, {}, "complete", None, time.monotonic() - began)
    parameters, domains = _chosen(found, request.wishes, request.model, request.metric)
    ranges = " and ".join(f"{name} ({domain})" for name, domain in domains.items())
    tell(f"varied: {ranges}{f', all under {request.plan}' if techniques else ''}")
    usual = request.metric.is_loss and not (request.wishes or request.model)
    if usual and any(each.meaning == names.BATCH_SIZE for each in found.parameters):
        tell(f"the batch size is not varied: {_OTHER_LOSS}; --metric names another measure")
    runs = Runs(pool, request.program, found, request.metric, request.goal, techniques, loosest_of(plan))
    journal = _journal(request, found, domains, techniques)
    engine = Engine(journal, domains, request.sampler_seed, bool(request.goal.against), request.sampler)
    try:
        engine.remember(f"looking, {engine.sharing.name}", looked)
        if known := len(engine.runs()):
            tell(f"going on from a search that was broken off: {known} runs are known")
        so_far = journal.with_suffix(".json")
        tell(f"how far it is: overdrive report {shlex.quote(str(so_far))}")
        order = Search(parameters, domains, request.metric, request.goal, request.budget, engine, runs.run, tell)
        if request.judge:
            order = replace(order, judge=request.judge.name)

        def keep(found: SearchResult) -> SearchResult:
            found = replace(found, plan=str(request.plan or "") if techniques else "")
            write_atomically(so_far, found.dumps())
            return found

        result = keep(_searched(order, runs, keep))
        if plan and request.plan_of_chosen:
            run = run_of_chosen(plan, result, request.program, parameters, request.plan_of_chosen, tell)
            result = keep(replace(result, run=run))
    finally:
        engine.close()
    return result


def curve_of(request: SearchRequest, pool: TrialPool, tell: Callable[[str], None]) -> BatchCurve:
    """
    Raises:
        CannotList, CannotSearch, UnknownParameter, DomainError, PlanError.
    """
    found = listing(pool, request.program, False, max(PATIENCE, request.budget))
    sizes = [each for each in found.parameters if each.meaning == names.BATCH_SIZE]
    if not sizes:
        raise CannotSearch("No batch size was found that could be varied without an edit.")
    wish = next((each for each in request.wishes if find(found.parameters, each.name) == sizes[0]), None)
    domain = domain_of(sizes[0], wish)
    if not tells_noise(found.facts):
        raise CannotSearch(NO_NOISE)
    curve = batch_curve(pool, request.program, sizes[0], sizes_of(domain), chosen_of(planned(request.plan)), tell)
    if curve is None:
        raise CannotSearch("The program makes too few steps of one kind to tell the noise of its gradients.")
    return curve


def _searched(order: Search, runs: Runs, keep: Callable[[SearchResult], object]) -> SearchResult:
    """`keep`: told what it has come to after each run."""
    name = runs.program.command()
    waits = lambda: order.tell("another process begins this search: it is shared")  # noqa: E731
    with order.engine.sharing.turn("beginning", waits):
        defaults = order.defaults(lambda: hint(runs.output))
        if order.judge:
            order = replace(order, judged=replace(runs, metric=Metric(order.judge), steps=defaults.steps).run)
        runs.total, runs.steps = defaults.progress, defaults.steps
        runs.length = defaults.seconds if order.goal.timed else 0.0
        _check_judge(order, runs)
        notes = (*_beside_learning(order), *begin_with_knowledge(order, runs, defaults))

    def so_far(made: Sequence[Tried]) -> None:
        keep(replace(order.result(name, defaults, made, None, order.best(defaults, made)), verdict=RUNNING))

    order = replace(order, keep=so_far)
    try:
        trials = order.trials(defaults)
    except KeyboardInterrupt:
        best = order.best(defaults, order.engine.runs())
        what = f"{in_words(best.values)}: {best.metric}" if best else "the defaults"
        order.tell(f"best so far, not compared on fresh seeds: {what}")
        raise
    if not trials:
        raise CannotSearch(
            f"The time for configurations was over before one was tried: a run takes {duration(defaults.seconds)}, and "
            f"what came before took {duration(order.engine.seconds_remembered())} of {duration(order.budget)}. Write a "
            "longer --budget."
        )
    best = order.best(defaults, trials)
    if over := order.passed_over(defaults, trials):
        notes = (*notes, over)
    comparison = Comparison(order, defaults, best).made() if best else None
    result = replace(order.result(name, defaults, trials, comparison, best), notes=notes)
    if best is None:
        return result
    command, edits = command_of(runs.program, order.parameters, best.values)
    if steps := runs.annealing(best.values):
        edits = (*edits, _as_written(steps))
    tree = tree_diff(runs.pool, runs.program, runs.found, best.values)
    left = order.budget - result.spent
    held = ("--budget", f"{left // 60:.0f}m") if left >= _WORTH_A_TUNE else ()
    given = ("--stdin", runs.program.stdin) if runs.program.stdin else ()
    tune, _ = command_of(runs.program, order.parameters, best.values, ("overdrive", "tune", *held, *given))
    return replace(result, command=command, edits=edits, tune=tune if best.outside else "", tree=tree)


def _as_written(steps: int) -> str:
    """The fall of the learning rates as a program has it."""
    return (
        f"every learning rate in step k of the training, from 0: {ANNEALED:g} + {1 - ANNEALED:g} * "
        f"max(0, 1 - k / {steps}) times what the program sets. Where nothing else sets it, that is "
        f"torch.optim.lr_scheduler.LinearLR(optimizer, 1, {ANNEALED:g}, {steps}), with its step() after each step"
    )


def _chosen(
    found: ParameterList, wishes: Sequence[Wish], model: bool, metric: Metric
) -> tuple[tuple[Parameter, ...], dict[str, Domain]]:
    if model:
        asked = {find(found.parameters, wish.name).name for wish in wishes}
        wishes = [*wishes, *(Wish(each.name) for each in found.parameters if each.of_model and each.name not in asked)]
        if len(wishes) == len(asked):
            raise CannotSearch("No depth, width, heads or kernels were found that the program lives with others of.")
    if not wishes:
        named = {each.name for each in found.parameters if sensible(each)}  # none of what is worked out later: 0 now
        wishes = [Wish(name) for name in names.USUAL if name in named]
        if not wishes:
            raise CannotSearch("Neither a learning rate nor a batch size was found: name what to vary with --vary.")
        if metric.is_loss:
            wishes = [wish for wish in wishes if wish.name != names.BATCH_SIZE] or wishes
    parameters = [find(found.parameters, wish.name) for wish in wishes]
    if len({each.name for each in parameters}) < len(parameters):
        raise DomainError("A parameter is named twice with --vary")
    if scaling := [each.name for each in parameters if metric.is_loss and _scales_loss(each)]:
        raise CannotSearch(
            f"{scaling[0]} cannot be judged by the training loss: {_OTHER_LOSS}. Name a number that the program "
            "prints, as --metric Accuracy."
        )
    falls = any(each.meaning == names.ANNEAL for each in parameters)
    if accumulating := [each.name for each in parameters if falls and _accumulates(each)]:
        raise CannotSearch(
            f"{names.ANNEAL} and {accumulating[0]} cannot be varied together: how many samples a step sees is then not "
            "known."
        )
    domains = {each.name: domain_of(each, wish) for each, wish in zip(parameters, wishes, strict=True)}
    return tuple(parameters), domains


def _scales_loss(parameter: Parameter) -> bool:
    """Whether another value changes what the loss is of: a sum over other numbers of samples, another part of it."""
    return parameter.meaning == names.BATCH_SIZE or _accumulates(parameter)


def _beside_learning(order: Search) -> tuple[str, ...]:
    """What should be known where the training loss judges a value that may change it by itself; told at once, too."""
    if order.judge or not order.metric.is_loss:
        return ()
    named = [each.name for each in order.parameters if each.meaning not in _OF_THE_WAY and not each.of_model]
    if not named:
        return ()
    said = (
        f"The training loss may tell little of {', '.join(named)}: less dropout, weight decay, label smoothing and the "
        "like lower it whatever is learned. --metric names another measure."
    )
    order.tell(said)
    return (said,)


def _accumulates(parameter: Parameter) -> bool:
    """Whether it says of how many batches a step is made."""
    return "accum" in names.spelled(parameter.places[0].name)


def _of_models(wishes: Sequence[Wish]) -> bool:
    """Whether depths or widths of models may be asked for: what of them can change takes trials to find out."""
    return any((names.means(each.name) or each.name) not in names.OF_TRAINING for each in wishes)


def _journal(
    request: SearchRequest, found: ParameterList, domains: Mapping[str, Domain], techniques: Sequence[Chosen]
) -> Path:
    """One for each search: its program, what is varied and for what; a longer budget goes on with it."""
    program = request.program
    judge = (request.judge.name,) if request.judge else ()
    wanted = repr((sorted(domains.items()), request.metric.name, request.goal, techniques, *judge))
    machine = "" if request.study else fingerprint()
    key = hashlib.sha256("\0".join((program.identity(), beside(program, found), wanted, machine)).encode()).hexdigest()[
        :24
    ]
    folder = request.study.absolute() if request.study else default_path().parent / "searches"
    return folder / f"{program.stem[:40]}-{key}.journal"


def _check_judge(order: Search, runs: Runs) -> None:
    """After the default run.

    Raises:
        CannotSearch: it has no such metric.
    """
    if not runs.output:  # it was made by another process
        return
    if order.judge:
        if not math.isfinite(Metric(order.judge).value((), runs.output, None)):
            raise CannotSearch(f"There is nothing to judge by: {Metric(order.judge).missing()}.{hint(runs.output)}")
    elif _VALIDATION.search(order.metric.name) and order.goal.target is None:
        for word in labels(runs.output):
            alike = Goal.parse("best", Metric(word)).maximize == order.goal.maximize
            if alike and _TEST.search(word):
                order.tell(f"--judge-by {shlex.quote(word)} would compare on data that the selection does not see")
                return
