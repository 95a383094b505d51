"""How other engines, and those of other times, differ from the vLLM of now."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

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
