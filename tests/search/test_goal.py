"""What a search is to reach, and whether more of a metric is better."""

from __future__ import annotations

import pytest

from overdrive.core.metric import Metric
from overdrive.search.goal import Goal


@pytest.mark.parametrize(
    "name",
    [
        *("training loss", "val_loss", "eval_wer", "test_cer", "val_ppl", "val_fid", "val_kl", "WER", "KLD", "LPIPS"),
        *("val_mape", "lpips", "EER", "bpd", "bits/dim", "Error", "top1_err", "valError", "testErrors", "RMSE"),
        *(
            "perplexity \\(val\\): ([\\d.]+)",
            r"acc=[\d.]+ loss=([\d.]+)",
            r"Accuracy.*loss: ([\d.]+)",
            "evaluate_loss()",
        ),
        *(r"(?:test|val) loss (\d+)", r"([\d.]+)% error"),
        *("negative log-likelihood", "val_neg_log_likelihood", "Negative ELBO", "Brier score", "ECE", "val_fvd"),
    ],
)
def test_less_of_these_is_better(name: str) -> None:
    assert not Goal.parse("best", Metric(name)).maximize


@pytest.mark.parametrize(
    "name",
    [
        *("Accuracy", "val acc", "transferred accuracy", "F1", "BLEU", "episodic_return", "lower_bound", "evaluate()"),
        *("loss=[\\d.]+ acc=([\\d.]+)", r"Average loss: [\d.]+, Accuracy: (\d+)", r"loss.*acc=([\d.]+)", "confidence"),
        *(r"loss \d+, Accuracy: \d+/\d+ \((\d+)%\)", r"loss [\d.]+ (?:val|test) acc (?P<n>[\d.]+)"),
        *("neg_mean_squared_error", "val_neg_log_loss", "log likelihood", "ELBO", "negative predictive value"),
        *("keypoints recall", "piece rate"),
    ],
)
def test_more_of_these_is_better(name: str) -> None:
    assert Goal.parse("best", Metric(name)).maximize
    assert not Goal.parse("best", Metric(name), "minimize").maximize
