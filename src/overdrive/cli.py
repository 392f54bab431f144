"""The commands: parse, call, print; nothing else."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import click

from overdrive.contract import Contract
from overdrive.metric import Metric, MetricError
from overdrive.objective import Objective, ObjectiveError, bytes_in
from overdrive.program import Program, ProgramError
from overdrive.version import __version__


def fail(sentence: str, code: int = 2) -> NoReturn:
    print(f"overdrive: {sentence}", file=sys.stderr)
    sys.exit(code)


class ProgramCommand(click.Command):
    """A command whose own words stand before the program; all that follows belongs to the program."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        valued = {
            name
            for option in self.params
            if isinstance(option, click.Option) and not option.is_flag
            for name in (*option.opts, *option.secondary_opts)
        }
        before = sum(isinstance(parameter, click.Argument) for parameter in self.params) - 1  # PLAN, for verify
        options: list[str] = []
        named: list[str] = []
        rest = list(args)
        while rest and rest[0] not in ("-m", "--"):
            if rest[0].startswith("-") and rest[0] != "-":
                size = 2 if rest[0] in valued else 1
                options += rest[:size]
                del rest[:size]
            elif len(named) < before:
                named.append(rest.pop(0))
            else:
                break
        if rest and rest[0] == "--":
            del rest[0]
        args = [*options, *(["--"] if named or rest else []), *named, *rest]
        return super().parse_args(context, args)


def program_command(group: click.Group) -> Callable[[Callable[..., Any]], click.Command]:
    made: Callable[[Callable[..., Any]], click.Command] = group.command(
        cls=ProgramCommand, context_settings={"allow_interspersed_args": False, "max_content_width": 100}
    )
    return made


class Duration(click.ParamType):  # type: ignore[type-arg]  # not subscriptable before click 8.5
    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        parts = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m(?:in)?)?(?:(\d+)s?)?", str(value).strip())
        if not str(value).strip() or parts is None:
            self.fail(f"{value!r} is not a duration; write for example 90s, 10m or 1h30m", param, context)
        hours, minutes, seconds = (int(part or 0) for part in parts.groups())
        total = float(3600 * hours + 60 * minutes + seconds)
        if total <= 0:
            self.fail("the budget must be longer than nothing", param, context)
        return total


class MetricName(click.ParamType):  # type: ignore[type-arg]
    name = "name"

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> Metric:
        try:
            return value if isinstance(value, Metric) else Metric(str(value))
        except MetricError as error:
            self.fail(str(error), param, context)


class ObjectiveName(click.ParamType):  # type: ignore[type-arg]
    name = "objective"

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> Objective:
        try:
            return value if isinstance(value, Objective) else Objective.parse(str(value))
        except ObjectiveError as error:
            self.fail(str(error), param, context)


class Names(click.ParamType):  # type: ignore[type-arg]
    name = "names"

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> frozenset[str]:
        if isinstance(value, frozenset):
            return value
        from overdrive.techniques.catalogue import catalogue

        names = frozenset(filter(None, (each.strip() for each in str(value).split(","))))
        for unknown in sorted(names - catalogue().keys()):
            self.fail(f"{unknown!r} is no technique; `overdrive techniques` lists them", param, context)
        return names


class Size(click.ParamType):  # type: ignore[type-arg]
    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            size = bytes_in(str(value))
        except ObjectiveError as error:
            self.fail(str(error), param, context)
        if size < 4096:
            self.fail("a shard must hold 4 kB at least", param, context)
        return size


_METRIC = (
    "What to compare instead of the training loss, in runs of the whole program: a word before a number in its "
    "output (Accuracy), a regular expression with one group, or evaluate() for what a function returned."
)


