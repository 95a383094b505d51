"""From a row of a table of start-up logs to what our arithmetic needs to know about it."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from configs import Configs, config_in, with_encoders
from memory_columns import OWN, whole_row

from tonnage.catalog.cache_types import CACHE_TYPES, CacheType, StoredCache
from tonnage.catalog.config.formats.quantization import WEIGHT_FORMATS
from tonnage.catalog.config.read import shape_from_config
from tonnage.catalog.engine import (
    KnownEngine,
    MemoryConstants,
    batch_defaults,
    known_engine,
    parse_version,
)
from tonnage.catalog.gpu import (
    CatalogError,
    Gpu,
    boards_named,
    built_in_gpus,
    same_model,
    size_gb,
    words,
)
from tonnage.catalog.models import built_in_model
from tonnage.catalog.shape import (
    LatentAttention,
    LayerGroup,
    ModelShape,
    StateAttention,
    WeightFormat,
)
from tonnage.sizing.memory.budget import (
    TOTAL_SPREAD,
    as_loaded,
    board_parts,
    budget_parts,
    total_more_bytes,
)
from tonnage.sizing.memory.ceiling import GRAPHS, BudgetPart, GivenPool, MemoryBudget, Server
from tonnage.sizing.memory.layout import (
    CacheLayout,
    LoggedFigures,
    cache_layout,
    default_block_tokens,
)
from tonnage.sizing.memory.starts import StartFigures
from tonnage.sizing.parallelism.shard import shard_of
from tonnage.sizing.request import Flags, kv_cache_format
from tonnage.sizing.split import Parallelism
from tonnage.units import GB, GIB

Row = Mapping[str, str]

FULL_FLOAT = WeightFormat(
    name="float32", bytes_per_parameter=4.0, wide_bytes_per_parameter=4.0, compute="bf16"
)
LABELS = {
    "nvfp4": "nvfp4", "mxfp4": "mxfp4", "fp4": "nvfp4", "w4a8": "int4", "w4a16": "int4",
    "int4": "int4", "4bit": "int4", "4-bit": "int4", "nf4": "int4", "awq": "int4",
    "autoround": "int4", "auto-round": "int4", "fp8": "fp8", "mxfp8": "fp8", "int8": "int8",
    "w8a8": "int8", "w8a16": "int8", "8bit": "int8", "8-bit": "int8", "gptq": "int4",
}  # fmt: skip
"""What a label of weights means for a checkpoint whose configuration does not say it. The first
that stands in it counts."""
WIDE = ("bf16", "bfloat16", "fp16", "float16", "half")
UNKNOWN_BOARD = 0.98
"""Of its size in GiB, a board without error correction reports at most this."""
FIRST_ENGINE, SECOND_ENGINE = "0.7", "0.8"
"""Versions that stand for the two, where a row names an engine that its version did not start."""
CHUNKED_FROM_TOKENS = 32_768
"""The first engine cut prefill into chunks only for longer contexts."""
WITHOUT_CHUNKS = ("V100", "T4")
MID_MONTH = "15"
"""Of a month without a day."""
SNAPSHOT_SINCE = "0.10"
"""Since then only what the engine itself took counts."""
DESKTOP_BYTES = 1.5 * GIB


@dataclass(frozen=True, kw_only=True)
class Case:
    """One row, understood."""

    shape: ModelShape
    engine: KnownEngine
    flags: Flags
    layout: CacheLayout
    budget: MemoryBudget
    context_tokens: int
    captures_decode: bool

    @property
    def start_figures(self) -> StartFigures:
        """What decides whether it starts."""
        budget = self.budget
        return StartFigures(
            engine=self.engine,
            budget=budget,
            layout=self.layout,
            flags=self.flags,
            pool_range_bytes=(budget.kv_pool_low_bytes, budget.kv_pool_high_bytes),
            captures_decode=self.captures_decode,
            num_layers=self.shape.num_layers,
            context_tokens=self.context_tokens,
        )

    @property
    def in_flight_tokens(self) -> float:
        flags = self.flags
        return self.layout.in_flight_tokens(
            flags.max_num_batched_tokens, flags.parallelism.pipeline
        )

    def printed(self, pool_bytes: float) -> LoggedFigures:
        return self.layout.logged_figures(
            max(0, int(pool_bytes // self.layout.bytes_per_block)),
            context_tokens=self.context_tokens,
            in_flight_tokens=self.in_flight_tokens,
        )


def version_of(text: str) -> str:
    """Return the version of a row; one that is only dated stands for what was in the making.

    >>> version_of("0.11.0+582e4e37.nv25.11"), version_of("backport of 0.2x (2026-08-28)")
    ('0.11', '0.29')
    """
    found = re.search(r"(?<![\d.])0\.(\d+)(?![\dx])", text)
    if found:
        return f"0.{found[1]}"
    dated = re.search(r"(20\d\d-\d\d)(-\d\d)?", text)
    if not dated:
        raise CatalogError(f"vllm_version {text!r} is neither a version nor a date")
    day = dated[0] if dated[2] else f"{dated[1]}-{MID_MONTH}"
    build = "latest" if text.startswith("latest") else "nightly"
    major, minor = parse_version(f"{build}@{day}")
    return f"{major}.{minor}"


def is_first_engine(row: Row) -> bool:
    """Tell which of the two engines ran; a blank cell means the default of the version."""
    if row["engine"]:
        return row["engine"].lower() == "v0"
    return parse_version(version_of(row["vllm_version"])) < parse_version(SECOND_ENGINE)


def boards_of(text: str) -> tuple[Gpu, ...]:
    """Return the classes that a name may mean, with the memory that it says; the usual one first.

    Boards of one split may differ: the one with the least memory counts.
    """
    each = [_boards(part) for part in re.split(r"\s*(?:\+|&|\band\b)\s*", text)]
    known = [boards for boards in each if boards]
    return min(known, key=lambda boards: boards[0].memory_bytes, default=())


def _boards(text: str) -> tuple[Gpu, ...]:
    gpus, text = built_in_gpus(), re.sub(r"\(.*?\)", "", text)  # in brackets: where it was seen
    named = boards_named(text, gpus)
    if named:
        extra = {gpu.name: len(words(gpu.name) - words(text)) for gpu in named}
        return tuple(sorted(named, key=lambda gpu: (extra[gpu.name], -gpu.memory_bytes)))
    size = size_gb(text)
    if size is None:
        return ()
    return tuple(
        replace(gpu, memory_bytes=int(total_of(size)), nominal_memory_bytes=size * int(GB))
        for gpu in same_model(text, gpus)
    )


def total_of(size: int) -> float:
    """Return what drivers report for boards of this brochure size: the least of the catalogue's."""
    alike = [
        gpu.memory_bytes
        for gpu in built_in_gpus().values()
        if gpu.nominal_memory_bytes == size * GB
    ]
    return min(alike, default=size * GB)


