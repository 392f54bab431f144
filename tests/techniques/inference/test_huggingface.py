"""transformers' own ways to answer: `generate`, and pipelines. They call the model themselves; their calls are counted
as any others, and an engine answers them or leaves them to the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

pytest.importorskip("transformers", reason="needs transformers")

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    pipeline,
)

from overdrive.engines.onnx_runtime import OnnxRuntime
from overdrive.engines.openvino import OpenVino
from overdrive.worker.clock import InferenceClock
from overdrive.worker.recording import Recorder
from overdrive.worker.session import Session

RUNTIMES: dict[str, Any] = {"openvino": OpenVino(), "onnxruntime": OnnxRuntime()}
SIZES = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
Ask = Callable[[], Any]


def classifier() -> Any:
    return BertForSequenceClassification(BertConfig(**SIZES, max_position_embeddings=32, num_labels=3)).eval()


def in_a_pipeline() -> Ask:
    words = Tokenizer(models.WordLevel({word: n for n, word in enumerate(["[UNK]", "[PAD]", *"abcdefgh"])}, "[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]", pad_token="[PAD]")
    ask = pipeline("text-classification", model=classifier(), tokenizer=tokenizer, device="cpu")
    return lambda: ask(["a b c d", "e f g"], batch_size=2)


def by_itself() -> Ask:
    model = classifier()
    words = torch.arange(16).reshape(2, 8)

    def ask() -> Any:
        with torch.no_grad():
            return model(input_ids=words, attention_mask=torch.ones_like(words)).logits

    return ask


def generating(cache: bool) -> Ask:
    model = LlamaForCausalLM(LlamaConfig(**SIZES, max_position_embeddings=64, num_key_value_heads=2)).eval()
    words = torch.arange(8).reshape(1, 8)
    how = {"attention_mask": torch.ones_like(words), "do_sample": False, "pad_token_id": 1, "use_cache": cache}
    return lambda: model.generate(words, max_new_tokens=6, **how)


PROGRAMS: dict[str, tuple[Callable[[], Ask], int]] = {  # with its calls of the model, each time it is asked
    "a model": (by_itself, 1),
    "a pipeline": (in_a_pipeline, 1),
    "generate": (lambda: generating(True), 6),
    "generate without a cache": (lambda: generating(False), 6),
}


def same(one: Any, other: Any) -> bool:
    pairs = zip(tree_leaves(one), tree_leaves(other), strict=True)
    return all(torch.allclose(a, b, atol=1e-5) if isinstance(a, torch.Tensor) else a == pytest.approx(b, abs=1e-5)
               if isinstance(a, float) else a == b for a, b in pairs)  # fmt: skip


def asked(program: str, techniques: list[tuple[str, dict[str, Any]]], times: int) -> tuple[Session, Recorder]:
    torch.manual_seed(0)
    make, calls = PROGRAMS[program]
    ask = make()
    expected = ask()
    recorder = Recorder(clock=InferenceClock())
    with Session(techniques, [recorder], inference=True) as session:
        for _ in range(times):
            assert same(ask(), expected)
    assert recorder.clock.steps == calls * times
    return session, recorder


@pytest.mark.parametrize("program", PROGRAMS)
def test_their_calls_are_counted_with_what_they_are_given(program: str) -> None:
    _, recorder = asked(program, [("no_grad", {})], 2)
    sizes = recorder.call_sizes()
    assert sum(sizes.values()) == recorder.clock.steps and "other sizes" not in sizes
    lengths = {"generate": 2, "generate without a cache": 6}
    assert len(sizes) == lengths.get(program, 1), "the first call of a cached generation has all tokens, others one"


@pytest.mark.parametrize("program", ["a model", "a pipeline", "generate without a cache"])
@pytest.mark.parametrize("name", RUNTIMES)
def test_an_engine_answers_in_their_models_place(name: str, program: str) -> None:
    if reason := RUNTIMES[name].missing():
        pytest.skip(reason)
    session, _ = asked(program, [(name, {})], 8)
    answers = session.handles[name].notes.answers
    assert not session.seams.left_out and answers.answered > 4, answers.told()


@pytest.mark.parametrize("name", RUNTIMES)
def test_a_cache_of_keys_and_values_is_the_models_own_affair(name: str) -> None:
    """A call writes to the cache that it is given: no engine can answer it, and the run says so. The layers of a block
    that do not see the cache may have engines."""
    if reason := RUNTIMES[name].missing():
        pytest.skip(reason)
    session, _ = asked("generate", [(name, {})], 8)
    answers = session.handles[name].notes.answers
    assert not session.seams.left_out and not answers.answered
    assert answers.told().endswith("calls of LlamaMLP") and "an input of a kind that no engine takes" in answers.told()
