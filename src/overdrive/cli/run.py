"""`overdrive run`: the whole program under a plan, with the output, files and exit code of `python SCRIPT`."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from overdrive.cli.defaults import plan_asked_for
from overdrive.cli.json_output import STDOUT
from overdrive.cli.later import Later
from overdrive.cli.layout import HELP, technique_of
from overdrive.cli.line import fail, parse_program, program_argument, program_command
from overdrive.cli.misplaced import STARTED_AGAIN
from overdrive.cli.record_place import RecordPlace
from overdrive.cli.started_again import Start, hash_alike, membership_in, prepare_environment, start_ranks
from overdrive.cli.survive import Wish, survivor_of
from overdrive.cli.surviving_ranks import RUN, open_launched, start_surviving_ranks, survivor_in_group
from overdrive.cli.values import Duration, Whole
from overdrive.cli.watching import WatchWish, watch_options
from overdrive.cli.whole_run import run
from overdrive.core.contract import Contract
from overdrive.core.plan import REMOVED, Plan, PlanError
from overdrive.core.program import Program
from overdrive.core.settings import Chosen
from overdrive.ranks.horovod.imports import installed
from overdrive.techniques.catalogue import catalogue, ranks_for
from overdrive.worker.launch import hide_own_frames
from overdrive.worker.saying import announce, say

if TYPE_CHECKING:
    from overdrive.ranks.membership import Membership


def announce_removed(plan: Plan) -> None:
    """Say which techniques of the plan's file were removed; once, though this process starts again."""
    for name in plan.removed if STARTED_AGAIN not in os.environ else ():
        announce(name, REMOVED[name])


def read_plan(path: Path, program: Program, force: bool = False) -> Plan:
    """
    Args:
        force: take it even if it was found for another program.

    Raises:
        PlanError: the plan cannot be used.
        OSError: it cannot be read.
    """
    plan = Plan.read(path, catalogue())
    announce_removed(plan)
    if PurePath(plan.program).name != program.name:
        said = f"this plan was found for {plan.program}, not for {program.name}"
        if not force:
            finds = f"`overdrive tune {program.command()}` finds one for it, --force takes this"
            raise PlanError(f"{said}: {finds}", None, str(path))
        if STARTED_AGAIN not in os.environ:
            say(f"{path}: {said}; using it all the same")
    return plan


force_option = click.option("--force", is_flag=True, help="Use a plan that was found for another script.")


_RECORD = (
    "Write steps, losses and a hash as JSON to FILE; or losses and learning rates to tensorboard:FOLDER, "
    "mlflow:EXPERIMENT or wandb:PROJECT (offline)."
)


_SURVIVE = (
    "Save snapshots in FOLDER; if the run is killed, the same command goes on from there.  "
    "[default: SCRIPT's name and .survive]"
)
_MTBF = (
    "With --survive: mean time between failures; with the cost of a snapshot it decides how often one is taken.  "
    "[default: 24h]"
)
_NOTICES = "With --survive: ask this cloud whether it is about to take the machine away, and treat that as SIGTERM."
_REQUEUE = "With --survive: the exit code after SIGTERM, SIGUSR1 or SIGUSR2.  [default: 128 and the signal's number]"


_NO_HOROVOD = "Horovod is not installed here: leave out --engine, and Overdrive answers in its place."
_HOROVOD_STARTS = "Horovod starts its ranks itself: horovodrun -np {} overdrive run --engine horovod SCRIPT"


def run_surviving(
    program: Program, record: Path | None, techniques: list[Chosen], plan_name: str | None, wish: Wish, watch: WatchWish
) -> int:
    survivor = survivor_of(program, techniques, wish, say, Start.now().again)
    return run(program, techniques, plan_name, record, survivor=survivor, wish=watch)


def _surviving(
    program: Program, record: Path | None, techniques: list[Chosen], plan_name: str | None, wish: Wish, watch: WatchWish
) -> Callable[[], int]:
    """A run that survives, of one process or, where the plan says so, of several."""
    hash_alike()
    if (planned := ranks_for(techniques)) > 1:
        return partial(start_surviving_ranks, program, planned, _dividing(techniques), wish, say)
    kept = _that_survive(techniques)
    prepare_environment(kept)
    return partial(run_surviving, program, record, kept, plan_name, wish, watch)


