"""The metric is found where people put it: in the output, in a returned value, in the loss."""

from __future__ import annotations

import math

import pytest

from overdrive.core.metric import Metric, MetricError

OUTPUT = """
epoch 1 accuracy=91.5
Test set: Accuracy: 97.30 %
val_loss 0.25
Accuracy of class 3
F1 [macro] -> 1.5e-1
"""


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Accuracy", 97.3),
        ("val_loss", 0.25),
        ("F1 [macro]", 0.15),
        (r"accuracy=([\d.]+)", 91.5),
        ("loss", math.nan),  # a part of another word
        ("recall", math.nan),
    ],
)
def test_a_printed_number(name: str, value: float) -> None:
    found = Metric(name).value([], OUTPUT, None)
    assert found == value or (math.isnan(found) and math.isnan(value))


@pytest.mark.parametrize(
    ("name", "output", "value"),
    [
        ("eval_accuracy", "{'eval_loss': 0.34, 'eval_accuracy': 0.92, 'epoch': 1.0}", 0.92),
        ("eval_accuracy", "{'eval_loss': '0.34', 'eval_accuracy': '0.92'}", 0.92),  # as newer trainers print it
        ("loss", "{'eval_loss': 0.34, 'loss': -0.5}", -0.5),
        ("val_acc", '{"epoch": 3, "val_acc": 0.93}', 0.93),
        ("loss", "loss: tensor(0.1234, grad_fn=<MseLossBackward0>)", 0.1234),
        ("acc", "{'acc': np.float64(0.93)}", 0.93),
        ("acc", "{'acc': array([0.93], dtype=float32)}", 0.93),
        ("episodic_return", "global_step=12, episodic_return=[200.]", 200.0),
        ("Test Accuracy", "Test Accuracy (%): 93.2", 93.2),
        ("Loss", "Loss: [3/10] 0.5", math.nan),  # how far it is
        ("Loss", "Loss (1/10): 0.5", math.nan),
        ("loss", "loss[0]: 0.5", math.nan),
        ("loss", "loss: 1,234.5", 1234.5),
        ("reward", "reward -12,345", -12345.0),
        ("loss", "loss: -inf", -math.inf),
        ("loss", "loss: 1, 234", 1.0),
        (r"loss: ([\d,.]+)", "loss: 1,234.5", 1234.5),
        ("acc", "acc: \x1b[32m0.93\x1b[0m\nacc \x1b[1m=\x1b[0m \x1b[32m0.95\x1b[0m", 0.95),
        (r"acc: ([\d.]+)", "acc: \x1b[32m0.93\x1b[0m", 0.93),
        (r"acc: \x1b\[32m([\d.]+)", "acc: \x1b[32m0.93\x1b[0m", 0.93),
        ("test_acc", "┃ Test metric ┃ DataLoader 0 ┃\n│      test_acc       │    0.919     │", 0.919),
        ("loss", "loss │ -0.5 │", -0.5),
        ("loss", "loss → 0.5", 0.5),
    ],
)
def test_a_number_as_dictionaries_tensors_and_trainers_print_it(name: str, output: str, value: float) -> None:
    found = Metric(name).value([], output, None)
    assert found == value or (math.isnan(found) and math.isnan(value))


def test_a_returned_number() -> None:
    assert Metric("evaluate()").function == "evaluate"
    assert Metric("evaluate()").value([], OUTPUT, 0.5) == 0.5
    assert math.isnan(Metric("evaluate()").value([], OUTPUT, None))


def test_the_first_of_several_printed_numbers_is_where_it_began() -> None:
    assert Metric("accuracy").first("accuracy 10\naccuracy 50\naccuracy 60") == 10
    assert Metric("accuracy").first("accuracy 50\naccuracy 60") is None
    assert Metric().first("accuracy 10") is None and Metric("evaluate()").first("") is None


def test_the_training_loss_is_the_mean_of_the_last_third() -> None:
    assert Metric().value([9.0] * 60 + [1.0, 2.0] * 15, "", None) == 1.5
    assert Metric().value([4.0], "", None) == 4.0
    assert math.isnan(Metric().value([1.0, math.nan], "", None))
    assert math.isnan(Metric().value([], "", None))


@pytest.mark.parametrize("name", ["", "  ", "(", "(a)(b)", "(?:a)"])
def test_what_is_no_metric(name: str) -> None:
    with pytest.raises(MetricError):
        Metric(name)


def test_a_missing_metric_is_named() -> None:
    assert "'recall'" in Metric("recall").missing() and "evaluate" in Metric("evaluate()").missing()
