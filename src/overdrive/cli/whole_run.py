"""A program's whole run in this process, and what is said of it at its end."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from overdrive.cli.json_output import write_json
from overdrive.cli.reading_samples import ReadingSamples
from overdrive.cli.watching import Watching, WatchWish
from overdrive.core import progress as samples
from overdrive.core.call_sizes import call_sizes
from overdrive.core.call_sizes import told as sizes_told
from overdrive.core.contract import Contract
from overdrive.core.json_data import to_json
from overdrive.core.program import Program, ProgramError
from overdrive.core.settings import Chosen
from overdrive.core.streams import flush_files
from overdrive.core.units import count, duration, listed, several, unit_of
from overdrive.ranks.horovod.imports import HorovodImports
from overdrive.ranks.trackers import STORE, mlflow_kept_here
from overdrive.seams import frameworks, keras_2
from overdrive.seams.arrival import Arrival
from overdrive.techniques.catalogue import catalogue
from overdrive.worker.call_times import CallTimes
from overdrive.worker.clock import clock_for
from overdrive.worker.launch import end_as_python_would, execute
from overdrive.worker.recording import Recorder
from overdrive.worker.saying import announce, say, speak_on
from overdrive.worker.session import Session

if TYPE_CHECKING:
    from overdrive.core.run_record import RunRecord
    from overdrive.datacache.audit import Audits
    from overdrive.ranks.rank import Rank
    from overdrive.seams.hub import Seams
    from overdrive.survive.survivor import Survivor
    from overdrive.worker.sentinels.sentinels import Sentinels


def run(
    program: Program,
    techniques: list[Chosen],
    plan_name: str | None,
    record: Path | None,
    levels: Mapping[str, Contract] | None = None,
    inference: bool = False,
    rank: Rank | None = None,
    engine: str | None = None,
    survivor: Survivor | None = None,
    wish: WatchWish | None = None,
) -> int:
    """Run it, and return the exit code that Python would have given.

    Args:
        levels: what each technique is to keep.
        inference: the plan is of a program that trains nothing: its steps are the calls of its model.
        engine: "overdrive" to answer `import horovod.torch` ourselves, whatever is installed.
    """
    speak_on(sys.stderr)
    HorovodImports().provide(engine == "overdrive")
    _tell_no_server(os.environ.get(STORE))
    recorder = Recorder(losses=record is not None, clock=clock_for(inference))
    process = os.getpid()
    # What is made again is compared by real numbers: beside other ranks, and while a run that survives is made again up
    # to a snapshot, there are none.
    made_again_here = bool(techniques) and rank is None and survivor is None
    audits = _audits(recorder) if made_again_here else None
    to_come = _SentinelsToCome(recorder, levels or {}) if made_again_here and not inference else None
    watching = Watching(wish or WatchWish(), program, lambda: recorder.clock.steps, say, rank, survivor)
    calls = CallTimes() if inference else None  # before all that does something at a call's end
    seen = (rank and rank.observe, calls, survivor, recorder, audits, to_come)
    observers = [*(each for each in seen if each), *watching.observers]
    session = Session(techniques, observers, announce, inference)
    if to_come:
        to_come.session = session
    samples.on_progress = ReadingSamples()
    failure: BaseException | None = None
    try:
        with session:
            execute(program)
    except ProgramError as error:
        say(str(error))
        return 2
    except BaseException as error:
        failure = error
    if to_come and to_come.there and to_come.there.in_copy:
        os._exit(0)  # a step that was made again, and went astray
    if os.getpid() == process:  # else a fork of the program that came back up here
        _let_go(techniques, survivor, failure)
        if record is not None:
            _write_record(record, program, recorder, session, calls, failure)
        broke = failure is not None and not isinstance(failure, SystemExit)  # its traceback stands last, and alone
        if not broke and not _refused(failure, recorder):
            _sum_up(recorder, session, plan_name, calls)
        _say_what_was_made_again(audits, to_come.there if to_come else None, broke)
        if failure and broke:
            _before_its_traceback(failure, session, rank)
    code = watching.code(end_as_python_would(failure) if failure else 0)
    return code if os.getpid() != process else _agreed(code, failure, rank, survivor)


def _tell_no_server(store: str | None) -> None:
    if store:
        Arrival("mlflow", lambda: mlflow_kept_here(store)).watch()


def _let_go(techniques: list[Chosen], survivor: Survivor | None, failure: BaseException | None) -> None:
    """The program has ended."""
    if techniques or survivor:  # which put what is theirs in places that outlive the program
        flush_files()
    if survivor:
        survivor.over(failure)


def _agreed(code: int, failure: BaseException | None, rank: Rank | None, survivor: Survivor | None) -> int:
    """The exit code, when all is written; of all ranks together."""
    code = rank.over(failure, code) if rank else code
    if survivor and not code:
        survivor.done()
    return code


def _sum_up(recorder: Recorder, session: Session, plan_name: str | None, calls: CallTimes | None) -> None:
    for told in (summary(recorder, session, plan_name, calls), sizes_told(recorder.call_sizes()), *answered(session)):
        if told:
            say(told)


def _refused(failure: BaseException | None, recorder: Recorder) -> bool:
    """Whether the program would not begin, for its line, say: what it said of that stands alone."""
    return recorder.clock.steps == 0 and isinstance(failure, SystemExit) and failure.code not in (None, 0)


def _before_its_traceback(failure: BaseException, session: Session, rank: Rank | None) -> None:
    """Nothing is said, but what may not be the program's own fault."""
    if not isinstance(failure, Exception):  # Ctrl-C: Python ends this process from here on
        return rank.over_alone() if rank else None
    risks = [name for name in session.active if catalogue()[name].contract is Contract.OPEN]
    if risks:
        say(f"the program failed under {listed(risks)}; `overdrive run --no-plan` runs it as it is")
    if isinstance(failure, ModuleNotFoundError) and failure.name:
        from overdrive.cli.causes import in_another_environment

        if told := in_another_environment(failure.name.partition(".")[0]):
            say(told)


