"""Names of parameters, and the command line of a configuration."""

from __future__ import annotations

import pytest

from overdrive.core.hyperparameters import CONSTANT, OPTIMIZER, OPTION, ValuePlace
from overdrive.core.program import Program
from overdrive.search.names import means, spelled
from overdrive.search.parameters import Parameter, UnknownParameter, find, parameters_of, set_in

LR = ValuePlace(OPTION, "--learning_rate", 0.01)
SEAM = ValuePlace(OPTIMIZER, "lr", 0.01, "train.py:9", "Adam")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("--lr", "lr"),
        ("learning_rate", "lr"),
        ("config.base_lr", "lr"),
        ("LEARNING_RATE", "lr"),
        ("min_lr", ""),
        ("--batchSize", "batch-size"),
        ("--train-batch-size", "batch-size"),
        ("test_batch_size", ""),
        ("bs", "batch-size"),
        ("wd", "weight-decay"),
        ("--drop_rate", ""),
        ("dropout", "dropout"),
        ("layers", "depth"),
        ("--hidden_size", "width"),
        ("hidden_act", ""),
    ],
)
def test_spellings_of_the_usual_ones(name: str, expected: str) -> None:
    assert means(name) == expected


def test_one_name_for_each_spelling() -> None:
    assert {spelled(each) for each in ("--batch_size", "batchSize", "Config.BATCH_SIZE")} == {"batch-size"}


def test_a_parameter_has_the_usual_name_and_is_found_by_its_own() -> None:
    (one,) = parameters_of([LR, SEAM], {LR.key: [SEAM]}, True)
    assert one.name == "lr" and one.moves == (SEAM,)
    assert find([one], "learning-rate") is one and find([one], "lr") is one


def test_two_of_one_meaning_have_names_of_their_own() -> None:
    other = ValuePlace(OPTIMIZER, "lr", 0.02, "train.py:20", "SGD")
    assert [each.name for each in parameters_of([SEAM, other], {}, True)] == ["lr", "lr-2"]


def test_an_unknown_name_is_answered_with_a_likely_one() -> None:
    known = parameters_of([LR, SEAM, ValuePlace(OPTION, "--gamma", 0.5)], {LR.key: [SEAM]}, True)
    with pytest.raises(UnknownParameter, match=r"did you mean gamma\?"):
        find(known, "gama")
    with pytest.raises(UnknownParameter, match="overdrive search --list"):
        find(known, "xyz")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), ("--learning_rate=0.5",)),
        (("--learning_rate", "0.1", "data"), ("data", "--learning_rate=0.5")),
        (("--learning_rate=0.1",), ("--learning_rate=0.5",)),
        (("--seed", "1"), ("--seed", "1", "--learning_rate=0.5")),
    ],
)
def test_an_option_takes_the_place_of_the_users_own(words: tuple[str, ...], expected: tuple[str, ...]) -> None:
    program, keys = set_in(Program("train.py", words), [Parameter("lr", (LR,))], {"lr": 0.5})
    assert program.arguments == expected and not keys


def test_a_run_of_a_search_has_the_standard_input_of_its_program() -> None:
    program = Program("train.py", ("--lr", "1"), stdin="/tmp/answers")
    assert set_in(program, (), {})[0] == program


def test_an_option_of_a_parser_with_commands_stands_before_the_command() -> None:
    place = ValuePlace(OPTION, "--lr", 0.1, before="train")
    program, _ = set_in(Program("t.py", ("train", "--epochs", "3")), [Parameter("lr", (place,))], {"lr": 0.5})
    assert program.arguments == ("--lr=0.5", "train", "--epochs", "3")


def test_flags_are_turned_on_and_off() -> None:
    amp = Parameter("amp", (ValuePlace(OPTION, "--amp", False, on="--amp"),))
    assert set_in(Program("t.py"), [amp], {"amp": True})[0].arguments == ("--amp",)
    assert set_in(Program("t.py", ("--amp",)), [amp], {"amp": False})[0].arguments == ()


def test_what_is_no_option_is_for_the_trial_to_set() -> None:
    place = ValuePlace(CONSTANT, "lr", 0.01, "train.py:3")
    program, keys = set_in(Program("train.py"), [Parameter("lr", (place,))], {"lr": 0.5})
    assert program == Program("train.py") and keys == {place.key: 0.5}


def test_a_constant_that_was_seen_to_decide_nothing_has_no_usual_name() -> None:
    most = ValuePlace(CONSTANT, "MAX_BATCH_SIZE", 16, "train.py:3")
    assert [each.name for each in parameters_of([most], {}, True)] == ["batch-size"]
    assert [each.name for each in parameters_of([most], {}, True, {most.key})] == ["max-batch-size"]
