"""Fails where a step of train.py got slower than on main, or computes something else. Needs Overdrive's package."""


def test_training_is_as_fast_and_the_same(training_guard):
    training_guard("train.py", "--epochs", "1", against="origin/main")
