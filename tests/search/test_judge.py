"""The metric that a comparison is judged by: asked for where it is not there, named where a program has one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from overdrive.core.hyperparameters import DROPOUT, OPTIMIZER, OPTION, WIDTH, ValuePlace
from overdrive.core.metric import Metric
from overdrive.search.conduct import _beside_learning, _check_judge
from overdrive.search.goal import Goal
from overdrive.search.labels import labels
from overdrive.search.parameters import Parameter
from overdrive.search.search import CannotSearch

OUTPUT = "".join(f"epoch {n}: val acc: 0.{n}5\ntest acc: 0.{n}3\n" for n in range(5))


def said(metric: str, judge: str = "", output: str = OUTPUT, target: float | None = None) -> list[str]:
    told: list[str] = []
    order: Any = SimpleNamespace(metric=Metric(metric), judge=judge, goal=Goal(True, target), tell=told.append)
    _check_judge(order, SimpleNamespace(output=output))  # type: ignore[arg-type]
    return told


def test_a_metric_of_other_data_is_named_where_the_search_selects_by_validation() -> None:
    assert said("val acc") == ["--judge-by 'test acc' would compare on data that the selection does not see"]
    assert not said("test acc") and not said("val acc", "test acc") and not said("val acc", target=0.9)
    assert not said("val acc", output="val acc: 0.5\n")


def test_of_a_line_an_epoch_each_number_is_known_by_its_ownlabels() -> None:
    line = "Epoch 3 | loss 0.123 | val acc 0.2 | test acc 0.3\n"
    assert labels(line) == ["test acc", "val acc", "loss", "Epoch"]
    assert said("val acc", output=line) == [
        "--judge-by 'test acc' would compare on data that the selection does not see"
    ]
    digits = "Test set: Average loss: 0.0512, Accuracy: 9834/10000 (98%)\n"
    assert labels(digits) == ["Accuracy", "Average loss"]
    trainer = "{'eval_loss': 0.34, 'eval_accuracy': '0.92', 'f1': np.float64(0.9), 'epoch': 1.0}\n"
    assert labels(trainer) == ["epoch", "f1", "eval_accuracy", "eval_loss"]
    assert labels("loss: tensor(0.25) Top1 (%): 93.0 " + "x" * 90 + " y 1\n") == ["Top1", "loss"]
    table = "┃ Test metric ┃ DataLoader 0 ┃\n│  test_acc   │    0.919     │\n"  # as Lightning prints it
    assert labels(table) == ["test_acc", "DataLoader"]


def test_one_that_is_not_printed_is_told_after_the_first_run() -> None:
    with pytest.raises(CannotSearch, match=r"nothing to judge by: .* after 'F1'. It prints numbers after: .*test acc"):
        said("val acc", "F1")
    assert not said("val acc", "F1", output="")  # another process has made that run


def test_a_number_that_goes_the_other_way_is_not_named() -> None:
    """By the direction of a loss, less accuracy would be better."""
    assert said("val acc", output="val acc: 0.5\ntest loss: 0.7\n") == []
    both = "val acc: 0.5\ntest acc: 0.5\ntest loss: 0.7\n"
    assert said("val acc", output=both) == [
        "--judge-by 'test acc' would compare on data that the selection does not see"
    ]


def test_what_the_training_loss_tells_little_of_is_named() -> None:
    """Less dropout lowers it, whatever is learned."""
    places = [
        *(ValuePlace(OPTIMIZER, "lr", 0.1), ValuePlace(DROPOUT, "p", 0.5), ValuePlace(WIDTH, "width", 32)),
        ValuePlace(OPTION, "--label-smoothing", 0.1),
    ]
    parameters = [Parameter(each.name.lstrip("-"), (each,)) for each in places]
    told: list[str] = []

    def beside(metric: Metric, judge: str = "", of: slice = slice(None)) -> tuple[str, ...]:
        order: Any = SimpleNamespace(metric=metric, judge=judge, parameters=parameters[of], tell=told.append)
        return _beside_learning(order)

    (said,) = beside(Metric())
    assert said.startswith("The training loss may tell little of p, label-smoothing: ") and told == [said]
    assert not beside(Metric("Accuracy")) and not beside(Metric(), "test acc") and not beside(Metric(), of=slice(1))