def gpu_of(text: str) -> Gpu | None:
    """Return the most likely class; None: no known board has the name."""
    return next(iter(boards_of(text)), None)


def memories_of(row: Row) -> list[float]:
    """Return the total memory, most likely first: as printed, of the classes, or by the size.

    Raises:
        CatalogError: nothing says it.
    """
    if row["gpu_memory_gib_reported"]:
        return [float(row["gpu_memory_gib_reported"]) * GIB]
    boards = boards_of(row["gpu"])
    if boards:
        return list(dict.fromkeys(float(gpu.memory_bytes) for gpu in boards))
    size = size_gb(row["gpu"])
    if size is None:
        raise CatalogError(f"gpu {row['gpu']!r}: its memory is not known")
    return [total_of(size), size * GB, UNKNOWN_BOARD * size * GIB]


def shape_of(row: Row, configs: Configs) -> ModelShape:
    """Return the shape; where the file does not say how it is quantized, the label does.

    A model that is not among the files may be one of the catalogue.
    """
    if row["model"] not in configs["models"]:
        return built_in_model(row["model"])
    config = config_in(configs, row["model"], row["weight_quant"])
    try:
        return with_encoders(shape_from_config(config, name=row["model"]))
    except CatalogError as error:
        if "quantization_config" not in str(error):
            raise
    del config["quantization_config"]
    return with_encoders(shape_from_config(config, name=row["model"]))