def _that_survive(techniques: list[Chosen]) -> list[Chosen]:
    """Those of a plan that a run can be gone on with under; the others are named."""
    kept = []
    for name, settings in techniques:
        if catalogue()[name].survives:
            kept.append((name, settings))
        elif STARTED_AGAIN not in os.environ:
            announce(name, catalogue()[name].lost_when_killed)
    return kept


def run_as_rank(
    membership: Membership,
    program: Program,
    record: Path | None,
    plan: Plan | None,
    plan_path: Path | None,
    engine: str | None,
    technique: Chosen,
    watch: WatchWish,
    survives: Wish | None = None,
) -> int:
    """
    Args:
        plan: where it was proved on so many ranks; any other at that path is left out.
        technique: that divides the work where there is no plan.
    """
    from overdrive.core.places import samples_folder
    from overdrive.ranks.rank import Rank
    from overdrive.survive.identity import divides_batches

    chosen, name = (_chosen(plan), plan_path.name) if plan and plan_path else ([technique], None)
    dividing = _dividing(chosen) if plan else chosen
    taken = chosen if survives is None else dividing
    run_folder, chance = os.environ.pop(RUN, ""), ""
    launched = survives is not None and not run_folder
    if survives and launched:
        run_folder, chance = map(str, open_launched(membership, program, taken, survives, say))
    kept = [samples_folder(), *([Path(run_folder)] if run_folder else [])]
    rank = Rank(membership, kept, hide_own_frames, chance=chance)
    rank.technique = technique[0]
    rank.batches_alone = all(divides_batches(*each) for each in dividing)
    for each, _ in chosen:
        if each not in dict(taken):
            rank.say(f"left out {each}: beside ranks no run was gone on with under it")
    if plan is None and plan_path is not None:
        rank.say(f"{plan_path.name} is left out: it was not proved on {membership.size} ranks")
    survivor = survivor_in_group(rank, Path(run_folder), taken, survives, launched) if survives else None
    if survivor is None:  # which answers for the clocks itself
        rank.first_times.answer()
    # Of ranks that Horovod has not started, an installed one knows nothing: each would train by itself.
    return run(program, taken, name, record, rank=rank, engine=engine or "overdrive", survivor=survivor, wish=watch)


def _dividing(techniques: list[Chosen]) -> list[Chosen]:
    """Those of a plan that make several processes."""
    return [each for each in techniques if ranks_for([each]) > 1]


def _chosen(plan: Plan) -> list[Chosen]:
    return [(each.name, each.settings) for each in plan.techniques]


def _levels(plan: Plan | None) -> dict[str, Contract]:
    """What each of its techniques promises."""
    return {each.name: each.contract for each in plan.techniques} if plan else {}


def _refuse(wrong: bool, why: str) -> None:
    if wrong:
        fail(why)


def _refuse_what_does_not_go_together(
    ranks: int | None, on: str | None, survive: str | None, engine: str | None, record: Path | None
) -> None:
    _refuse(on is not None and (ranks is None or survive is not None), "--on belongs to --ranks, without --survive.")
    _refuse(on is not None and ranks == 1, "--on takes --ranks 2 or more: one alone runs here.")
    _refuse(record == STDOUT, "Standard output is the program's own: name a file for --json.")
    _refuse(engine == "horovod" and not installed(), _NO_HOROVOD)
    _refuse(engine == "horovod" and (ranks or 1) > 1, _HOROVOD_STARTS.format(ranks))


def _survival(folder: str | None, wish: Wish) -> Wish | None:
    """What is asked of `--survive`; None where it is not."""
    _refuse(folder is None and wish.fresh, "--fresh belongs to --survive.")
    _refuse(folder is None and wish.notices is not None, "--notices belongs to --survive.")
    _refuse(wish.every is not None and wish.mtbf is not None, "Give either --every or --mtbf.")
    return None if folder is None else wish


