"""The fitted constants as the files that the catalogue and the benchmark read."""

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from speed_formula import Values, bandwidth_value, launch_s_of, prefill_values
from speed_priors import (
    ALL_REDUCE_GROWTH,
    BANDWIDTH,
    BULK_EXTRA_S,
    CACHE_BANDWIDTH,
    CACHED_HEAD_S,
    CUTLASS_BLOCK_S,
    CUTLASS_EXPERT_S,
    CUTLASS_EXPERTS,
    EXPERTS_BANDWIDTH,
    EXPERTS_FLOOR_S,
    EXPERTS_PREFILL,
    EXPOSED,
    LAUNCH_SCALE,
    LAUNCHES_SINCE,
    LINK_EFFICIENCY,
    MEASURED,
    MEASURED_ATTENTION,
    MEASURED_LAYERS,
    OLD_EXCHANGE_GROWTH,
    ONE_SHOT,
    OVERLAP_POWER,
    SECOND_RUNNER_SEQUENCE_S,
    SEQUENCES_MEASURED,
    SMALLEST_KERNEL_S,
    SPREADS,
    UNMEASURED,
)
from speed_row import NOW, Era

from tonnage.catalog.engine_speed import SpeedTable

FLAT = frozenset(
    {
        "compute_efficiency",
        "per_prompt_token_s",
        "per_request_s",
        "per_running_request_s",
        "routing_evenness",
    }
)
"""Constants that are fitted and depend on nothing."""
HEADER = """# Where the constants of the step-time formula start, before any is learned.
# Written by tests/bench/fit_speed.py on {num_rows} public measurements of vLLM, with physics as
# the prior. Do not edit by hand. Seconds, and shares of the nominal figures.
"""


def table_of(values: Values) -> SpeedTable:
    """Return the constants as the catalogue keeps them."""

    def group(prefix: str) -> dict[str, float]:
        start = f"{prefix}."
        return {k.removeprefix(start): v for k, v in values.items() if k.startswith(start)}

    scaled = group("per_scaled_product_s")
    per_kernel_s = values["per_kernel_s"]
    slower = per_kernel_s / SMALLEST_KERNEL_S
    return SpeedTable(
        source="serving-measurements",
        constants={
            "per_sequence_limit": SEQUENCES_MEASURED,
            "prefill_exposed_fraction": EXPOSED,
            "overlap_power": OVERLAP_POWER,
            "cutlass_block_s": slower * CUTLASS_BLOCK_S,
            "cutlass_expert_s": slower * CUTLASS_EXPERT_S,
            **{name: value for name, value in values.items() if name in FLAT},
        },
        by_generation={
            "per_kernel_s": {name: per_kernel_s * each for name, each in LAUNCH_SCALE.items()},
            "per_cached_head_s": CACHED_HEAD_S,
        },
        by_interconnect={
            "per_all_reduce_s": group("per_all_reduce_s"),
            "all_reduce_growth": ALL_REDUCE_GROWTH,
        },
        of_own_links={"one_shot_efficiency": ONE_SHOT, "bulk_extra_s": BULK_EXTRA_S},
        experts_served_share=values["experts_served_share"],
        per_experts_block_s={
            generation: {name: slower * floor_s for name, floor_s in by_format.items()}
            for generation, by_format in EXPERTS_FLOOR_S.items()
        },
        cutlass_experts=CUTLASS_EXPERTS,
        experts_bandwidth_efficiency=EXPERTS_BANDWIDTH,
        experts_prefill=EXPERTS_PREFILL,
        bandwidth_efficiency={
            generation: {
                name: bandwidth_value(values, f"{generation}.{name}") for name in by_format
            }
            for generation, by_format in BANDWIDTH.items()
        },
        cache_bandwidth_efficiency=CACHE_BANDWIDTH,
        per_step_s=group("per_step_s"),
        per_sequence_s={**group("per_sequence_s"), "second": SECOND_RUNNER_SEQUENCE_S},
        prefill_launch_s={since: launch_s_of(values, since) for since in LAUNCHES_SINCE},
        per_scaled_product_s={**scaled, "int8": scaled["fp8"]},
        link_efficiency=LINK_EFFICIENCY,
        prefill_efficiency=prefill_values(values),
        measured=MEASURED,
        measured_attention=MEASURED_ATTENTION,
        measured_layers=MEASURED_LAYERS,
        spread_fraction=SPREADS,
        unmeasured_fraction=UNMEASURED,
    )


def eras_of(values: Values) -> dict[str, Era]:
    return {
        "now": NOW,
        "2023": Era(
            name="2023",
            step_s=values["era.2023.step"],
            exchange_factor=values["era.2023.exchange"],
            exchange_growth=OLD_EXCHANGE_GROWTH,
        ),
        "2024": Era(
            name="2024",
            step_s=values["era.2024.step"],
            sequence_factor=values["era.2024.sequence"],
            streaming_s=values["era.2024.streaming"],
        ),
    }


def as_toml(table: SpeedTable, values: Values, num_rows: int) -> str:
    """Return the file that the catalogue reads."""
    lines = [HEADER.format(num_rows=num_rows), f'source = "{table.source}"']
    nested: list[str] = []
    for name, value in asdict(table).items():
        if isinstance(value, tuple):
            lines.append(f"{name} = {json.dumps(value)}")
        elif isinstance(value, int):
            lines.append(f"{name} = {value}")
        elif isinstance(value, float):
            lines.append(f"{name} = {value:.4g}")
        elif isinstance(value, dict):
            nested += _table_lines(name, value)
    return "\n".join([*lines, *nested]) + "\n"


def _table_lines(name: str, value: Mapping[str, Any]) -> list[str]:
    inner = {key: each for key, each in value.items() if isinstance(each, dict)}
    if inner:
        return [
            line
            for key, each in inner.items()
            for line in _table_lines(f"{name}.{_key(key)}", each)
        ]
    return ["", f"[{name}]", *(f"{_key(key)} = {_written(each)}" for key, each in value.items())]


def _written(value: float | str | tuple[str, ...]) -> str:
    return json.dumps(value) if isinstance(value, str | tuple) else f"{value:.4g}"


def _key(name: str) -> str:
    return json.dumps(name) if "." in name else name


def eras_toml(eras_by_name: Mapping[str, Era]) -> str:
    return "\n".join(_era_lines(era) for era in eras_by_name.values() if era is not NOW)


def _era_lines(era: Era) -> str:
    figures = {field.name: getattr(era, field.name) for field in fields(era)}
    del figures["name"]
    lines = [f"{name} = {value:.4g}" for name, value in figures.items() if value is not None]
    return "\n".join([f"[{json.dumps(era.name)}]", *lines]) + "\n"