@contextlib.contextmanager
def faults_as_sentences() -> Iterator[None]:
    """Whatever goes wrong in a long command ends in one sentence; what was established is in the ledger."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        yield
    except KeyboardInterrupt:
        fail("stopped. What was established is kept: the same command goes on from there.", 130)
    except OSError as error:
        fail(f"{error.filename or 'A file'} could not be used: {error.strerror}. Your script was not touched.", 1)
    except Exception as error:
        if os.environ.get("OVERDRIVE_DEBUG"):
            raise
        fail(
            f"stopped by a defect of its own ({type(error).__name__}: {error}); your script and files are untouched. "
            "OVERDRIVE_DEBUG=1 shows where.",
            70,
        )


def parse_program(words: tuple[str, ...]) -> Program:
    try:
        return Program.parse(words)
    except ProgramError as error:
        fail(str(error))


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="overdrive")
def cli() -> None:
    """Runs a deep-learning program, as its author wrote it, as fast as the machine allows."""


@program_command(cli)
@click.option("--plan", "plan_path", type=click.Path(path_type=Path), help="The plan to run under.")
@click.option("--no-plan", is_flag=True, help="Run under no plan, though one lies beside the script.")
@click.option("--record", type=click.Path(path_type=Path), help="Write steps, losses and a hash as JSON.")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]...")
def run(plan_path: Path | None, no_plan: bool, record: Path | None, words: tuple[str, ...]) -> None:
    """Run the whole program under a plan: by default the one beside it, if there is one.

    Same output, same files, same exit code as `python SCRIPT`, and one line more on standard error.
    """
    if plan_path and no_plan:
        fail("Give either --plan or --no-plan.")
    program = parse_program(words)
    if plan_path is None and not no_plan and program.plan_path().exists():
        plan_path = program.plan_path()
    from overdrive import running
    from overdrive.plan import PlanError

    techniques = []
    if plan_path is not None:
        try:
            plan = running.read_plan(plan_path, program)
        except PlanError as error:
            fail(str(error))
        except OSError as error:
            fail(f"The plan {plan_path} cannot be read: {error.strerror}.")
        techniques = [(each.name, each.settings) for each in plan.techniques]
        running.prepare_environment(techniques)
    sys.exit(running.run(program, techniques, plan_path.name if plan_path else None, record))


@program_command(cli)
@click.option(
    "--contract",
    type=click.Choice([str(level) for level in Contract if level is not Contract.OPEN]),
    default="rounding",
    show_default=True,
    help="How much may change: exact = every bit the same; rounding = other orders of summation; "
    "statistical = the same result within the noise of the seed.",
)
@click.option("--budget", type=Duration(), default="10m", show_default=True, help="Time to spend at most.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Where to write the plan.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the result as JSON.")
@click.option("--metric", type=MetricName(), help=_METRIC)
@click.option(
    "--objective",
    type=ObjectiveName(),
    default="time",
    show_default=True,
    help="What to save: time, memory, or time with no more memory at the peak than SIZE (time-under-memory=8GB).",
)
@click.option(
    "--techniques",
    "only",
    type=Names(),
    default="",
    metavar="NAME,...",
    help="Try these alone. One whose contract is open (it changes the training itself) is tried only when named here.",
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]...")
def tune(
    contract: str,
    budget: float,
    output: Path | None,
    json_path: Path | None,
    metric: Metric | None,
    objective: Objective,
    only: frozenset[str],
    words: tuple[str, ...],
) -> None:
    """Find the fastest plan that keeps the contract, by duels against the program as it is.

    Writes the plan and a report beside the script. The script and its files are never touched.
    """
    program = parse_program(words)
    from overdrive import tune_command

    with faults_as_sentences():
        try:
            code = tune_command.tune(
                program, Contract(contract), budget, output or program.plan_path(), json_path, metric, objective, only
            )
        except tune_command.CannotTune as error:
            fail(str(error))
    sys.exit(code)


@program_command(cli)
@click.option("--full", is_flag=True, help="Runs of the whole program, not of its first steps.")
@click.option("--metric", type=MetricName(), help=_METRIC)
@click.option("--margin", type=float, help="The difference of the metric that you would accept, in its own unit.")
@click.option("--budget", type=Duration(), default="1h", show_default=True, help="Time to spend at most.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write what was compared as JSON.")
@click.argument("plan_path", type=click.Path(path_type=Path), metavar="PLAN")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]...")
def verify(
    full: bool,
    metric: Metric | None,
    margin: float | None,
    budget: float,
    json_path: Path | None,
    plan_path: Path,
    words: tuple[str, ...],
) -> None:
    """Prove again that the program under PLAN is the same program, at the plan's level.

    Runs that were finished are kept: the same command goes on where it was stopped. The exit code is 0
    where the level was seen to hold, 1 where it was not.
    """
    program = parse_program(words)
    if margin is not None and not 0 < margin < float("inf"):
        fail("The margin must be above 0.")
    from overdrive import verify_command
    from overdrive.plan import PlanError

    with faults_as_sentences():
        try:
            code = verify_command.verify(plan_path, program, full, metric, margin, budget, json_path)
        except PlanError as error:
            fail(str(error))
        except verify_command.CannotVerify as error:
            fail(str(error), 1)
    sys.exit(code)


@program_command(cli)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The folder for the shards and the plan.")
@click.option("--shard-size", type=Size(), default="64MB", show_default=True, help="Of one shard, at most.")
@click.option(
    "--samples",
    type=click.Choice(["encoded", "decoded"]),
    default="encoded",
    show_default=True,
    help="The files as they are, or the finished samples.",
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]...")
def pack(output: Path | None, shard_size: int, samples: str, words: tuple[str, ...]) -> None:
    """Write the small files that the program's data sets read into a few large shards, with a plan.

    For parallel and network file systems, where opening a file is what takes the time. The shards are plain
    tar archives, by default in SCRIPT.packed beside the script; a pack that was broken off goes on where it
    was. The files themselves stay as they are, and must stay: the program looks for them where they are.

    With --samples decoded, what the data sets make of them is written instead, where that is always the same:
    the table of technique sample_cache, for runs that are to start with all samples decoded.
    """
    program = parse_program(words)
    from overdrive import pack_command, pack_samples

    with faults_as_sentences():
        try:
            folder = output or pack_command.default_folder(program)
            if samples == "decoded":
                code = pack_samples.write_samples(program, folder)
            else:
                code = pack_command.write_pack(program, folder, shard_size)
        except pack_command.CannotPack as error:
            fail(str(error), 1)
    sys.exit(code)


@program_command(cli)
@click.option("--quick", is_flag=True, help="Measure more coarsely, in some 15 seconds.")
@click.option("--json", "as_json", is_flag=True, help="Print all that was found as one JSON object.")
@click.option("--for", "wanted", is_flag=True, help="What hardware SCRIPT would like: memory by part, steps on GPUs.")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[SCRIPT [ARGS]...]")
def doctor(quick: bool, as_json: bool, wanted: bool, words: tuple[str, ...]) -> None:
    """What this machine is and can do, measured, and what is set up wrong on it.

    Nothing is changed: each finding says what it costs and which command mends it. The exit code is 1 where
    something is wrong, and 0 where nothing is, whatever could be better.

    With --for, it runs the first steps of SCRIPT in trials instead, and says what memory they need by part, and
    how long a step would take on GPUs that are not here.
    """
    if wanted:
        program = parse_program(words)
        from overdrive import requirements_command
        from overdrive.requirements.counting import CannotCount

        with faults_as_sentences():
            try:
                code = requirements_command.wanted(program, quick, as_json)
            except CannotCount as error:
                fail(str(error), 1)
        sys.exit(code)
    if words:
        fail(f"doctor looks at the machine, not at {words[0]}: put --for before it to ask what it would like.")
    from overdrive import doctor_command

    with faults_as_sentences():
        code = doctor_command.doctor(quick, as_json)
    sys.exit(code)


@program_command(cli)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The HTML page. [default: SCRIPT.profile.html]")
@click.option("--trace", type=click.Path(path_type=Path), help="Write some steps as a trace for Perfetto.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the profile as JSON.")
@click.option("--advise", is_flag=True, help="Say as well what an edit of your code could mend, with file and line.")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]...")
def profile(
    output: Path | None, trace: Path | None, json_path: Path | None, advise: bool, words: tuple[str, ...]
) -> None:
    """Where the time of a training step goes, and how far each part is from what this machine can do.

    The script runs as it is, in copies that leave no trace; it and its files are never touched.
    """
    program = parse_program(words)
    from overdrive import profile_command

    with faults_as_sentences():
        try:
            place = output or profile_command.default_output(program)
            code = profile_command.profile(program, place, trace, json_path, advise)
        except profile_command.CannotProfile as error:
            fail(str(error), 1)
    sys.exit(code)


@cli.command()
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write it as one HTML file.")
@click.argument("plan_path", type=click.Path(path_type=Path), metavar="PLAN")
def report(plan_path: Path, output: Path | None) -> None:
    """The evidence behind a plan, in the terminal or as one HTML file."""
    from overdrive import report_command

    try:
        report_command.report(plan_path, output)
    except report_command.CannotReport as error:
        fail(str(error))


@cli.command()
@click.argument("name", required=False)
def techniques(name: str | None) -> None:
    """The catalogue, or one technique's card."""
    from overdrive.techniques.catalogue import catalogue

    known = catalogue()
    if name is None:
        width = max(map(len, known))
        for technique in known.values():
            click.echo(f"{technique.name:{width}}  {technique.contract!s:<11}  {technique.summary()}")
        return
    if name not in known:
        fail(f"There is no technique {name}; `overdrive techniques` lists them.")
    technique = known[name]
    click.echo(f"{technique.name}  (family {technique.family}, contract {technique.contract})\n")
    click.echo(technique.card())
    if technique.knobs:
        click.echo("\nKnobs:")
        for knob in technique.knobs:
            choices = f", one of {', '.join(map(str, knob.choices))}" if knob.choices else ""
            click.echo(f"  {knob.name} = {knob.default}{choices}: {knob.meaning}")


def main() -> None:
    cli(prog_name="overdrive")
