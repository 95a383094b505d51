"""What a row of a table of serving measurements says of its load and its engine.

Columns that a table may leave out say it; where they are empty or missing, what the note of a row
says stands in, as the tables of before had it.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tonnage.catalog.engine import batch_defaults, parse_version
from tonnage.catalog.gpu import CatalogError, Gpu

Row = Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Era:
    """How other engines, and those of before 2025, differ: how a step is driven, and by what."""

    name: str
    step_s: float | None = None
    """Of the host, for each step. None: as vLLM's now."""
    overhead_factor: float = 1.0
    sequence_factor: float = 1.0
    streaming_s: float = 0.0
    """For each sequence of a step where a server streams from the engine's own process."""
    exchange_factor: float = 1.0
    """Of the latency of all-reduces."""
    exchange_growth: float = 0.0
    """Added to the power of the group with which that latency grows."""
    first_token_s: float = 0.0
    """That a first token takes beside what vLLM's would."""
    first_token_running_s: float = 0.0
    """The same for each request that runs."""


NOW = Era(name="now")
BEFORE_2025 = frozenset({"2023", "2024"})


def era_name(row: Row) -> str:
    """Name another engine, or the time of this one: a fork of 2023, the first of 2024, or now."""
    version = row["engine_version"]
    if row["engine"] != "vllm":
        return row["engine"]
    if version.startswith("2023"):
        return "2023"
    is_first = re.match(r"2024|0\.[0-7]\.", version)
    return "2024" if is_first else "now"


REQUIRED = (
    "id", "source", "gpu", "n_gpus", "tp", "pp", "dp_or_ep", "model", "weight_quant", "kv_dtype",
    "engine", "engine_version", "isl", "osl", "concurrency_or_batch", "context_tokens", "metric",
    "note",
)  # fmt: skip
STATIC = frozenset({"decode_step_ms", "batch_e2e_ms", "prefill_ms"})
"""One batch that starts and ends together; the others are closed loops unless they say."""
ARRIVALS = ("closed", "open", "burst", "static")
REQUESTS_PER_USER = 10
"""Of InferenceX, and where a client does not say."""
WHOLE = 1.0
NOTED_LOW = 0.8
"""InferenceX draws lengths uniformly in [0.8, 1.0] of the nominal ones."""
MEAN_OF_BOUND = 0.5
OLDEST, ASYNC_SINCE = "0.0", (0, 14)
FIRST_DATED = "2026-04-03"
"""When 0.19 was first measured: builds without a number are older before. A nightly one of that day
is of what came after its branch."""
WHOLE_ANYWAY, WHOLE_MINORS = "MiniMax-M2.5", frozenset({"0.17", "0.18"})
TRITON_IS_LEFT = "flashinfer MoE and DeepGEMM off"
UTILIZATION = 0.9
DEFAULT_SEQS = 256


def check_columns(found: Sequence[str]) -> None:
    """Refuse a table that lacks a column, once.

    Raises:
        CatalogError: naming what is missing.
    """
    missing = [name for name in REQUIRED if name not in found]
    if missing:
        raise CatalogError(f"the table has no column {', '.join(missing)}")


def number(text: str) -> float:
    """Return a number, the mean where only a bound such as ``<=256`` is told, or 0 for none."""
    found = re.search(r"\d+(\.\d+)?", text)
    bound_factor = MEAN_OF_BOUND if text.startswith("<=") else 1.0
    return bound_factor * float(found[0]) if found else 0.0


def number_in(row: Row, column: str, *, noted: str | None = None) -> float | None:
    """Return the number in a column that a table may leave out; None where the row has none.

    ``noted``: what a note says it with, where the column is empty; its group is the number.

    Raises:
        CatalogError: the column holds something else.
    """
    text = (row.get(column) or "").strip()
    if not text:
        found = re.search(noted, row["note"]) if noted else None
        return float(found[1]) if found else None
    try:
        return float(text)
    except ValueError:
        raise CatalogError(f"{column} {text!r} is no number") from None


def arrival_of(row: Row) -> str:
    """Return how requests come.

    Raises:
        CatalogError: in a way that is not understood.
    """
    arrival = (row.get("arrival") or "").strip()
    if arrival and arrival not in ARRIVALS:
        raise CatalogError(f"arrival {arrival!r} is none of {', '.join(ARRIVALS)}")
    noted = "burst" if "at once" in row["note"] else "closed"
    return "static" if row["metric"] in STATIC else arrival or noted


