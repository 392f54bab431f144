"""Hugging Face's own models divided: a tiny BERT and a tiny Llama on two ranks (gloo, on this machine)."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.conftest import Run
from tests.ranks.comparing import difference

HERE = Path(__file__).parent
SAID = {
    ("bert", "tensor=2"): "BertForSequenceClassification: the weights of 17 layers are divided over 2 ranks",
    ("llama", "tensor=2"): "LlamaForCausalLM: the weights of 16 layers are divided over 2 ranks",
    ("bert", "pipeline=2"): "BertForSequenceClassification: 2 stages on 2 ranks",
    ("llama", "pipeline=2"): "LlamaForCausalLM: 2 stages on 2 ranks",
}


@pytest.mark.cluster
@pytest.mark.parametrize("words", [("bert",), ("llama", "cache")])
def test_models_that_return_what_they_keep_are_divided(words: tuple[str, ...], python: Run, overdrive: Run) -> None:
    one = python("huggingface_programs.py", *words, cwd=HERE)
    many = overdrive("run", "--ranks", "2", "huggingface_programs.py", *words, cwd=HERE)
    assert one.returncode == many.returncode == 0, (one.stderr, many.stderr)
    assert "called whole" not in many.stderr, many.stderr
    assert not difference(one.stdout, many.stdout, 1e-5)  # Llama's loss is in fp32


@pytest.mark.cluster
@pytest.mark.parametrize(("name", "layout"), SAID)
def test_models_of_hugging_face_print_the_numbers_of_one_process(
    name: str, layout: str, python: Run, overdrive: Run
) -> None:
    one = python("huggingface_programs.py", name, cwd=HERE)
    many = overdrive("run", "--ranks", "2", "--layout", layout, "huggingface_programs.py", name, cwd=HERE)
    assert one.returncode == many.returncode == 0, (one.stderr, many.stderr)
    assert SAID[name, layout] in many.stderr, many.stderr
    assert not difference(one.stdout, many.stdout, 1e-9)
