"""Optuna's part: which configuration next, which run to end early, and a journal from which a search goes on.

Proposals by TPE (Bergstra et al., 2011; multivariate), early ends by successive halving (Li et al., ASHA, 2018), by
Hyperband where there is time for its brackets. Optuna is an extra: nothing else in the house imports it.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from overdrive.core.installing import pip_install_extra
from overdrive.core.json_data import from_json, to_json
from overdrive.core.search_result import Tried
from overdrive.core.settings import Value
from overdrive.search.domain import Domain
from overdrive.search.runs import UNITS

_WARM_UP = UNITS // 9  # units before the first run is ended early: 11 % of the default's samples
_THIRDS = 3
_HYPERBAND_FROM = 60  # runs: below, each of its brackets would have too few to learn from
_RANDOM = (4, 10)  # first proposals that are drawn at random, at least and at most
_FEWEST_FOR_IMPORTANCE = 8


class NoOptuna(Exception):
    """It is not installed; the message is one sentence for people."""


class Busy(Exception):
    """Another process is at this search; the message is one sentence for people."""


class Damaged(Exception):
    """The journal is not what was written; the message is one sentence for people."""


class Engine:
    """One search, in its journal."""

    def __init__(self, path: Path, domains: Mapping[str, Domain], seed: int) -> None:
        """
        Raises:
            NoOptuna, Busy, Damaged.
            OSError: the journal cannot be written; so do all methods that write.
        """
        self._path, self._seed = path, seed
        self._optuna = optuna = _import()
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = _locked(path.with_name(f"{path.name}.in-use"))  # Optuna has a .lock of its own
        self._distributions = {name: _distribution(optuna, domain) for name, domain in domains.items()}
        self._asked: dict[int, Any] = {}
        try:
            with self._writing():
                self._study = _opened(optuna, path)
                self.seconds_remembered()  # all runs are read
                self._give_back_unfinished()
            self.expect(_HYPERBAND_FROM // 2)
        except BaseException as error:
            self.close()
            if not isinstance(error, Exception) or isinstance(error, OSError):
                raise
            raise Damaged(f"The journal of this search is damaged: delete {path} to begin it anew.") from error

    def expect(self, runs: int) -> None:
        """Plan for so many runs of the search."""
        optuna = self._optuna
        self._study.pruner = _pruner(optuna, runs)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of parts that Optuna calls experimental
            # A search that goes on draws other numbers than it drew before.
            self._study.sampler = optuna.samplers.TPESampler(
                seed=(self._seed + len(self._study.trials)) % 2**31,
                multivariate=True,
                n_startup_trials=max(_RANDOM[0], min(_RANDOM[1], runs // 3)),
            )

    def close(self) -> None:
        os.close(self._lock)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Faults of the journal name it."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                yield
            except OSError as error:
                raise OSError(error.errno, error.strerror, str(self._path)) from error

    # -- configurations -------------------------------------------------------------------------

    def ask(self) -> tuple[int, dict[str, Value]]:
        """A number and a configuration."""
        with self._writing():
            trial = self._study.ask(self._distributions)
        self._asked[trial.number] = trial
        return trial.number, {name: _rounded(trial.params[name]) for name in self._distributions}

    def ends_early(self, number: int, unit: int, score: float) -> bool:
        """Tell how far a run has come; whether it is to end here."""
        trial = self._asked[number]
        with self._writing():
            trial.report(score, unit)
        return unit >= _WARM_UP and bool(trial.should_prune())

    def tell(self, run: Tried, score: float | None) -> None:
        """A run is over; `score` is None where it failed or was ended early."""
        trial = self._asked.pop(run.number)
        with self._writing():
            trial.set_user_attr("score", score)
            trial.set_user_attr("run", json.dumps(to_json(run)))
            self._finish(run.number, run.state, score)

    def enqueue(self, values: Mapping[str, Value]) -> None:
        """Have this configuration asked next."""
        with self._writing():
            self._study.enqueue_trial(dict(values), skip_if_exists=True)

    def runs(self) -> list[Tried]:
        """All that are over."""
        found = []
        for trial in self._study.get_trials(deepcopy=False):
            if text := trial.user_attrs.get("run"):
                found.append(from_json(Tried, json.loads(text)))
        return found

    def importances(self) -> dict[str, float]:
        """The share of each parameter in how much the runs' scores differ (PED-ANOVA); empty for few runs."""
        complete = [
            trial
            for trial in self._study.get_trials(deepcopy=False)
            if trial.state.name == "COMPLETE" and math.isfinite(trial.value)
        ]
        if len(complete) < _FEWEST_FOR_IMPORTANCE or len({trial.value for trial in complete}) < 2:
            return {}
        from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                found = get_param_importances(self._study, evaluator=PedAnovaImportanceEvaluator())
            except (ValueError, RuntimeError):  # every configuration alike, say
                return {}
        return {name: float(share) for name, share in found.items() if math.isfinite(share)}

    # -- other runs -----------------------------------------------------------------------------

    def recall(self, name: str) -> Tried | None:
        """A run outside of the search: of the defaults, of the comparison."""
        text = self._study.user_attrs.get(name)
        return from_json(Tried, json.loads(text)) if text else None

    def remember(self, name: str, run: Tried) -> None:
        with self._writing():
            self._study.set_user_attr(name, json.dumps(to_json(run)))

    def seconds_remembered(self) -> float:
        """Of all runs so far, the search's own included."""
        others = [from_json(Tried, json.loads(text)) for text in self._study.user_attrs.values()]
        return sum(run.seconds for run in (*others, *self.runs()))

    def _finish(self, number: int, state: str, score: float | None) -> None:
        states = self._optuna.trial.TrialState
        if state == "pruned":
            self._study.tell(number, state=states.PRUNED)
        elif score is None:
            self._study.tell(number, state=states.FAIL)
        else:
            self._study.tell(number, score)

    def _give_back_unfinished(self) -> None:
        """Runs under way when the search was killed are asked again, but those that were just over."""
        states = self._optuna.trial.TrialState
        for trial in self._study.get_trials(states=(states.RUNNING,)):
            if text := trial.user_attrs.get("run"):
                run = from_json(Tried, json.loads(text))
                self._finish(trial.number, run.state, trial.user_attrs.get("score"))
                continue
            self._study.tell(trial.number, state=states.FAIL)
            if trial.params:
                self._study.enqueue_trial(trial.params, skip_if_exists=False)


