"""The memory that each release counts, asked of its own sources: ``TONNAGE_SOURCES=1``.

They are downloaded by pip, some 40 MB for each release, and kept in the cache folder.
"""

import ast
import os
import re
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from proof_sources import unpacked

from tonnage.catalog.engine import SecondRunner, batch_defaults, known_engine
from tonnage.catalog.gpu import built_in_gpus
from tonnage.units import GIB
from tonnage_lab.assets import cache_folder

RELEASES = (
    "0.12.0", "0.18.0", "0.19.0", "0.20.0", "0.22.0", "0.23.0", "0.24.0", "0.25.0", "0.26.0",
    "0.27.0", "0.28.0", "0.29.0", "0.31.0", "0.32.0", "0.33.0",
)  # fmt: skip
pytestmark = [
    pytest.mark.skipif(not os.environ.get("TONNAGE_SOURCES"), reason="TONNAGE_SOURCES is not set"),
    pytest.mark.parametrize("release", RELEASES),
]
WEIGHTS, RUNTIME, PEAK = 15 * GIB, 2 * GIB, 5 * GIB


def source(release: str, name: str) -> str:
    return (unpacked(release, cache_folder() / "proof") / "vllm" / name).read_text()


def minor(release: str) -> str:
    return release.rpartition(".")[0]


def test_the_share_of_the_memory_is_its_default(release: str) -> None:
    found = re.search(
        r"gpu_memory_utilization: float = \D*([\d.]+)", source(release, "config/cache.py")
    )

    assert found
    assert known_engine(minor(release)).constants.gpu_memory_utilization == float(found[1])


def test_graphs_are_set_aside_where_its_estimate_is_on_by_default(release: str) -> None:
    text = source(release, "envs.py")
    found = re.search(r'VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS", "(\d)"', text)

    is_on = bool(found and found[1] == "1")
    assert bool(known_engine(minor(release)).memory.graphs_bytes.value) == is_on


def test_its_profile_comes_to_weights_runtime_and_peak(release: str) -> None:
    """With 15 GiB of weights, 2 of runtime, and 5 at the peak of which none stays."""
    profile = profiled(source(release, "utils/mem_utils.py"))

    assert profile.non_kv_cache_memory == WEIGHTS + RUNTIME + PEAK


def profiled(text: str) -> Any:
    """Run a release's own ``memory_profiling`` with snapshots that we say."""
    names = {"MemorySnapshot", "MemoryProfilingResult", "memory_profiling"}
    module = ast.parse(re.sub(r"from vllm\.platforms import \w+", "pass", text))
    module.body = [each for each in module.body if getattr(each, "name", "") in names]
    device = Device()
    scope: dict[str, Any] = {
        "torch": device.torch(), "current_platform": device.platform(), "psutil": None,
        "gc": SimpleNamespace(collect=lambda: 0), "time": SimpleNamespace(time=lambda: 0.0),
        "contextlib": SimpleNamespace(contextmanager=contextmanager), "GiB_bytes": GIB,
    }  # fmt: skip
    header = "from __future__ import annotations\nfrom dataclasses import dataclass, field\n"
    exec(compile(header + ast.unparse(module), "mem_utils", "exec"), scope)  # noqa: S102
    before = scope["MemorySnapshot"]()
    device.take(allocated=WEIGHTS, others=RUNTIME)
    with scope["memory_profiling"](before, weights_memory=WEIGHTS) as result:
        device.peak = WEIGHTS + PEAK
    return result


class Device:
    """A GPU with 80 GiB and an allocator that keeps nothing that is not used."""

    allocated = others = peak = 0.0

    def take(self, *, allocated: float, others: float) -> None:
        self.allocated = self.peak = allocated
        self.others = others

    def free(self, *_: object) -> tuple[float, float]:
        return 80 * GIB - self.allocated - self.others, 80 * GIB

    def stats(self, *_: object) -> dict[str, float]:
        return {
            "allocated_bytes.all.peak": self.peak,
            "allocated_bytes.all.current": self.allocated,
        }

    def reset(self, *_: object) -> None:
        self.peak = self.allocated

    def torch(self) -> Any:
        own = SimpleNamespace(
            memory_stats=self.stats,
            memory_reserved=lambda *_: self.allocated,
            mem_get_info=self.free,
            get_memory_info=self.free,
            empty_cache=lambda: None,
            reset_peak_memory_stats=self.reset,
            current_device=lambda: 0,
            current_device_index=lambda: 0,
        )
        return SimpleNamespace(
            cuda=own, accelerator=own, types=SimpleNamespace(Device=object),
            device=lambda *_: SimpleNamespace(index=0, type="cuda"),
        )  # fmt: skip

    def platform(self) -> Any:
        return SimpleNamespace(
            is_cuda=lambda: True, is_cuda_alike=lambda: True, is_rocm=lambda: False,
            is_xpu=lambda: False, is_integrated_gpu=lambda *_: False, mem_get_info=self.free,
            get_device_capability=lambda *_: (9, 0), current_device=lambda: 0, device_type="cuda",
        )  # fmt: skip


