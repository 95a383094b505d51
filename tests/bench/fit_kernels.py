"""Fit the constants of a kernel's time on the measured tables of AIConfigurator.

    pip download --no-deps aiconfigurator-core==0.12.0
    unzip -d unpacked aiconfigurator_core-*.whl
    python tests/bench/fit_kernels.py --tables unpacked/aiconfigurator_core/systems/data > fit.toml

Needs numpy, scipy and pyarrow. The tables stay where they are: only fitted constants are written.
A kernel takes a launch time, and then moves its bytes and does its work, which overlap by a power:
1 is one after the other, a large one the longer of both. The fit is of the logarithm, soft for
rows that are far off. A benchmark runs a kernel on a few copies in turn, so small matrices come
from the cache of the GPU; such rows are left out, for an engine reads all weights in between.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import click

from tonnage.catalog.gpu import Gpu, built_in_gpus
from tonnage.units import MB, MS_PER_S

SYSTEMS = {
    "a100_sxm": "A100-80GB", "l40s": "L40S", "h100_sxm": "H100", "h200_sxm": "H200",
    "b200_sxm": "B200", "b300_sxm": "B300", "gb200": "GB200", "gb300": "GB300",
    "rtx_pro_6000_server": "RTX-PRO-6000",
}  # fmt: skip
CACHE_BYTES = {"A100-80GB": 40 * MB, "L40S": 96 * MB, "H100": 50 * MB, "H200": 50 * MB}
LARGEST_CACHE_BYTES = 128 * MB  # level 2, of the Blackwell classes
COPIES = 6  # of a matrix that a benchmark takes in turn: speed jumps at a sixth of the cache
ELEMENT_BYTES = {
    "bfloat16": 2.0, "fp8": 1.0, "fp8_block": 1.0, "int8_wo": 1.0, "nvfp4": 0.5625,
    "int4_wo": 0.53, "w4a16_mxfp4": 0.53, "w4a8_mxfp4_mxfp8": 0.53,
}  # fmt: skip
"""Of a weight, with its share of the scales."""
PRECISION = {"fp8": "fp8", "fp8_block": "fp8", "w4a8_mxfp4_mxfp8": "fp8", "nvfp4": "fp4"}
NOT_COUNTED = ((2688, 128), (2048, 512), (1024, 512), (7168, 256))
"""Hidden size and number of experts with two matrices each, or routed by groups: what a batch
reads of them is not known from the table."""
HIDDEN, Q_LORA, KV_LORA, ROPE, NOPE = 7168, 1536, 512, 64, 128
"""DeepSeek-V3, the model of the latent-attention tables."""
MOST_ROWS, LEAST_ROWS = 8000, 20
FAR_OFF, SPAN = 0.05, 5.0
"""In natural logarithms: of a row that counts less, and from where a constant starts."""
LAUNCH = {"launch_s": 1e-5}
MOVE = LAUNCH | {"bandwidth_efficiency": 0.8}
ROOFLINE = MOVE | {"compute_efficiency": 0.5}

Columns = Mapping[str, Any]
Part = Mapping[str, Any]


@dataclass(frozen=True)
class Model:
    """A formula of some constants, for those rows of a table that it is meant for."""

    keep: Any
    start: Mapping[str, float]
    predict: Callable[..., Any]


@dataclass(frozen=True)
class Kind:
    """What is fitted: on which table, of the first engine that has rows; by what it is split."""

    name: str
    path: str
    engines: Sequence[str]
    split: Sequence[str]
    model: Callable[[Columns, Gpu, Part], Model]
    only: Sequence[str] = ()
    """Values of the first column of the split; all, if none."""


def cache_bytes(gpu: Gpu) -> float:
    return CACHE_BYTES.get(gpu.name, LARGEST_CACHE_BYTES)


def peak(gpu: Gpu, dtype: str) -> float:
    return gpu.flop_per_s(PRECISION.get(dtype, "bf16"))


def gemm(rows: Columns, gpu: Gpu, part: Part) -> Model:
    """Any number of rows; weights and 16-bit activations are moved."""
    dtype, m, n, k = part["gemm_dtype"], rows["m"], rows["n"], rows["k"]
    weight_bytes = n * k * ELEMENT_BYTES[dtype]
    moved_s = (weight_bytes + 2 * m * (n + k)) / gpu.memory_bytes_per_s
    work_s = 2 * m * n * k / peak(gpu, dtype)
    # one row alone runs another, much slower kernel on Blackwell in one version
    is_sized = (m > 1) & (m <= 16384) & (n >= 256) & (k >= 256)
    return Model(
        is_sized & (COPIES * weight_bytes > cache_bytes(gpu)),
        ROOFLINE | {"overlap_power": 1.5},
        lambda i, t, e, f, p: t + ((moved_s[i] / e) ** p + (work_s[i] / f) ** p) ** (1 / p),
    )


def gemm_prefill(rows: Columns, gpu: Gpu, part: Part) -> Model:
    """Computing alone; half the efficiency is lost at the half sizes."""
    m, elements = rows["m"], rows["n"] * rows["k"]
    work_s = 2 * m * elements / peak(gpu, part["gemm_dtype"])
    return Model(
        (m >= 512) & (m <= 16384) & (rows["n"] >= 1024) & (rows["k"] >= 1024),
        {"compute_efficiency": 0.7, "half_rows": 50.0, "half_elements": 1e6},
        lambda i, f, half, size: work_s[i] * (1 + half / m[i]) * (1 + size / elements[i]) / f,
    )


def decode_attention(rows: Columns, gpu: Gpu, part: Part) -> Model:
    """Cache read, and a time for each sequence and KV head; without a window."""
    heads = rows["batch_size"] * rows["num_key_value_heads"]
    element_bytes = ELEMENT_BYTES[part["kv_cache_dtype"]]
    cache = 2 * heads * rows["head_dim"] * (rows["step"] + 1) * element_bytes
    moved_s = cache / gpu.memory_bytes_per_s
    return Model(
        (rows["window_size"] == 0) & ((cache > 1.5 * cache_bytes(gpu)) | (moved_s < 1e-6)),
        MOVE | {"per_sequence_head_s": 2e-8},
        lambda i, t, e, each: t + moved_s[i] / e + each * heads[i],
    )


def prefill_attention(rows: Columns, gpu: Gpu, part: Part) -> Model:
    """Causal half of the square; half the efficiency is lost at the half length."""
    length = rows["isl"]
    work = 2 * rows["batch_size"] * rows["num_heads"] * rows["head_dim"] * length**2
    work_s = work / peak(gpu, "bfloat16")
    return Model(
        (rows["window_size"] == 0) & (length >= 256),
        LAUNCH | {"compute_efficiency": 0.6, "half_tokens": 500.0},
        lambda i, t, f, half: t + work_s[i] * (1 + half / length[i]) / f,
    )


def mla_decode(rows: Columns, gpu: Gpu, part: Part) -> Model:
    """A whole layer's latent attention with its 16-bit projections, absorbed."""
    heads, batch, tokens = rows["num_heads"], rows["batch_size"], rows["step"] + 1
    per_head = Q_LORA * (NOPE + ROPE) + 2 * KV_LORA * NOPE + NOPE * HIDDEN
    weights = HIDDEN * (Q_LORA + KV_LORA + ROPE) + heads * per_head
    bandwidth, flop_per_s = gpu.memory_bytes_per_s, peak(gpu, "bfloat16")
    weights_s = (2 * weights / bandwidth + 2 * batch * weights / flop_per_s) / 0.8
    cache = batch * tokens * (KV_LORA + ROPE) * ELEMENT_BYTES[part["kv_cache_dtype"]]
    moved_s, work = cache / bandwidth, 2 * batch * tokens * heads * (2 * KV_LORA + ROPE)
    work_s = work / flop_per_s
    return Model(
        (cache > 1.5 * cache_bytes(gpu)) | (moved_s < 1e-6),
        ROOFLINE | {"per_sequence_s": 1e-7},
        lambda i, t, e, f, each: (
            t + weights_s[i] + (moved_s[i] / e).clip(min=work_s[i] / f) + each * batch[i]
        ),
    )