def weights_of(shape: ModelShape, label: str) -> WeightFormat:
    """Return how the weights are stored: as the file says, else as the label of the row does.

    Of two formats in one label the narrower one is that of the experts, where there are any.
    """
    if "float32" in label or "fp32" in label:
        return FULL_FLOAT
    if shape.weight_format.name not in {"bf16", "fp16"} or not _says_format(label):
        return shape.weight_format
    named = [_format(part, label) for part in re.split(r"\s*(?:\+|/| and )\s*", label)]
    found = sorted({each.name: each for each in named}.values(), key=_width)
    if len(found) == 1:
        return found[0]
    if shape.has_experts:
        return found[-1].with_parts({"experts": found[0]})
    return found[0]


def _width(weights: WeightFormat) -> float:
    return weights.bytes_per_parameter


def _says_format(label: str) -> bool:
    return label.lower().split(" ")[0].strip("(),") not in {"", "none", "no", "-", "auto", *WIDE}


def _format(part: str, label: str) -> WeightFormat:
    text = part.lower()
    if any(word in text for word in WIDE):
        return WEIGHT_FORMATS["bfloat16"]
    for word, name in LABELS.items():
        if word in text:
            return WEIGHT_FORMATS[name]
    raise CatalogError(f"weight_quant {label!r} is not understood")


def cache_type_of(row: Row, shape: ModelShape) -> CacheType:
    """Return the type of a row's cache: 32 bits where the weights have them."""
    asked = row["kv_cache_dtype"].lower() or "auto"
    if asked == "auto" and "float32" in row["weight_quant"]:
        return CacheType(name="fp32", key_bits=32, value_bits=32)
    if asked == "auto":
        return CACHE_TYPES[kv_cache_format("auto", shape, "0.33")]
    if asked in CACHE_TYPES:
        return CACHE_TYPES[asked]
    if asked.startswith(("fp8", "int8", "float8")):
        return CACHE_TYPES["fp8"]
    if any(asked.startswith(word) for word in WIDE):
        return CACHE_TYPES["bf16"]
    raise CatalogError(f"kv_cache_dtype {row['kv_cache_dtype']!r} is not understood")


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
    if is_first_engine(row):
        if length <= CHUNKED_FROM_TOKENS or not may_chunk:
            return 256, max(length, 2048)
        return 256, 512 if minor < 7 else 2048
    gpu = gpu_of(row["gpu"]) or built_in_gpus()["L40S"]  # a board without a rule of its own
    defaults = batch_defaults(replace(gpu, memory_bytes=int(memory_bytes)), engine.minor)
    return defaults.max_num_seqs, defaults.max_num_batched_tokens


def memory_of(
    row: Row, engine: KnownEngine, memories: Sequence[MemoryConstants]
) -> MemoryConstants:
    """Return the constants for the engine that a row names."""
    first, second = parse_version(FIRST_ENGINE), parse_version(SECOND_ENGINE)
    version = first if is_first_engine(row) else max(second, parse_version(engine.minor))
    return [each for each in memories if parse_version(each.since) <= version][-1]