def _plan(path: Path, program: Program, force: bool) -> Plan:
    try:
        return read_plan(path, program, force)
    except PlanError as error:
        fail(str(error))
    except OSError as error:
        fail(f"The plan {path} cannot be read: {error.strerror}.")


@program_command
@click.option("--ranks", type=Whole(min=1), help="Run it as N processes, with the same numbers as one.")
@click.option(
    "--on", type=click.Choice(["ray"]), help="Have a Ray cluster run the ranks (RAY_ADDRESS, or this machine)."
)
@click.option("--layout", metavar="KIND=N", help=HELP)
@click.option("--plan", "plan_path", type=click.Path(path_type=Path), help="The plan to run under.")
@click.option("--no-plan", is_flag=True, help="Run without a plan, even if there is one beside the script.")
@force_option
@click.option(
    "--engine",
    type=click.Choice(["overdrive", "horovod"]),
    help="What provides `import horovod.torch`: by default Overdrive on several ranks, else the installed one.",
)
@click.option("--survive", is_flag=False, flag_value="", metavar="[=FOLDER]", help=_SURVIVE)
@click.option("--every", type=Duration(), help="With --survive: time between two snapshots, whatever they cost.")
@click.option("--mtbf", type=Duration(), help=_MTBF)
@click.option("--fresh", is_flag=True, help="With --survive: forget what was done, and start over.")
@click.option("--requeue-code", type=Whole(0, 255), metavar="N", help=_REQUEUE)
@click.option("--notices", type=click.Choice(["aws", "gcp", "azure"]), help=_NOTICES)
@watch_options
@click.option("--record", "--json", type=RecordPlace(), metavar="FILE", help=_RECORD)
@program_argument("SCRIPT [ARGS]...")
def command(
    ranks: int | None,
    on: str | None,
    layout: str | None,
    plan_path: Path | None,
    no_plan: bool,
    force: bool,
    engine: str | None,
    survive: str | None,
    every: float | None,
    mtbf: float | None,
    fresh: bool,
    requeue_code: int | None,
    notices: str | None,
    on_nan: str | None,
    on_spike: str | None,
    on_hang: str | None,
    hang_after: float | None,
    record: Path | None,
    words: tuple[str, ...],
) -> None:
    """Run the whole program under a plan: by default the one beside it, if there is one.

    Same output, same files, same exit code as `python SCRIPT`, and a line or two more on standard error.
    """
    _refuse_what_does_not_go_together(ranks, on, survive, engine, record)
    watch = WatchWish(on_nan, on_hang, hang_after, on_spike)
    watch.check(survives=survive is not None)
    program = parse_program(words)
    plan_path = plan_asked_for(plan_path, no_plan, program)
    source = click.get_current_context().get_parameter_source("ranks")
    membership = membership_in(ranks if source is ParameterSource.COMMANDLINE else None)
    count = membership.size if membership else ranks or 1
    technique = technique_of(layout or f"data={count}", count)
    survives = _survival(survive, Wish(survive or "", every, mtbf, fresh, requeue_code, notices))
    plan = _plan(plan_path, program, force) if plan_path else None
    if ranks and ranks > 1 and membership is None:
        alone = partial(start_ranks, ranks, on=on)
        surviving = partial(start_surviving_ranks, program, ranks, [technique], may_be_fewer=layout is None)
        raise Later(partial(surviving, wish=survives, say=say) if survives else alone)
    techniques, name = (_chosen(plan), plan_path.name) if plan and plan_path else ([], None)
    if survives is not None and membership is None:
        raise Later(_surviving(program, record, techniques, name, survives, watch))
    planned = ranks_for(techniques)
    if membership:
        hash_alike()
        fits = planned == membership.size and layout is None
        if fits:
            prepare_environment(_dividing(techniques) if survives else techniques)
        how = (plan if fits else None, plan_path, engine, technique, watch, survives)
        raise Later(partial(run_as_rank, membership, program, record, *how))
    if planned > 1 and ranks is None:
        raise Later(partial(start_ranks, planned))
    if plan is not None:
        prepare_environment(techniques)
    inference = plan is not None and plan.inference
    raise Later(partial(run, program, techniques, name, record, _levels(plan), inference, engine=engine, wish=watch))