def summary(recorder: Recorder, session: Session, plan_name: str | None, calls: CallTimes | None = None) -> str:
    steps = recorder.clock.steps
    unit = unit_of(recorder.clock.inference)
    if not steps:
        what = "call of a model" if recorder.clock.inference else "training step"
        why = f": it trains with {keras_2.NOT_FOLLOWED}" if session.seams.keras_2_applied.reached else _elsewhere()
        if not why and plan_name is None and recorder.framework:
            why = _ANSWERS_PERHAPS
        return f"no {what} was seen in this program{why}"
    rate = recorder.samples_per_second()
    pace = recorder.seconds_per_step()
    speed = f", {count(rate)} samples/s" if rate else f", {_paced(pace, unit)}" if pace else ""
    under = "no plan" if plan_name is None else f"{plan_name} ({_applied(session)})"
    took = calls.sentence() if calls and not _on_device(recorder) else ""
    return f"{several(steps, unit)}{speed}{took and ', '}{took}, {under}"


# Nobody listens to calls of a model in a run without a plan (decision 115).
_ANSWERS_PERHAPS = "; if it only calls its model, `overdrive tune` measures these calls and finds a plan for them"


def _elsewhere() -> str:
    """Where the steps of a program may have been whose workers train, each for itself (A3C, Hogwild)."""
    spent = os.times()
    if spent.children_user + spent.children_system <= spent.user + spent.system:
        return ""
    return ": most of its work was done by processes that it started, whose steps are not counted"


def _applied(session: Session) -> str:
    acted = ", ".join(name for name in session.active if name not in session.idle)
    idle = f"nothing to do for {listed(tuple(session.idle))}" if session.idle else ""
    return "; ".join(each for each in (acted, idle) if each) or "nothing to apply"


def _paced(seconds: float, unit: str) -> str:
    return f"{duration(seconds)} a {unit}" if seconds > 1 else f"{count(1 / seconds)} {unit}s/s"


def _on_device(recorder: Recorder) -> bool:
    """Whether a GPU is in use: a call returns there before its answer is made."""
    return bool(recorder.framework) and frameworks.seams_of(recorder.framework).peak_memory() > 0