def test_large_boards_take_the_batches_that_it_takes(release: str) -> None:
    text = source(release, "engine/arg_utils.py")
    tiers = "160 * GiB_bytes" in text, "is_gb10" in text
    b200, spark = (built_in_gpus()[name] for name in ("B200", "GB10"))

    largest = batch_defaults(b200, minor(release)).max_num_batched_tokens
    small = batch_defaults(spark, minor(release)).max_num_seqs

    assert (largest == 16_384, small == 256) == tiers


def test_the_second_runner_serves_whom_its_configuration_names(release: str) -> None:
    text = source(release, "config/vllm.py")
    runner = known_engine(minor(release)).second_runner
    has_default = "def use_v2_model_runner" in text

    assert bool(runner) == has_default
    if runner:
        assert (runner.others != "all") == ("_is_default_v2_model_runner_model" in text)
        assert (runner.others == "dense") == ("or not model_config.is_moe" in text)
        assert runner.quantized == ("not model_config.is_quantized" not in text)
        assert runner.drafts_by_ngram == ('in ("ngram", "ngram_gpu")' not in text)


@pytest.fixture
def runner(release: str) -> SecondRunner:
    found = known_engine(minor(release)).second_runner
    if found is None:
        pytest.skip("no model runs on it by default")
    return found


def test_the_sampler_of_the_second_runner_makes_as_many_copies(
    release: str, runner: SecondRunner
) -> None:
    text = source(release, "v1/worker/gpu/sample/sampler.py")
    start = text.index("def apply_sampling_params")
    head = text[start : text.index("torch.float32", start)] if "torch.float32" in text else ""
    always_wide = bool(head) and "return logits" not in head
    warms_up = "for_sampler_warmup" in source(release, "v1/worker/gpu/model_runner.py")

    expected = 3.5 if warms_up else 1.5 if always_wide else 0.5
    assert runner.sampler_copies == expected


def test_the_second_runner_estimates_graphs_where_its_source_does(
    release: str, runner: SecondRunner
) -> None:
    text = source(release, "v1/worker/gpu/model_runner.py")
    start = text.index("def profile_cudagraph_memory")
    body = text[start : text.index("def ", start + 4)]

    assert runner.estimates_graphs == ("return 0\n" not in body)


def test_what_a_runner_allocates_before_its_profile_counts_where_free_memory_does(
    release: str, runner: SecondRunner
) -> None:
    profile = source(release, "utils/mem_utils.py").partition("def memory_profiling")[2]
    assert runner.counts_buffers == ("consumed" in profile)


def test_kernels_are_timed_while_it_compiles(release: str) -> None:
    text = source(release, "config/compilation.py")
    times = bool(re.search(r'"benchmark_combo_kernel"\] = (?!False)', text))

    assert known_engine(minor(release)).constants.benchmarks_kernels == times


def test_stages_wait_for_sampled_tokens_where_its_runner_takes_them_on_the_computing_stream(
    release: str,
) -> None:
    known = known_engine(minor(release))
    first = source(release, "v1/worker/gpu_model_runner.py")
    second = source(release, "v1/worker/gpu/pp_utils.py") if is_second_in(release) else ""
    is_gated = "def _pp_receive_prev_sampled_token_ids_to_input_batch" in first

    overlaps = [
        known.overlaps_stages(schedules_async=True, has_second_runner=each)
        for each in (False, True)
    ]
    assert overlaps == [not is_gated, not is_gated or "self.broadcast_stream" in second]
    assert known.overlaps_stages(schedules_async=False, has_second_runner=False)


def is_second_in(release: str) -> bool:
    folder = unpacked(release, cache_folder() / "proof")
    return (folder / "vllm" / "v1/worker/gpu/pp_utils.py").exists()
