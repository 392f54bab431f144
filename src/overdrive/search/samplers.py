"""Who proposes the next configuration, by name: Optuna's samplers.

Gaussian processes take PyTorch, which the parent of trials never imports: they propose in a process of their own
(`proposing`), which is started at the first proposal and kept.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, Protocol, runtime_checkable

from overdrive.core.installing import pip_install
from overdrive.search.domain import Domain

TPE, CMA_ES, GP, RANDOM = "tpe", "cma-es", "gp", "random"
SAMPLERS = (TPE, CMA_ES, GP, RANDOM)
_NEEDS = {CMA_ES: ("cmaes",), GP: ("torch", "scipy")}
_NAMES = {CMA_ES: "CMA-ES", GP: "Gaussian processes"}
_FEWEST_RANGES = 2  # of CMA-ES: with one, Optuna's draws it at random


@runtime_checkable
class Closes(Protocol):
    """A sampler with a process of its own."""

    def close(self) -> None: ...


class NoSampler(Exception):
    """It cannot propose here; the message is one sentence for people."""


def check_installed(name: str) -> None:
    """
    Raises:
        NoSampler: what it needs is not there.
    """
    if lacking := [each for each in _NEEDS.get(name, ()) if find_spec(each) is None]:
        raise NoSampler(
            f"--sampler {name} needs {' and '.join(lacking)}, not installed: `{pip_install(*lacking)}` brings it."
        )


def check_suits(name: str, domains: Mapping[str, Domain], costs: bool) -> None:
    """
    Raises:
        NoSampler: it cannot search these domains, or not for two things at once.
    """
    if name != CMA_ES:
        return
    if costs:
        raise NoSampler("--sampler cma-es looks for one thing, and --against asks for two: take tpe or gp.")
    choices = [each for each, domain in domains.items() if domain.choices]
    if len(domains) - len(choices) < _FEWEST_RANGES:
        hint = f", as with --vary {choices[0]}=LOW..HIGH" if choices else ""
        raise NoSampler(f"--sampler cma-es needs two ranges of numbers or more{hint}: take tpe or gp for others.")


def make(optuna: Any, name: str, seed: int, startup: int, space: Mapping[str, Any]) -> Any:
    """A sampler of Optuna's.

    Args:
        startup: proposals that are drawn at random first.
        space: Optuna's distributions.
    """
    samplers = optuna.samplers
    if name == RANDOM:
        return samplers.RandomSampler(seed=seed)
    if name == GP:
        return _elsewhere(samplers.BaseSampler, samplers.RandomSampler(seed=seed), seed, startup, space)
    tpe = samplers.TPESampler(seed=seed, multivariate=True, n_startup_trials=startup)
    if name == TPE:
        return tpe
    # What has choices is TPE's: CMA-ES knows numbers alone.
    return samplers.CmaEsSampler(
        seed=seed, n_startup_trials=startup, independent_sampler=tpe, warn_independent_sampling=False
    )


class Proposer:
    """The process that proposes by Gaussian processes."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """Values by parameter.

        Raises:
            NoSampler: it made no proposal.
        """
        if self._process is None:
            words = [sys.executable, "-m", "overdrive.search.proposing"]
            self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdin and self._process.stdout
        try:
            print(json.dumps(question), file=self._process.stdin, flush=True)
            answer = json.loads(self._process.stdout.readline())
        except (OSError, ValueError):
            answer = {"error": "their process ended"}
        if "error" in answer:
            raise NoSampler(
                f"{_NAMES[GP]} made no proposal ({answer['error']}): `--sampler tpe` goes on with the same runs."
            )
        return dict(answer["values"])

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def _elsewhere(base: type[Any], at_random: Any, seed: int, startup: int, space: Mapping[str, Any]) -> Any:
    """A sampler whose proposals another process makes, after so many complete runs."""
    from optuna.distributions import distribution_to_json

    written = {name: distribution_to_json(each) for name, each in space.items()}

    class Elsewhere(base):  # type: ignore[misc]
        def __init__(self) -> None:
            self._proposer = Proposer()

        def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, Any]:
            return dict(space)

        def sample_relative(self, study: Any, trial: Any, space: Mapping[str, Any]) -> dict[str, Any]:
            whole, at_it = _known(study, trial.number, space)
            if len(whole) < max(startup, 2) or "fixed_params" in trial.system_attrs:
                return {}
            told = {"whole": whole, "at_it": at_it, "directions": len(study.directions)}
            return self._proposer.ask({"distributions": written, **told, "seed": seed + trial.number})

        def sample_independent(self, study: Any, trial: Any, name: str, distribution: Any) -> Any:
            return at_random.sample_independent(study, trial, name, distribution)

        def close(self) -> None:
            self._proposer.close()

    return Elsewhere()


def _known(study: Any, own: int, space: Mapping[str, Any]) -> tuple[list[Any], list[Any]]:
    """Values and scores of complete runs, and values of those that others are at."""
    whole, at_it = [], []
    for each in study.get_trials(deepcopy=False):
        if each.number == own or not set(space) <= set(each.params):
            continue
        values = {name: each.params[name] for name in space}
        if each.state.name == "COMPLETE":
            whole.append((values, list(each.values)))
        elif each.state.name == "RUNNING":
            at_it.append(values)
    return whole, at_it