def answered(session: Session) -> list[str]:
    """What techniques say at the end: how often they answered in the model's place, or why ranks saved nothing."""
    tellers = [told for handle in session.handles.values() if (told := getattr(handle.notes, "told", None))]
    return [said for told in tellers if (said := told())]


def _audits(recorder: Recorder) -> Audits:
    from overdrive.datacache.audit import Audits  # 0.07 s, which a run without a plan has no use for

    return Audits(lambda: recorder.clock.steps)


def _say_what_was_made_again(audits: Audits | None, sentinels: Sentinels | None, broke: bool) -> None:
    """`broke`: the program ended with a traceback, before which only a difference is told."""
    if audits and (audits.different or (audits.same and not broke)):
        say(made_again(audits))
    if sentinels and (sentinels.different or (sentinels.same and not broke)):
        say(steps_made_again(sentinels))


def made_again(audits: Audits) -> str:
    samples = several(audits.same + audits.different, "sample")
    return f"{samples} made again, {f'{audits.different:,} not the same' if audits.different else 'all the same'}"


class _SentinelsToCome:
    """An observer: sentinels come with the framework.

    They need NumPy, which a program may want to be the first to import, having said how many threads it is to have.
    """

    session: Session

    def __init__(self, recorder: Recorder, levels: Mapping[str, Contract]) -> None:
        self._recorder, self._levels = recorder, levels
        self.there: Sentinels | None = None

    def __call__(self, seams: Seams) -> None:
        seams.framework_arrived.subscribe(lambda: self._arrives(seams))

    def _arrives(self, seams: Seams) -> None:
        if self.there is None:
            from overdrive.worker.sentinels.sentinels import Sentinels

            self.there = Sentinels(lambda: self._recorder.clock.steps, self._levels)
            self.there.session = self.session
            self.there(seams)


def steps_made_again(sentinels: Sentinels) -> str:
    steps = several(sentinels.same + sentinels.different, "step")
    loosest = max(sentinels.looked_at.values(), key=lambda level: level.rank)
    same = {Contract.EXACT: "all the same", Contract.ROUNDING: "all the same but for rounding"}
    found = same.get(loosest, "on average the same")
    if sentinels.different:
        found = f"{sentinels.different:,} not the same"
    return f"{steps} made again without {listed(tuple(sentinels.looked_at))}, {found}"


def _write_record(
    path: Path,
    program: Program,
    recorder: Recorder,
    session: Session,
    calls: CallTimes | None,
    failure: BaseException | None,
) -> None:
    """Whatever is wrong with it is said, and changes nothing of how the program ends."""
    from overdrive.worker.trackers import CannotSend, is_tracker, send

    try:
        record = _record_of(program, recorder, session, calls, failure)
        if is_tracker(str(path)):
            send(record, str(path))
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, to_json(record))
    except OSError as error:
        say(f"the record could not be written to {path}: {error.strerror}")
    except CannotSend as error:
        say(str(error))
    except Exception as error:  # losses cannot be read from a GPU on which the program has failed
        why = "".join(str(error).splitlines()[:1])
        say(f"the record could not be made ({type(error).__name__}{why and f': {why}'})")


def _record_of(
    program: Program,
    recorder: Recorder,
    session: Session,
    calls: CallTimes | None,
    failure: BaseException | None,
) -> RunRecord:
    from overdrive.core.run_record import RunRecord

    losses = [] if recorder.clock.inference else recorder.losses()
    half, most = calls.intervals() if calls and not _on_device(recorder) else (None, None)
    return RunRecord(
        program=program.command(),
        steps=recorder.clock.steps,
        samples=recorder.samples,
        samples_per_s=recorder.samples_per_second(),
        seconds_per_step=recorder.seconds_per_step(),
        half=half,
        most=most,
        call_sizes=call_sizes(recorder.call_sizes()),
        losses=tuple(tuple(loss.hex() for loss in step) for step in losses),
        loss_values=tuple(map(tuple, losses)),
        learning_rates=tuple(map(float, recorder.rates)),
        parameters=recorder.parameters_hash(),
        techniques=tuple(session.active),
        left_out=session.seams.left_out,
        error=type(failure).__name__ if failure and not isinstance(failure, SystemExit) else None,
    )
