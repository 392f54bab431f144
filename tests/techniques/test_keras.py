"""The techniques for Keras programs: each does what its card says, keeps its contract, and leaves no trace."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import pytest

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.seams import frameworks
from overdrive.techniques.catalogue import catalogue, environment_for
from overdrive.worker.session import Session
from tests.keras_driver import told_by

KERAS = Facts(framework="keras", backend="tensorflow", device="cpu", cores=2, threads=2, fits=True)


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    """What the driver's one process came to: importing TensorFlow takes seconds."""
    one_thread = {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}
    return told_by("tests.techniques.keras_driver", "tensorflow", **one_thread)


def test_several_steps_in_a_call_are_the_same_steps(results: dict[str, Any]) -> None:
    plain, fours = results["fits"], results["fits in fours"]
    assert fours["left_out"] == {}
    assert fours["losses"] == plain["losses"]  # of fit, validation, evaluate and train_on_batch, to the last bit
    assert fours["iterations"] == plain["iterations"]
    assert plain["steps"] == [1] * 6
    assert fours["steps"] == [4, 4, 4, 3, 3, 4]  # 3 divides the 6 steps of an epoch that has no end of its own
    assert fours["left"] == 1


@pytest.mark.parametrize("lengths", [[5, 3, 5, 6, 9, 8, 5], [8, 8, 7, 12, 9, 10, 4], [7, 8, 12, 7], [3, 9, 9]])
def test_epochs_of_unknown_length_end_where_they_end_one_step_at_a_time(
    results: dict[str, Any], lengths: list[int]
) -> None:
    """Keras ends later epochs after one batch more than the first had."""
    plain, fours = results[f"{lengths} plain"], results[f"{lengths} in fours"]
    assert fours["left_out"] == {} and set(fours["steps"]) == {4}
    most = lengths[0] + 1
    # Where it does not end by itself, it begins a step that finds no more data, and counts it.
    assert plain["iterations"] == list(accumulate(min(each + 1, most) for each in lengths))
    assert fours["iterations"] == plain["iterations"]
    assert fours["losses"] == plain["losses"]  # of the same batches, with the same dropout: shuffled and drawn as often
    assert len(plain["bars"]) == len(lengths) and fours["bars"] == plain["bars"]  # "5/5", which is printed


def test_epochs_cut_from_data_of_unknown_length_go_one_step_at_a_time(results: dict[str, Any]) -> None:
    plain, fours = results["cut plain"], results["cut in fours"]
    assert fours["losses"] == plain["losses"] and fours["iterations"] == plain["iterations"] == [10, 19]
    assert "how many batches the data has is not known beforehand" in fours["left_out"]["steps_per_execution"]


def test_what_a_callback_asks_in_the_midst_of_a_fit_is_answered_as_written(results: dict[str, Any]) -> None:
    """`predict` of all samples, `evaluate` of three batches: not of the first of each four, not of four."""
    plain, fours = results["asked"], results["asked in fours"]
    assert fours["left_out"] == {} and set(fours["steps"]) == {4}
    assert fours["losses"] == plain["losses"] and 90 in plain["losses"] and 27 in plain["losses"]
    assert fours["iterations"] == plain["iterations"] == 2 * 10 + 6 + 4  # Keras was told to stop after 6


def test_models_that_the_program_gives_up_are_gone(results: dict[str, Any]) -> None:
    assert results["one after another"]["left_out"] == {}
    alone = results["one after another, alone"]["alive"]
    assert results["one after another"]["alive"] == alone and len(alone) < 4


def test_callbacks_that_act_on_batches_see_every_batch(results: dict[str, Any]) -> None:
    assert results["fits in fours"]["batches"] == results["fits"]["batches"] == 12
    assert results["counted"]["batches"] == 12
    assert "the callback Count acts on batches" in results["counted"]["left_out"]["steps_per_execution"]


def test_the_step_is_compiled_by_xla(results: dict[str, Any]) -> None:
    assert results["xla"]["jit"] is True and results["short"]["jit"] is False
    assert results["xla"]["left_out"] == {}


@pytest.mark.parametrize(
    ("arm", "kind", "optimizer"), [("bf16", "bfloat16", "Adam"), ("fp16", "float16", "LossScaleOptimizer")]
)
def test_layers_compute_in_16_bits_but_for_the_outputs(
    results: dict[str, Any], arm: str, kind: str, optimizer: str
) -> None:
    found = results[arm]
    assert found["compute"] == [kind, kind, kind, "float32"]
    assert found["weights"] == ["float32"] and found["predicted"] == "float32"
    assert found["optimizer"] == optimizer
    assert found["losses"] != results["short"]["losses"]
    assert abs(found["losses"][-1] - results["short"]["losses"][-1]) < 0.2


def test_a_step_that_scales_no_loss_has_no_gradients_divided(results: dict[str, Any]) -> None:
    found = results["own step in fp16"]
    assert "its train_step is the program's own" in found["left_out"]["mixed_precision"]
    assert found["losses"] == results["own step"]["losses"]


