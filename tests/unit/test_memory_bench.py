"""The fit of the memory constants, and the predictions that are judged by start-up logs."""

import pytest
from fit_memory import RUNTIME_ERAS, Sample, as_toml, fit, fitted, read_rows, shared
from memory import predicted
from memory_cases import version_of

from tonnage.catalog.engine_memory import MEMORY_FILE
from tonnage.catalog.gpu import CatalogError

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "torch_dtype": "bfloat16",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
    "max_position_embeddings": 131072,
}
CONFIGS = {
    "shapes": {"llama-3.1-8b": {"config": LLAMA}},
    "models": {"meta-llama/Llama-3.1-8B-Instruct": {"shape": "llama-3.1-8b"}},
}
ROW = {
    "id": "one", "vllm_version": "0.19.0", "engine": "v1",
    "model": "meta-llama/Llama-3.1-8B-Instruct", "gpu": "NVIDIA H100 80GB HBM3",
    "gpu_memory_gib_reported": "79.19", "n_gpus": "1", "tp": "1", "pp": "1", "dp": "1",
    "weight_quant": "none", "kv_cache_dtype": "auto", "max_model_len": "8192",
    "gpu_memory_utilization": "0.95", "max_num_seqs": "1024", "max_num_batched_tokens": "8192",
    "enforce_eager": "False", "block_size": "16",
}  # fmt: skip


def test_the_constants_of_the_catalogue_are_what_their_rows_say():
    assert MEMORY_FILE.read_text() == as_toml(fit(read_rows())), "run: fit_memory.py --write"


def test_a_log_is_predicted_from_its_configuration():
    # Printed: 476,016 tokens, 14.99 GiB of weights, 58.11 GiB for the cache.
    found = predicted(ROW, CONFIGS)

    assert found["kv_tokens"] == pytest.approx(476_016, rel=0.002)
    assert found["weights_gib"] == pytest.approx(14.99, abs=0.01)
    assert found["low_kv_tokens"] < 476_016 < found["high_kv_tokens"]
    assert not found["refused"]


def test_a_flag_that_is_not_stated_widens_the_range():
    stated = predicted(ROW, CONFIGS)
    found = predicted({**ROW, "gpu_memory_utilization": ""}, CONFIGS)

    width = found["high_kv_tokens"] - found["low_kv_tokens"]
    assert width > 5 * (stated["high_kv_tokens"] - stated["low_kv_tokens"])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "nobody/nothing"}, "nobody/nothing"),
        ({"gpu": "a board"}, "gpu 'a board'"),
        ({"vllm_version": "soon"}, "vllm_version 'soon'"),
        ({"weight_quant": "q5_k_m"}, "weight_quant 'q5_k_m'"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(changes, words):
    row = {**ROW, "gpu_memory_gib_reported": "", **changes}

    found = predicted(row, CONFIGS)

    assert words in found["refused"]
    assert "kv_tokens" not in found


def test_a_model_that_does_not_fit_says_where_the_memory_goes():
    found = predicted({**ROW, "gpu": "NVIDIA L4", "gpu_memory_gib_reported": "16"}, CONFIGS)

    assert "GiB weights" in found["refused"]


def test_a_version_that_is_neither_number_nor_month_is_refused():
    with pytest.raises(CatalogError, match="nightly"):
        version_of("nightly")


def samples(*values, era="0.2"):
    return [Sample(era=era, value=value, row="row") for value in values]


def test_few_rows_make_an_unsure_constant():
    # Two rows 1 apart: the next one lies outside them two times in three.
    assert fitted(samples(10.0, 11.0), least_spread=0.1).spread == pytest.approx(3.0)
    assert fitted(samples(10.0), least_spread=0.1).spread == pytest.approx(10.0)
    assert fitted(samples(*range(100, 121)), least_spread=0.1).spread < 10


def test_a_spread_is_stretched_to_nothing_at_most():
    assert fitted(samples(1.0, 2.5), least_spread=0.1).spread == pytest.approx(0.9 * 1.5)


def test_a_borrowed_constant_is_as_unsure_as_eras_differ():
    rows = samples(*[10.0] * 10, era="0.8") + samples(*[14.0] * 10, era="0.18")
    lone = samples(10.0, 10.0, era="0.8")

    assert shared(rows, RUNTIME_ERAS, "0.2", 0.1).spread == pytest.approx(4.0)
    assert shared(lone, RUNTIME_ERAS, "0.18", 0.1).spread == pytest.approx(10.0)
    assert shared(lone, RUNTIME_ERAS, "0.17", 0.1).spread == pytest.approx(0.1)
