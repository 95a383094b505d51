"""From a row of a table of start-up logs to what our arithmetic needs to know about it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from configs import Configs, config_in

from tonnage.catalog.config.formats.quantization import WEIGHT_FORMATS
from tonnage.catalog.config.read import shape_from_config
from tonnage.catalog.engine import KnownEngine, known_engine, parse_version
from tonnage.catalog.engine_memory import MemoryConstants
from tonnage.catalog.gpu import CatalogError, Gpu, built_in_gpus
from tonnage.catalog.shape import LatentAttention, ModelShape, WeightFormat
from tonnage.sizing.memory.budget import TOTAL_SPREAD, as_loaded, budget_parts
from tonnage.sizing.memory.ceiling import MemoryBudget
from tonnage.sizing.memory.layout import CacheLayout, Printed, cache_layout, default_block_tokens
from tonnage.sizing.parallelism.shard import shard_of
from tonnage.sizing.request import Flags
from tonnage.sizing.split import Parallelism
from tonnage.units import GB, GIB

Row = Mapping[str, str]

FULL_FLOAT = WeightFormat(
    name="float32", bytes_per_parameter=4.0, wide_bytes_per_parameter=4.0, compute="bf16"
)
LABELS = {
    "fp8": "fp8", "w8a8": "int8", "awq": "int4", "gptq": "int4", "int4": "int4", "nvfp4": "nvfp4",
    "mxfp4": "mxfp4",
}  # fmt: skip
"""What a label of weights means for a checkpoint whose configuration does not say it."""
FIRST_ENGINE, SECOND_ENGINE = "0.7", "0.8"
"""Versions that stand for the two, where a row names an engine that its version did not start."""
CHUNKED_FROM_TOKENS = 32_768
"""The first engine cut prefill into chunks only for longer contexts."""
WITHOUT_CHUNKS = ("V100", "T4")
IN_THE_MAKING = {"2026-03": 18, "2026-04": 20, "2026-05": 22, "2026-06": 24, "2026-07": 26,
                 "2026-08": 28, "2026-09": 30, "2026-10": 32, "2026-11": 33}  # fmt: skip
"""Minor version that images of a month were built from: dates of the files in source packages."""
LARGE_GPU_BYTES, LARGEST_GPU_BYTES = 70 * GIB, 160 * GIB


@dataclass(frozen=True, kw_only=True)
class Case:
    """One row, understood."""

    shape: ModelShape
    engine: KnownEngine
    flags: Flags
    layout: CacheLayout
    budget: MemoryBudget
    context_tokens: int

    def blocks(self, pool_bytes: float) -> int:
        return max(0, int(pool_bytes // self.layout.bytes_per_block))

    def printed(self, pool_bytes: float) -> Printed:
        pipeline = self.flags.parallelism.pipeline
        return self.layout.printed(
            self.blocks(pool_bytes),
            context_tokens=self.context_tokens,
            in_flight_tokens=self.layout.in_flight_tokens(
                self.flags.max_num_batched_tokens, pipeline
            ),
        )


def version_of(text: str) -> str:
    """Return the version of a row; one that is only dated stands for what was in the making.

    >>> version_of("0.11.0+582e4e37.nv25.11"), version_of("backport of 0.2x (2026-08-28)")
    ('0.11', '0.28')
    """
    found = re.search(r"0\.(\d+)(?![\dx])", text)
    if found:
        return f"0.{found[1]}"
    dated = re.search(r"2026-\d\d", text)
    if not dated or dated[0] not in IN_THE_MAKING:
        raise CatalogError(f"vllm_version {text!r} is neither a version nor a known month")
    return f"0.{IN_THE_MAKING[dated[0]]}"


def gpu_of(text: str) -> Gpu | None:
    """Return the class whose words all stand in the name, the most specific one."""
    words = _words(text)
    fitting = [gpu for gpu in built_in_gpus().values() if _words(gpu.name) <= words]
    return max(fitting, key=lambda gpu: len(_words(gpu.name)), default=None)


def _words(text: str) -> set[str]:
    return set(re.findall(r"[a-z0-9]+", text.lower()))


def memory_bytes_of(row: Row, gpu: Gpu | None) -> float:
    """Return the total memory: as printed, of the class, or of the size that the name gives."""
    if row["gpu_memory_gib_reported"]:
        return float(row["gpu_memory_gib_reported"]) * GIB
    if gpu:
        return gpu.memory_bytes
    size = re.search(r"(\d+) ?GB", row["gpu"])
    if not size:
        raise CatalogError(f"gpu {row['gpu']!r}: its memory is not known")
    return int(size[1]) * GB


def shape_of(row: Row, configs: Configs) -> ModelShape:
    """Return the shape; where the file does not say how it is quantized, the label does."""
    config = config_in(configs, row["model"], row["weight_quant"])
    try:
        return shape_from_config(config, name=row["model"])
    except CatalogError as error:
        if "quantization_config" not in str(error):
            raise
    del config["quantization_config"]
    return shape_from_config(config, name=row["model"])


def weights_of(shape: ModelShape, label: str) -> WeightFormat:
    if "float32" in label:
        return FULL_FLOAT
    if shape.weight_format.name not in {"bf16", "fp16"} or label.startswith("none"):
        return shape.weight_format
    for word, name in LABELS.items():
        if word in label.lower():
            return WEIGHT_FORMATS[name]
    raise CatalogError(f"weight_quant {label!r} is not understood")


def kv_element_bytes(row: Row, shape: ModelShape) -> int:
    asked = row["kv_cache_dtype"]
    if asked.startswith("fp8") or (asked == "auto" and shape.kv_cache_format == "fp8"):
        return 1
    return 4 if "float32" in row["weight_quant"] else 2


def flags_of(row: Row, engine: KnownEngine, memory_bytes: float, *, may_chunk: bool) -> Flags:
    seqs, tokens = default_batch(row, engine, memory_bytes, may_chunk=may_chunk)
    seqs = int(row["max_num_seqs"] or seqs)
    return Flags(
        max_num_seqs=seqs,
        max_num_batched_tokens=max(seqs, int(row["max_num_batched_tokens"] or tokens)),
        gpu_memory_utilization=float(
            row["gpu_memory_utilization"] or engine.constants.gpu_memory_utilization
        ),
        parallelism=Parallelism(
            tensor=int(row["tp"]), pipeline=int(row["pp"]), data=int(row["dp"])
        ),
    )


def default_batch(
    row: Row, engine: KnownEngine, memory_bytes: float, *, may_chunk: bool
) -> tuple[int, int]:
    """Return what a server takes for sequences and batched tokens when it is told nothing."""
    _, minor = parse_version(engine.minor)
    length = int(row["max_model_len"] or 0)
    if row["engine"] == "v0":
        if length <= CHUNKED_FROM_TOKENS or not may_chunk:
            return 256, max(length, 2048)
        return 256, 512 if minor < 7 else 2048
    if memory_bytes >= LARGEST_GPU_BYTES and minor >= 28:
        return 1024, 16384
    is_small_a100 = "A100" in row["gpu"] and minor >= 9
    return (1024, 8192) if memory_bytes >= LARGE_GPU_BYTES and not is_small_a100 else (256, 2048)


def memory_of(
    row: Row, engine: KnownEngine, memories: Sequence[MemoryConstants]
) -> MemoryConstants:
    """Return the constants for the engine that a row names."""
    version = parse_version(engine.minor)
    if row["engine"] == "v0":
        version = parse_version(FIRST_ENGINE)
    elif version < parse_version(SECOND_ENGINE):
        version = parse_version(SECOND_ENGINE)
    return [each for each in memories if parse_version(each.since) <= version][-1]


def case_of(row: Row, configs: Configs, memories: Sequence[MemoryConstants]) -> Case:
    """Read a row.

    Raises:
        CatalogError, SizingError, KeyError: something in it is not understood.
    """
    engine = known_engine(version_of(row["vllm_version"]))
    shape, gpu = shape_of(row, configs), gpu_of(row["gpu"])
    is_latent = any(isinstance(each, LatentAttention) for _, each in shape.attentions())
    memory_bytes = memory_bytes_of(row, gpu)
    may_chunk = not is_latent and not any(name in row["gpu"] for name in WITHOUT_CHUNKS)
    flags = flags_of(row, engine, memory_bytes, may_chunk=may_chunk)
    rules = engine.constants.cache
    if row["engine"] == "v0":
        rules = replace(rules, manages_windows=False)
    weights = weights_of(shape, row["weight_quant"])
    shard = shard_of(
        shape,
        weights=weights,
        kv_element_bytes=kv_element_bytes(row, shape),
        parallelism=flags.parallelism,
        rules=rules,
    )
    parts = budget_parts(
        as_loaded(shape, weights),
        shard,
        flags,
        memory_of(row, engine, memories),
        has_nvlink=bool(gpu and gpu.interconnect == "nvlink"),
    )
    has_states = any(share.state_bytes for share in shard.kv)
    block_tokens = default_block_tokens(shape)
    if row["block_size"] and not has_states:
        block_tokens = int(row["block_size"])
    return Case(
        shape=shape,
        engine=engine,
        flags=flags,
        layout=cache_layout(shard.kv, block_tokens=block_tokens, rules=rules),
        budget=MemoryBudget(
            total_bytes=memory_bytes,
            total_spread_bytes=0.0
            if row["gpu_memory_gib_reported"]
            else memory_bytes * TOTAL_SPREAD,
            utilization_fraction=flags.gpu_memory_utilization,
            parts=tuple(
                part
                for part in parts
                if part.name != "CUDA graphs" or row["enforce_eager"] != "True"
            ),
        ),
        context_tokens=int(row["max_model_len"] or shape.max_position_tokens or 4096),
    )
