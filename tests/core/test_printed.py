"""Which numbers of an output are the program's, and which the machine's."""

from __future__ import annotations

import math

import pytest

from overdrive.core.printed import series


def test_numbers_of_lines_that_are_alike_are_series() -> None:
    found = series("epoch 0: accuracy 46.88, loss 1.5e-1\nepoch 1: accuracy 51.25, loss -2\ndone\n")
    assert found == {
        "epoch #: accuracy #, loss #, 1": [0.0, 1.0],
        "epoch #: accuracy #, loss #, 2": [46.88, 51.25],
        "epoch #: accuracy #, loss #, 3": [0.15, -2.0],
    }


@pytest.mark.parametrize(
    "line",
    [
        "took 3.2s",
        "3.2 s",
        "12.5 it/s",
        "1,200 MB".replace(",", ""),
        "elapsed: 17",
        "memory 812",
        "speed 1300 img/s",
        "2026-11-25 00:04:12",
        "resnet18",
        "v1.2.3",
        "{'train_runtime': 12.3456, 'train_samples_per_second': 98.7, 'train_steps_per_second': 3.1}",
        "{'eval_runtime': '1.23', 'eval_samples_per_second': '98.7'}",
        "time 31.2ms, mfu 4.2%",
        "33.2 ms | 5.1% bf16 MFU | 1234 tok/s",
        "ms/batch 33.21",
        "tok/sec: 163840",
        "samples/sec: 4210",
        "img/s: 812.3",
        "812 images/second",
        "812.3 samples per second",
        "Time  0.123 ( 0.140)\tData  0.001 ( 0.010)",
        "time: 0.1234  data: 0.0001  max mem: 1234",
        "time (s): 3.2",
        "Time per epoch: 3.2",
        "step_time 12.1 (avg: 12.3)",
        "SPS: 1034",
        "|    fps             | 1034        |",
        "dt 12.3",
    ],
)
def test_what_the_machine_does_is_no_result(line: str) -> None:
    assert series(line) == {}


@pytest.mark.parametrize(
    "line",
    [
        "loss/step 0.5",
        "loss per sample 0.5",
        "accuracy on test data: 0.5",
        "'eval_loss': 0.5",
        "times_correct 0.5",
        "time_mae 0.5",
        "second 0.5",
        "FPs: 0.5",
        "steps 0.5",
    ],
)
def test_words_that_only_look_like_times_are_results(line: str) -> None:
    assert list(series(line).values()) == [[0.5]]


def test_of_a_line_of_times_and_results_the_results_are_left() -> None:
    line = "Epoch: [0][10/99]\tTime  0.123 ( 0.140)\tData  0.001 ( 0.010)\tLoss 6.9 (7.0)\tAcc@1   3.12 (  2.50)"
    assert [values[0] for values in series(line).values()] == [0.0, 10.0, 99.0, 6.9, 7.0, 1.0, 3.12, 2.5]
    assert list(series("iter 7: loss 4.27, time 3221.90ms, mfu -100.00%").values()) == [[7.0], [4.27]]


def test_of_a_progress_bar_its_end_is_left() -> None:
    found = series("  3%| 1/30 loss=9.5\r100%| 30/30 [00:12<00:00] loss=0.5\n")
    assert [values for name, values in found.items() if "loss" in name] == [[100.0], [30.0], [30.0], [0.5]]


def test_what_depends_on_the_moment_makes_no_other_line() -> None:
    """A candidate that is faster lacked what the original had printed."""
    bar = "\rTrain:   9%|▉         | 290/3000 [00:03<00:27, 98.9it/s, loss=2.3]"
    assert series(bar) == {}, "cut off with the run"
    assert series(f"{bar}loss 0.5\n") == {"loss #, 1": [0.5]}
    whole = "\rTrain: 100%|██████████| 3000/3000 [00:30<00:00, {}]\n"
    assert series(whole.format("98.9it/s")) == series(whole.format("1.2s/it"))
    assert series("epoch 1 took 58s") == series("epoch 1 took 1m 3s") == {"epoch # took ~, 1": [1.0]}
    assert series("loss 0.5, 980 MB") == series("loss 0.5, 1.2 GB")
    assert list(series("acc  9.5 ( 0.1)")) == list(series("acc 10.5 (10.1)"))


def test_a_bar_of_keras_is_read_at_its_end() -> None:
    bar = "\x1b[1m{}/100\x1b[0m \x1b[32m{}\x1b[0m\x1b[37m━━━━\x1b[0m \x1b[1m3s\x1b[0m 12ms/step - loss: {}\n"
    found = series(bar.format(12, "━━", 2.3) + bar.format(100, "━━━━━━━━", 0.5))
    assert list(found.values()) == [[100.0], [100.0], [0.5]]


def test_what_stands_behind_the_number_of_a_tensor_is_no_part_of_its_line() -> None:
    plain, other = "tensor(2.3, grad_fn=<NllLossBackward0>)", "tensor(2.25, dtype=torch.bfloat16, grad_fn=<Fast<0>>)"
    assert list(series(plain)) == list(series(other)) == ["tensor(#), 1"]


def test_what_libraries_say_is_no_result() -> None:
    warning = "/a/conv.py:456: UserWarning: 3 channels\n  return conv(x, 5)\n"
    logs = "[W1130 00:00:31.123 a.cpp:62] no 3\nI0000 00:00:17 b.cc:5] 4\n2026-11-30 00:00:31.123: I c.cc:5] 6\n"
    assert series(f"{warning}{logs}overdrive: left out x: 7\nloss 0.5\n") == {"loss #, 1": [0.5]}


def test_only_so_many_kinds_of_lines_are_kept() -> None:
    assert len(series("\n".join(f"{chr(97 + i % 26)}{chr(97 + i // 26)}x 1" for i in range(500)))) == 64
    assert len(series(" ".join(["1"] * 500))) <= 8


def test_values_that_are_not_finite_are_kept() -> None:
    (values,) = series("loss nan\nloss 1").values()
    assert len(values) == 2 and values[0] != values[0]


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("perplexity: 1,234.5", [1234.5]),
        ("reward -12,345,678", [-12345678.0]),
        ("1,234.5e2", [123450.0]),
        ("[1, 200]", [1.0, 200.0]),
        ("accuracy 0,931", [0.0, 931.0]),
        ("1,100,0.5", [1.0, 100.0, 0.5]),
        ("1,2345", [1.0, 2345.0]),
        ("loss -inf", [-math.inf]),
    ],
)
def test_a_number_with_thousands_separators_is_one(line: str, values: list[float]) -> None:
    assert [value for (value,) in series(line).values()] == values