def moe(rows: Columns, gpu: Gpu, part: Part) -> Model:
    """Routing, both multiplications of the touched experts, and their sum; no exchange.

    Rows are balanced, so that the touched experts are counted; of the A100 there are skewed ones
    only, taken as uniform. Reading the experts and computing do not overlap.
    """
    dtype, tokens, experts = part["moe_dtype"], rows["num_tokens"], rows["num_experts"]
    is_balanced = rows["distribution"] == "balanced"
    uniform = experts * (1 - (1 - rows["topk"] / experts) ** tokens)
    touched = (tokens * rows["topk"]).clip(max=experts) if is_balanced.any() else uniform
    elements = 3 * rows["hidden_size"] * rows["inter_size"] / rows["moe_tp_size"]
    moved_s = touched * elements * ELEMENT_BYTES[dtype] / gpu.memory_bytes_per_s
    work_s = 2 * tokens * rows["topk"] * elements / peak(gpu, dtype)
    is_wide = rows["inter_size"] / rows["moe_tp_size"] >= 128
    keep = (rows["moe_ep_size"] == 1) & is_wide & (is_balanced == is_balanced.any())
    for hidden, count in NOT_COUNTED:
        keep = keep & ~((rows["hidden_size"] == hidden) & (experts == count))
    return Model(keep, ROOFLINE, lambda i, t, e, f: t + moved_s[i] / e + work_s[i] / f)