def test_layers_within_layers_go_with_them(results: dict[str, Any]) -> None:
    assert results["nested"]["left_out"] == {}
    assert results["nested"]["predicted"] == ["float32", "float32"]
    assert results["nested"]["compute"].count("float32") == 3  # the last of the head, and what makes the other output
    assert "bfloat16" in results["nested"]["compute"]


def test_blocks_are_called_again_as_they_were_called_first(results: dict[str, Any]) -> None:
    for plain, again, near in (("deep", "deep again", 1e-5), ("deep in 16 bits", "deep again in 16 bits", 2e-2)):
        assert results[again]["left_out"] == {}
        assert results[again]["products"] > results[plain]["products"]  # they are there twice
        assert results[again]["losses a step"] == results[plain]["losses a step"] == [1]
        # Dropout's masks are the same in both calls and moving means move once: else losses would be far apart.
        assert results[again]["losses"] == pytest.approx(results[plain]["losses"], rel=near)
        assert results[again]["weights"] == pytest.approx(results[plain]["weights"], rel=10 * near, abs=1e-5)


def test_blocks_that_cannot_be_called_again_are_left_alone(results: dict[str, Any]) -> None:
    with_losses = results["deep again with losses"]
    assert "adds a loss" in with_losses["left_out"]["gradient_checkpointing"]
    assert with_losses["losses"] == results["deep with losses"]["losses"]
    assert results["deep again eagerly"]["left_out"] == {"gradient_checkpointing": "the model runs eagerly"}
    assert "keeps little inside" in results["shallow again"]["left_out"]["gradient_checkpointing"]
    assert results["shallow again"]["losses"] == results["short"]["losses"]
    assert with_losses["placed"] == 0


def test_what_the_program_chose_stands(results: dict[str, Any]) -> None:
    assert results["own policy"]["left_out"] == {"mixed_precision": "the program has a policy of its own"}
    assert results["own policy"]["compute"] == ["bfloat16"] * 4
    assert results["own choice"]["left_out"] == {
        "jit_compile": "the program sets jit_compile itself",
        "steps_per_execution": "the program sets steps_per_execution itself",
    }


def test_mapped_samples_are_kept_where_nothing_can_change(results: dict[str, Any]) -> None:
    assert results["pipeline cached"]["cached"] and results["pipeline cached"]["left_out"] == {}
    assert results["pipeline cached"]["losses"] == results["pipeline"]["losses"]
    for arm in ("pipeline too large", "pipeline with chance"):
        assert not results[arm]["cached"]
        assert "no data set was found" in results[arm]["left_out"]["data_pipeline"]


def test_samples_of_files_that_the_program_writes_anew_are_read_anew(results: dict[str, Any]) -> None:
    assert results["files cached"]["losses"] == results["files"]["losses"]
    assert not results["files cached"]["cached"]


def test_no_technique_leaves_a_trace(results: dict[str, Any]) -> None:
    assert results["after all"] == results["short"]


