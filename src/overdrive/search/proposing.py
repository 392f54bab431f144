"""The process in which Gaussian processes propose: it has PyTorch, and knows runs by their values and scores alone.

A question for each line of its input, an answer for each of its output.
"""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any


def proposed(question: dict[str, Any]) -> dict[str, Any]:
    """Values by parameter, of a question as `samplers.Proposer` asks it."""
    import optuna
    from optuna.distributions import json_to_distribution
    from optuna.trial import TrialState, create_trial

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    space = {name: json_to_distribution(text) for name, text in question["distributions"].items()}
    sampler = optuna.samplers.GPSampler(seed=question["seed"], n_startup_trials=1)
    study = optuna.create_study(directions=["minimize"] * question["directions"], sampler=sampler)
    for values, scores in question["whole"]:
        study.add_trial(create_trial(params=values, distributions=space, values=scores))
    for values in question["at_it"]:
        study.add_trial(create_trial(state=TrialState.RUNNING, params=values, distributions=space))
    return dict(study.ask(space).params)


def main() -> None:
    """Until its input ends. What Optuna prints is no answer."""
    answers, sys.stdout = sys.stdout, sys.stderr
    warnings.simplefilter("ignore")
    for line in sys.stdin:
        try:
            answer: dict[str, Any] = {"values": proposed(json.loads(line))}
        except Exception as error:  # told to who asked
            answer = {"error": f"{type(error).__name__}: {error}"[:200]}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