def all_reduce(rows: Columns, gpu: Gpu, part: Part) -> Model:
    """The faster of a one-shot and a bulk exchange, in a CUDA graph; sizes are in elements."""
    count = part["num_gpus"]
    message = rows["message_size"] * ELEMENT_BYTES["bfloat16"]
    sent_s = message * 2 * (count - 1) / count / gpu.interconnect_bytes_per_s
    keep = rows["backend"] == "vllm_graph"
    bulk = float(sent_s.max() / rows["latency"][keep].max())
    return Model(
        keep,
        LAUNCH | {"link_efficiency": bulk / 4, "bulk_extra_s": 1e-5, "bulk_link_efficiency": bulk},
        lambda i, t, e, extra, bulk: t + (sent_s[i] / e).clip(max=extra + sent_s[i] / bulk),
    )


VLLM, OTHERS = ("vllm",), ("sglang", "trtllm")
IN_GRAPH, HOST_BOUND = ("bfloat16", "fp8", "nvfp4"), ("fp8_block", "int8_wo", "int4_wo")
"""The vLLM tables of the latter hold the time in which the host starts a kernel, or have none."""
GEMM, KV = ("gemm_dtype",), ("kv_cache_dtype", "head_dim")
KINDS = (
    Kind("gemm", "gemm/gemm_perf", VLLM, GEMM, gemm, IN_GRAPH),
    Kind("gemm", "gemm/gemm_perf", OTHERS, GEMM, gemm, HOST_BOUND),
    Kind("gemm_prefill", "gemm/gemm_perf", VLLM, GEMM, gemm_prefill, IN_GRAPH),
    Kind("gemm_prefill", "gemm/gemm_perf", OTHERS, GEMM, gemm_prefill, HOST_BOUND),
    Kind("decode_attention", "attention/generation_attention_perf", VLLM, KV, decode_attention),
    Kind("prefill_attention", "attention/context_attention_perf", VLLM, KV, prefill_attention),
    Kind("mla_decode", "mla/mla_generation_module_perf", VLLM, ("gemm_type", "kv_cache_dtype"),
         mla_decode, ("bfloat16",)),
    Kind("moe", "moe/moe_perf", VLLM, ("moe_dtype",), moe),
    Kind("all_reduce", "comm/custom_allreduce_perf", VLLM, ("num_gpus",), all_reduce),
)  # fmt: skip


