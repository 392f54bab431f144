"""How every command reads its line, and how it answers when something is wrong: one sentence, and an exit code."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import stat
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import click
from click.shell_completion import CompletionItem

from overdrive.cli.misplaced import Misplaced, misplaced, options_of, takes_a_word, tell
from overdrive.core.program import Program, ProgramError

if TYPE_CHECKING:
    from overdrive.core.ledger import Ledger

_MISPLACED = "overdrive.misplaced"
_TYPED = "overdrive.typed"
_GOES_ON = "stopped. What was established is kept: the same command goes on from there."
_STOPPED = "stopped, and nothing was written: the same command begins anew."
_NOT_KEPT = "stopped. Not all that was established is kept: "
_LOST = "lost"  # of what has stopped a command: why not all is kept
_SAME = 10.0  # seconds within which another Ctrl-C is the same wish


def fail(sentence: str, code: int = 2) -> NoReturn:
    print(f"overdrive: {sentence}", file=sys.stderr)
    sys.exit(code)


def repeat(output: str) -> None:
    """What a program said that failed in a trial, for people."""
    if output.strip():
        print(output.rstrip(), file=sys.stderr)


class ProgramCommand(click.Command):
    """A command whose own words stand before the program; all that follows belongs to the program.

    `takes_plan`: a plan may be named before the program.
    """

    takes_plan = False

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        options = options_of(self)
        valued = {name for name, option in options.items() if takes_a_word(option)}
        before: list[str] = []
        plan: list[str] = []
        rest = list(args)
        while rest and rest[0] not in ("-m", "--"):
            if rest[0].startswith("-") and f"-{rest[0].partition('=')[0]}" in options:  # -budget
                raise click.UsageError(f"There is no option {rest[0]}. Did you mean -{rest[0]}?", context)
            if rest[0].startswith("-") and rest[0] != "-":
                size = 2 if rest[0] in valued else 1
                if size == 2 and is_script("".join(rest[1:2])) and _is_unknown(rest[2:3], options):
                    raise click.UsageError(f"{rest[0]} takes a value, and {rest[1]} stands in its place.", context)
                before += rest[:size]
                del rest[:size]
            elif self.takes_plan and not plan and not is_script(rest[0]):
                plan.append(rest.pop(0))
            else:
                break
        if rest and rest[0] == "--":
            del rest[0]
        elif not context.resilient_parsing:  # which completion in a shell is
            context.meta[_MISPLACED] = misplaced(context.info_name or "", self, [*before, *plan], rest)
        context.meta[_TYPED] = before
        left = super().parse_args(context, [*before, *(["--"] if plan or rest else []), *plan, *rest])
        tell(context.meta.get(_MISPLACED))  # of a line that is understood: else a value of no option is the script
        return left


def typed(context: click.Context, names: Collection[str]) -> tuple[str, ...]:
    """Those words of the line that give the options of these parameters, as they are typed again."""
    options = options_of(context.command)
    words: Sequence[str] = context.meta.get(_TYPED, ())
    kept: list[str] = []
    at = 0
    while at < len(words):
        option = options.get(words[at].partition("=")[0])
        size = 2 if option and "=" not in words[at] and takes_a_word(option) else 1
        if option and option.name in names:
            kept += words[at : at + size]
        at += size
    return tuple(kept)


def _is_unknown(word: Sequence[str], options: Mapping[str, Any]) -> bool:
    """Whether it is an option that this command has not: one of the script's, then."""
    return any(each.startswith("-") and each.partition("=")[0] not in options for each in word)


class _PlanAndProgramCommand(ProgramCommand):
    takes_plan = True


def is_script(word: str) -> bool:
    """Where a plan may stand too, a program is told by its ending."""
    return word.endswith(".py")


def program_command(function: Callable[..., Any]) -> click.Command:
    return _made(function, ProgramCommand)


def plan_and_program_command(function: Callable[..., Any]) -> click.Command:
    """The plan, where there is one, is the first of its words: see `parse_plan_and_program`."""
    return _made(function, _PlanAndProgramCommand)