def concurrency_of(row: Row) -> float:
    """Return how many requests are in flight; of an open loop what its rate makes of it.

    Raises:
        CatalogError: the row says neither.
    """
    found = number(row["concurrency_or_batch"])
    if not found and not (arrival_of(row) == "open" and number_in(row, "requests_per_s")):
        raise CatalogError("concurrency_or_batch is blank, and no open loop's requests_per_s")
    return found


def requests_of(row: Row, num_users: int) -> int:
    """Return how many requests the client sent, as its row says, or as many for each user."""
    found = number_in(row, "num_requests", noted=r"(\d+) (?:prompts|requests)")
    if found is None:
        return num_users if arrival_of(row) == "burst" else REQUESTS_PER_USER * num_users
    return max(num_users, int(found))


def low_fraction_of(row: Row) -> float:
    """Return the shortest length that clients draw, uniformly up to the nominal one."""
    noted = NOTED_LOW if "uniform in [0.8,1.0]" in row["note"] else WHOLE
    found = number_in(row, "length_low_fraction")
    return noted if found is None else found


def kv_pool_gib_of(row: Row) -> float | None:
    return number_in(row, "kv_pool_gib", noted=r"KV memory ([\d.]+) GiB/GPU")


def limit_of(row: Row) -> int | None:
    """Return the flag, or what a server has by itself. None: it was set to what clients ask for."""
    found = number_in(row, "max_num_seqs")
    if found is not None:
        return int(found)
    is_set = arrival_of(row) == "static" or "InferenceX" in row["note"]
    return None if is_set else DEFAULT_SEQS


def batched_tokens_of(row: Row, gpu: Gpu) -> int:
    return int(_flag(row, "max_num_batched_tokens") or batch_defaults(gpu).max_num_batched_tokens)


def utilization_of(row: Row) -> float:
    return _flag(row, "gpu_memory_utilization") or UTILIZATION


def _flag(row: Row, name: str) -> float | None:
    """Return a flag of the engine: by its column, or as the recipe in the note has it."""
    return number_in(row, name, noted=rf"\b{name} ([\d.]+)")


def minor_of(row: Row) -> str:
    """Return the version of a vLLM, by its date where it has no number; empty for the newest."""
    found = re.match(r"v?(0\.\d+)", row["engine_version"])
    if found or row["engine"] != "vllm":
        return found[1] if found else ""
    dates = re.findall(r"20\d\d-\d\d-\d\d", row["note"])
    return OLDEST if dates and dates[-1] < FIRST_DATED else ""


def keeps_experts_whole(row: Row) -> bool:
    """Tell whether ranks shared whole experts out: by the row's label, or by its recipe.

    Sources:
        [serving-measurements] InferenceX, ``minimaxm2.5_fp8_b200.sh`` and ``_h200.sh``: in March
        2026 they passed ``--enable-expert-parallel`` whatever the label said.
    """
    label = re.search(r"(?:^|;)ep(\d+)", row["dp_or_ep"])
    if label and int(label[1]) > 1:
        return True
    is_known = "InferenceX" in row["note"] and row["model"].endswith(WHOLE_ANYWAY)
    return is_known and row["engine"] == "vllm" and minor_of(row) in WHOLE_MINORS


def experts_kernels_of(row: Row, gpu: Gpu) -> str:
    """Name the kernels that a recipe has routed experts multiplied in; empty: those of the version.

    Another engine has its own.

    Sources:
        [serving-measurements] InferenceX, ``minimaxm2.5_fp8_b200.sh`` of March 2026:
        ``VLLM_USE_FLASHINFER_MOE_FP8=0``, ``VLLM_MOE_USE_DEEP_GEMM=0``. Triton's are what is left.
        ``minimaxm2.5_fp8_h200.sh`` has neither, though the notes of its rows say so.
    """
    if row["engine"] != "vllm":
        return row["engine"]
    is_left = TRITON_IS_LEFT in row["note"] and gpu.generation == "blackwell"
    return "triton" if is_left else ""


def schedules_async(row: Row) -> bool:
    """Tell whether the host prepares a step while another runs: by column, recipe or version.

    Sources:
        [vllm-source] 0.14.0: by default; [serving-measurements] recipes that switch it on before.
    """
    text = (row.get("async_scheduling") or "").strip().lower()
    if text:
        return text in {"1", "true", "yes"}
    minor = minor_of(row)
    is_noted = row["engine"] != "vllm" or "InferenceX" in row["note"]
    return is_noted or not minor or parse_version(minor) >= ASYNC_SINCE