def version_numbers(table: Path) -> list[int]:
    digits = "".join(letter if letter.isdigit() else " " for letter in table.parent.name)
    return [int(number) for number in digits.split()]


def read(path: Path) -> Columns:
    """Return columns as arrays, a latency in seconds among them."""
    import numpy as np  # noqa: PLC0415  the suite imports this module without it
    from pyarrow import parquet  # noqa: PLC0415

    table = parquet.read_table(path)
    columns = {name: np.asarray(table[name].to_pylist()) for name in table.column_names}
    whole = {name: each.astype(float) for name, each in columns.items() if each.dtype.kind == "i"}
    latency_s = columns["latency"] / MS_PER_S
    return {"window_size": 0 * latency_s} | columns | whole | {"latency": latency_s}


def parts(rows: Columns, kind: Kind) -> Iterator[tuple[Part, Columns]]:
    """Yield the rows of each combination of the columns that a kind is split by."""
    for key in sorted({*zip(*(rows[name].tolist() for name in kind.split), strict=True)}):
        if kind.only and key[0] not in kind.only:
            continue
        mask = rows["latency"] > 0
        for name, value in zip(kind.split, key, strict=True):
            mask = mask & (rows[name] == value)
        part = dict(zip(kind.split, key, strict=True))
        yield part, {name: values[mask] for name, values in rows.items()}


def fit(model: Model, measured_s: Any) -> dict[str, float]:
    """Return the constants, and how far off the rows are, as a share of the measured time."""
    import numpy as np  # noqa: PLC0415
    from scipy.optimize import least_squares  # noqa: PLC0415

    rows = np.random.default_rng(0).permutation(np.flatnonzero(model.keep))[:MOST_ROWS]
    start = np.log([*model.start.values()])
    ceilings = [0.0 if name.endswith("efficiency") else np.inf for name in model.start]
    highest = np.minimum(start + SPAN, ceilings)
    lowest = [0.0 if name == "overlap_power" else -np.inf for name in model.start]

    def residuals(logs: Any) -> Any:
        return np.log(model.predict(rows, *np.exp(logs)) / measured_s[rows])

    bounds = (np.maximum(start - SPAN, lowest), highest)
    inside = np.minimum(start, highest - FAR_OFF)
    found = least_squares(residuals, inside, loss="soft_l1", f_scale=FAR_OFF, bounds=bounds)
    away = np.abs(np.expm1(residuals(found.x)))
    return {
        **dict(zip(model.start, np.exp(found.x).tolist(), strict=True)),
        "num_rows": float(len(rows)),
        "median_error": float(np.median(away)),
        "p90_error": float(np.quantile(away, 0.9)),
    }


def fits(tables: Path, name: str, kind: Kind) -> Iterator[dict[str, Any]]:
    """Yield the constants of one GPU for each part of the newest table that has rows."""
    gpu = built_in_gpus()[name]
    family, _, table = kind.path.partition("/")
    for engine in kind.engines:
        files = (tables / family / engine).glob(f"*/{table}.parquet")
        has_rows = False
        for path in sorted(files, key=version_numbers)[-1:]:
            source = {"engine": engine, "version": path.parent.name}
            for part, rows in parts(read(path), kind):
                model = kind.model(rows, gpu, part)
                if int(model.keep.sum()) >= LEAST_ROWS:
                    has_rows = True
                    yield source | part | fit(model, rows["latency"])
        if has_rows:
            return


def written(value: str | float) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    return f"{value:.0f}" if value == int(value) else f"{value:.3g}"


@click.command()
@click.option("--tables", type=click.Path(path_type=Path, exists=True), required=True)
def main(tables: Path) -> None:
    """Fit, and show the constants as TOML."""
    click.echo('source = "aiconfigurator"')
    for (system, gpu), kind in product(SYSTEMS.items(), KINDS):
        for row in fits(tables / system, gpu, kind):
            lines = {"gpu": gpu, "kind": kind.name} | row
            click.echo("\n[[kernels]]")
            click.echo("\n".join(f"{name} = {written(each)}" for name, each in lines.items()))


if __name__ == "__main__":
    main()