def program_argument(metavar: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The program and all that follows it, as `words`; a shell completes files there."""

    def files(context: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
        return [CompletionItem(begun, type="file")]

    return click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar=metavar, shell_complete=files)


def _made(function: Callable[..., Any], kind: type[click.Command]) -> click.Command:
    settings = {"allow_interspersed_args": False, "max_content_width": 100}
    made: Callable[[Callable[..., Any]], click.Command] = click.command(cls=kind, context_settings=settings)
    return made(function)


class _Terminated(SystemExit):
    """SIGTERM came."""


def _terminate(number: int, frame: Any) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one must not break off the cleaning up
    raise _Terminated(143)


class _Interrupt:
    """Answers Ctrl-C once: people press it again, and a notebook may send it twice. That must break off no cleaning up,
    nor what is written of what was established."""

    def __init__(self) -> None:
        self._last = -_SAME

    @property
    def answered(self) -> bool:
        return self._last >= 0

    def __call__(self, number: int, frame: Any) -> None:
        now = time.monotonic()
        if now - self._last >= _SAME:
            self._last = now
            raise KeyboardInterrupt


@contextlib.contextmanager
def _interrupted_once() -> Iterator[None]:
    """Meanwhile; not where it is ignored, as of a command in the background."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    answer = _Interrupt()
    signal.signal(signal.SIGINT, answer)
    try:
        yield
    finally:  # once it was answered the command ends, which another one is not to break off either
        signal.signal(signal.SIGINT, signal.SIG_IGN if answer.answered else signal.default_int_handler)


def _fault(error: OSError) -> str:
    if isinstance(error, shutil.Error) and error.args and isinstance(error.args[0], list):  # of a tree: all of them
        source, _, why = error.args[0][0]
        return f"{source} could not be copied: {why}."
    return f"{error.filename or 'A file'} could not be used: {error.strerror or error}."


_Errors: TypeAlias = "type[Exception] | tuple[type[Exception], ...]"


@contextlib.contextmanager
def faults_as_sentences(goes_on: bool = True, wrong: _Errors = (), failed: _Errors = ()) -> Iterator[None]:
    """Whatever goes wrong in a long command ends in one sentence.

    Args:
        goes_on: what was established is kept, in the ledger say, for the same command.
        wrong: what says by its message that the line asks for something that there is not.
        failed: what says how the program fails: it ends with 1, and with what to type where that is known.
    """
    stopped = _GOES_ON if goes_on else _STOPPED
    signal.signal(signal.SIGTERM, _terminate)
    try:
        with _interrupted_once():
            yield
    except (KeyboardInterrupt, _Terminated) as stop:
        lost, code = str(vars(stop).get(_LOST, "")), 143 if isinstance(stop, _Terminated) else 130
        fail(f"{_NOT_KEPT}{lost[:1].lower()}{lost[1:]}" if lost else stopped, code)
    except wrong as error:
        fail(str(error))
    except failed as error:
        fail(why_it_fails(str(error)), 1)
    except OSError as error:
        fail(f"{_fault(error)} Your script was not touched.", 1)
    except Exception as error:
        if os.environ.get("OVERDRIVE_DEBUG"):
            raise
        fail(
            f"stopped by a defect of its own ({type(error).__name__}: {error}); your script and files are untouched. "
            "OVERDRIVE_DEBUG=1 shows where.",
            70,
        )


@contextlib.contextmanager
def kept_in(ledger: Ledger) -> Iterator[None]:
    """Meanwhile what is established goes there: who stops the command is told where it could not be kept."""
    try:
        yield
    except (KeyboardInterrupt, _Terminated) as stop:
        if not ledger.keeps:
            vars(stop)[_LOST] = ledger.notice
        raise


def parse_program(words: Sequence[str]) -> Program:
    from overdrive.cli.no_script import no_script

    context = click.get_current_context(silent=True)
    if told := no_script(context.info_name or "" if context else "", words):
        fail(told)
    try:
        return Program.parse(words)
    except ProgramError as error:
        fail(str(error))


def parse_trial_program(words: Sequence[str], stdin: str | None) -> Program:
    """One that is run in trials. `stdin`: the file that these have as standard input; None: an empty one."""
    program = parse_program(words)
    if stdin is not None:
        return replace(program, stdin=os.path.abspath(stdin))
    if _is_given_a_file():
        note = "trials do not read this command's standard input: --stdin FILE gives each of them a file"
        print(f"overdrive: {note}", file=sys.stderr)
    return program


def _is_given_a_file() -> bool:
    """Whether standard input is a file with something in it, by `< FILE`."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        found = os.fstat(sys.stdin.fileno())
        return stat.S_ISREG(found.st_mode) and found.st_size > 0
    return False


def parse_plan_and_program(words: Sequence[str], stdin: str | None) -> tuple[Path, Program]:
    """`[PLAN] SCRIPT [ARGS]...`: without a plan, the one that lies beside the script."""
    plan, words = split_plan(words)
    program = parse_trial_program(words, stdin)
    return plan or plan_beside(program), program


def split_plan(words: Sequence[str]) -> tuple[Path | None, Sequence[str]]:
    """`[PLAN] SCRIPT [ARGS]...`: the plan, if one is named, and the rest."""
    if not words or words[0] == "-m" or is_script(words[0]):
        return None, words
    if len(words) == 1:
        fail(f"No program named: write {words[0]} and then a SCRIPT, or a SCRIPT alone for the plan beside it.")
    return Path(words[0]), words[1:]


def plan_beside(program: Program) -> Path:
    path = program.plan_path()
    if not path.exists():
        fail(f"There is no plan {path}: `overdrive tune {program.command()}` makes one.")
    return path


def why_it_fails(sentence: str) -> str:
    """What a program's failure was, with what to type where that is known."""
    from overdrive.cli.causes import cause

    context = click.get_current_context(silent=True)
    found: Misplaced | None = context.meta.get(_MISPLACED) if context else None
    stdin = context.params.get("stdin") if context else None
    return " ".join(filter(None, (sentence, cause(sentence, found, stdin))))