def case_of(
    row: Row,
    configs: Configs,
    memories: Sequence[MemoryConstants],
    *,
    memory_bytes: float | None = None,
) -> Case:
    """Read a row; ``memory_bytes``: of another board that may be meant.

    Raises:
        CatalogError, SizingError, KeyError: something in it is not understood.
    """
    row = whole_row(row)
    engine = known_engine(version_of(row["vllm_version"]))
    shape, gpu = with_drafts(shape_of(row, configs), row["draft_layers"]), gpu_of(row["gpu"])
    is_latent = any(isinstance(each, LatentAttention) for _, each in shape.attentions())
    memory_bytes = memory_bytes or memories_of(row)[0]
    may_chunk = not is_latent and not any(name in row["gpu"] for name in WITHOUT_CHUNKS)
    flags = flags_of(row, engine, memory_bytes, may_chunk=may_chunk)
    rules = engine.constants.cache
    if is_first_engine(row):
        rules = replace(rules, manages_windows=False)
    if row["prefix_caching"]:
        rules = replace(rules, state_blocks=1 + (row["prefix_caching"].lower() == "true"))
    weights, cache = weights_of(shape, row["weight_quant"]), cache_type_of(row, shape)
    shard = shard_of(
        shape,
        weights=weights,
        cache=StoredCache(type=cache),
        parallelism=flags.parallelism,
        rules=rules,
    )
    parts = budget_parts(
        as_loaded(shape, weights),
        shard,
        flags,
        Server(
            engine=replace(engine, memory=memory_of(row, engine, memories)),
            gpu=gpu,
            cache=cache,
        ),
    )
    has_states = any(share.state_bytes for share in shard.kv)
    block_tokens = default_block_tokens(shape)
    if row["block_size"] and not has_states:
        block_tokens = int(row["block_size"])
    layout = cache_layout(shard.kv, block_tokens=block_tokens, rules=rules)
    is_eager = row["enforce_eager"].lower() == "true"
    is_reported = bool(row["gpu_memory_gib_reported"])
    return Case(
        shape=shape,
        engine=engine,
        flags=flags,
        layout=layout,
        budget=MemoryBudget(
            total_bytes=memory_bytes,
            total_spread_bytes=0.0 if is_reported else memory_bytes * TOTAL_SPREAD,
            total_more_bytes=0.0 if is_reported or not gpu else total_more_bytes(gpu),
            utilization_fraction=flags.gpu_memory_utilization,
            parts=(
                *(part for part in parts if part.name != GRAPHS or not is_eager),
                *(board_parts(gpu, shard.weights_bytes, engine) if gpu else ()),
                *desktop_parts(row, gpu, engine),
            ),
            given_pool=given_pool(row),
        ),
        captures_decode=not is_eager,
        context_tokens=int(row["max_model_len"] or shape.max_position_tokens or 4096),
    )


def given_pool(row: Row) -> GivenPool | None:
    if not row["kv_pool_gib"]:
        return None
    return GivenPool(flag="kv_pool_gib", num_bytes=float(row["kv_pool_gib"]) * GIB)


def desktop_parts(row: Row, gpu: Gpu | None, engine: KnownEngine) -> Iterator[BudgetPart]:
    """Yield what a desktop holds: early builds of the second engine counted it as their own.

    Sources:
        [vllm-source] v1/worker/gpu_worker.py determine_available_memory, until 0.9.
    """
    is_early = parse_version(engine.minor) < parse_version(SNAPSHOT_SINCE)
    if gpu and gpu.is_consumer and is_early and not is_first_engine(row):
        yield BudgetPart(
            name="desktop", num_bytes=0.0, more_bytes=DESKTOP_BYTES, cause="a desktop on the board"
        )


def with_drafts(shape: ModelShape, layers: str) -> ModelShape:
    """Return the shape with layers that draft tokens: like its last one that keeps every token."""
    num_layers = shape.num_draft_layers if layers == OWN else int(layers)
    full = [group for group in shape.groups if _keeps_tokens(group)]
    if not num_layers or not full:
        return shape
    return replace(shape, groups=(*shape.groups, replace(full[-1], num_layers=num_layers)))


def _keeps_tokens(group: LayerGroup) -> bool:
    attention = group.attention
    return (
        attention is not None
        and getattr(attention, "window_tokens", None) is None
        and not (isinstance(attention, StateAttention))
    )