def _opened(optuna: Any, path: Path) -> Any:
    """The study in this journal, whose last line may be half written: what Optuna adds would stand behind it."""
    from optuna.storages.journal import JournalFileBackend

    if path.exists():
        with open(path, "r+b") as file:
            file.truncate(file.read().rfind(b"\n") + 1)
    known = optuna.storages.JournalStorage(JournalFileBackend(str(path)))
    return optuna.create_study(storage=known, study_name="search", load_if_exists=True, direction="minimize")


def check_optuna() -> None:
    """
    Raises:
        NoOptuna: it is not installed.
    """
    _import()


def _import() -> Any:
    try:
        import optuna
    except ImportError:
        raise NoOptuna(
            f"`overdrive search` needs Optuna, which is not installed: `{pip_install_extra('search')}` brings it."
        ) from None
    return optuna


def _pruner(optuna: Any, expected: int) -> Any:
    if expected >= _HYPERBAND_FROM:
        return optuna.pruners.HyperbandPruner(_WARM_UP, UNITS, _THIRDS)
    return optuna.pruners.SuccessiveHalvingPruner(min_resource=_WARM_UP, reduction_factor=_THIRDS)


def _distribution(optuna: Any, domain: Domain) -> Any:
    if domain.choices:
        return optuna.distributions.CategoricalDistribution(domain.choices)
    if domain.integer:
        return optuna.distributions.IntDistribution(int(domain.low), int(domain.high), log=domain.log)
    return optuna.distributions.FloatDistribution(domain.low, domain.high, log=domain.log)


def _rounded(value: Value) -> Value:
    """What is run is what is told: a rate of 0.01234567 is typed as 0.01235."""
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _locked(path: Path) -> int:
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise Busy("Another process is at this very search: wait for it, or end it.") from None
    return handle