@pytest.fixture(scope="module", params=["jax", "torch"])
def elsewhere(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What techniques did on another backend than TensorFlow."""
    other = {"jax": "torch", "torch": "jax"}[request.param]
    return told_by("tests.techniques.keras_backends_driver", request.param, needs=(other,), OTHER=other)


def test_several_steps_in_a_call_on_jax_are_the_same_steps(elsewhere: dict[str, Any]) -> None:
    plain, fours = elsewhere["plain"], elsewhere["fours"]
    assert fours["losses"] == plain["losses"] and fours["iterations"] == plain["iterations"] == fours["recorded"]
    if elsewhere["backend"] == "jax":
        assert fours["left_out"] == {} and fours["steps"] == [4] * 4 and fours["left"] == 1
    else:
        assert "allows one step in a call" in fours["left_out"]["steps_per_execution"]
        assert fours["steps"] == [1] * 4


def test_layers_compute_in_16_bits_on_every_backend(elsewhere: dict[str, Any]) -> None:
    found = elsewhere["bf16"]
    assert found["left_out"] == {} and found["compute"] == ["bfloat16", "bfloat16", "bfloat16", "float32"]
    assert found["losses"] != elsewhere["plain"]["losses"]
    assert abs(found["losses"][-1] - elsewhere["plain"]["losses"][-1]) < 0.2


def test_a_backend_that_was_chosen_too_late_is_told(elsewhere: dict[str, Any]) -> None:
    reason = elsewhere["other backend"]["left_out"]["keras_backend"]
    assert reason == f"the program chooses Keras's backend itself: {elsewhere['backend']}"
    assert elsewhere["other backend"]["losses"] == elsewhere["plain"]["losses"]


def test_threads_of_pytorch_serve_keras_on_it(elsewhere: dict[str, Any]) -> None:
    if elsewhere["backend"] == "torch":
        assert elsewhere["threads"]["threads"] == 2 and elsewhere["plain"]["threads"] == 1
        assert elsewhere["after all"]["threads"] == 1


def test_the_step_is_compiled_on_pytorch_and_was_on_jax(elsewhere: dict[str, Any]) -> None:
    jit, plain = elsewhere["jit"], elsewhere["plain"]
    if elsewhere["backend"] == "torch":
        assert jit["left_out"] == {} and jit["jit"] and not plain["jit"]
        assert jit["recorded"] == plain["recorded"] == jit["iterations"]
        assert jit["losses"] == pytest.approx(plain["losses"], rel=1e-5)
    else:
        assert "compiled by itself" in jit["left_out"]["jit_compile"]


def test_no_technique_leaves_a_trace_on_other_backends(elsewhere: dict[str, Any]) -> None:
    assert elsewhere["after all"] == elsewhere["plain"]


def test_what_tensorflow_reads_at_its_start_is_there_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS", raising=False)
    monkeypatch.setenv("TF_XLA_FLAGS", "--tf_xla_max_cluster_size=9")
    assert environment_for([("onednn", {})]) == {"TF_ENABLE_ONEDNN_OPTS": "0"}
    clusters = environment_for([("xla_clusters", {})])["TF_XLA_FLAGS"]
    assert clusters == "--tf_xla_max_cluster_size=9 --tf_xla_auto_jit=2 --tf_xla_cpu_global_jit"
    monkeypatch.setenv("TF_XLA_FLAGS", clusters)  # as it is within the process that was started so
    assert environment_for([("xla_clusters", {})]) == {"TF_XLA_FLAGS": clusters}


@pytest.mark.parametrize(
    ("name", "facts", "reason"),
    [
        ("steps_per_execution", {"fits": False}, "does not call fit()"),
        ("steps_per_execution", {"own": {"steps_per_execution": {"steps": 16}}}, "sets steps_per_execution itself"),
        ("steps_per_execution", {"backend": "torch"}, "allows one step in a call"),
        ("jit_compile", {"backend": "jax"}, "compiled by itself"),
        ("jit_compile", {"backend": "torch", "own_compile": True}, "compiled by torch.compile"),
        ("threads", {}, "Keras runs on tensorflow here"),
        ("waiting", {"backend": "jax"}, "Keras runs on jax here"),
        ("onednn", {"backend": "jax"}, "Keras runs on jax here"),
        ("allocator", {"backend": "jax", "device": "cuda"}, "allocators of their own"),
        ("jit_compile", {"own_compile": True}, "compiled by XLA"),
        ("mixed_precision", {"bf16_fast": False}, "does not multiply bf16 in hardware"),
        ("mixed_precision", {"own_autocast": True}, "a mixed policy of its own"),
        ("tensorflow_allocator", {}, "no GPU"),
        ("tensorflow_threads", {"cores": 1}, "one core"),
        ("onednn", {"device": "cuda"}, "on the GPU"),
        ("gradient_checkpointing", {"backend": "jax"}, "Keras runs on jax here"),
        ("gradient_checkpointing", {"modules": False}, "compiles no model"),
        ("jit_compile", {"modules": False}, "compiles no model"),
        ("mixed_precision", {"modules": False, "bf16_fast": True}, "compiles no model"),
        ("xla_clusters", {"own": {"xla_clusters": {"functions": 0}}}, "runs eagerly"),
    ],
)
def test_each_says_why_it_cannot_help(name: str, facts: dict[str, Any], reason: str) -> None:
    from dataclasses import replace

    assert reason in (catalogue()[name].applies(replace(KERAS, **facts)) or "")


def test_another_backend_is_set_before_the_process_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    technique = catalogue()["keras_backend"]
    assert technique.contract is Contract.OPEN
    assert technique.candidates(KERAS) == [{"backend": "jax"}, {"backend": "torch"}]
    assert environment_for([("keras_backend", {"backend": "torch"})]) == {"KERAS_BACKEND": "torch"}
    monkeypatch.setenv("KERAS_BACKEND", "tensorflow")  # so the tune was told, and it found another
    assert environment_for([("keras_backend", {"backend": "torch"})]) == {"KERAS_BACKEND": "torch"}
    monkeypatch.setattr("overdrive.techniques.compile.keras_backend.find_spec", lambda name: None)
    assert environment_for([("keras_backend", {"backend": "torch"})]) == {}  # Keras would not even start
    session = Session([("keras_backend", {"backend": "torch"})])
    with session:
        assert session.seams.left_out == {"keras_backend": "torch is not installed"}


def test_every_technique_says_whose_programs_it_is_for() -> None:
    for technique in catalogue().values():
        assert technique.frameworks and set(technique.frameworks) <= set(frameworks.MODULES)
    for_keras = {name for name, each in catalogue().items() if "keras" in each.frameworks}
    assert {"allocator", "hugepages", "affinity", "steps_per_execution", "threads", "keras_backend"} <= for_keras
    assert not {"autocast", "compile", "channels_last", "sample_cache"} & for_keras


def test_what_a_cache_of_samples_takes_is_known_only_where_each_has_its_size() -> None:
    tf = pytest.importorskip("tensorflow")
    from overdrive.techniques.data.data_pipeline import _bytes_in

    numbers = tf.data.Dataset.range(1000)
    assert _bytes_in(numbers.map(lambda each: (each, each))) >= 1000 * 2 * 64
    assert _bytes_in(numbers.map(tf.strings.as_string)) is None
