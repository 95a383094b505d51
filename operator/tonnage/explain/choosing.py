"""The five stages by which a GPU class is chosen, as plain figures of one class."""

from collections.abc import Mapping
from typing import Final

from tonnage.explain.report import bottleneck, round_estimate
from tonnage.explain.validation import unconfirmed_figures
from tonnage.sizing.bill import tokens_per_s_asked
from tonnage.sizing.compare import Choice
from tonnage.sizing.plan import Sizing, requests_per_s_asked
from tonnage.sizing.serving.ttft import typical_ttft_s
from tonnage.units import format_bytes, significant

COUNTS: Final = frozenset({"users", "weightsBytesPerGpu", "kvCacheBytesPerGpu", "replicas", "gpus"})
"""Figures that are whole numbers."""


def stages(choice: Choice) -> dict[str, dict[str, float | str]]:
    """Return the figures of each stage. What is unknown, or does not apply, is left out."""
    sizing = choice.sizing
    unconfirmed = {each.name: each.value for each in unconfirmed_figures(sizing)}
    found: dict[str, Mapping[str, float | str | None]] = {
        "workload": _workload(sizing),
        "memory": _memory(sizing),
        "throughput": _throughput(choice),
        "cost": _cost(choice),
        "measured validation": unconfirmed,
    }
    return {name: _known(figures) for name, figures in found.items()}


def _known(figures: Mapping[str, float | str | None]) -> dict[str, float | str]:
    return {name: _rounded(name, value) for name, value in figures.items() if value is not None}


def _rounded(name: str, value: float | str) -> float | str:
    if isinstance(value, str):
        return value
    return round(value) if name in COUNTS else round_estimate(value)


def _workload(sizing: Sizing) -> dict[str, float | str | None]:
    """Return what is asked."""
    workload, slo = sizing.request.workload, sizing.request.slo
    targets = [f"TTFT {each}" for each in slo.ttft] + [f"TPOT {each}" for each in slo.tpot]
    return {
        **_demand(sizing),
        "promptTokens": workload.prompt.mean_tokens,
        "cachedPromptFraction": workload.cached_fraction,
        "outputTokens": workload.output_tokens,
        "promises": ", ".join(targets) or "nothing promised (offline)",
    }


def _demand(sizing: Sizing) -> dict[str, float | str | None]:
    rate, usual = requests_per_s_asked(sizing), sizing.request.demand.usual
    if rate is None:
        return {"demand": "not given"}
    return {
        "users": usual.num_users,
        "dutyFraction": None if usual.num_users is None else sizing.request.demand.duty_fraction,
        "requestsPerSecond": rate,
        "outputTokensPerSecond": tokens_per_s_asked(sizing),
    }


def _memory(sizing: Sizing) -> dict[str, float | str | None]:
    """Return what a GPU holds, and for how many requests that is enough."""
    return {
        "split": str(sizing.parallelism),
        "weightsBytesPerGpu": sizing.shard.weights_bytes,
        "kvCacheBytesPerGpu": sizing.replica.kv_pool_bytes,
        "concurrencyAtContextLength": sizing.memory_ceiling_longest,
        "concurrencyAtTypicalLength": sizing.memory_ceiling_typical,
    }


def memory_written(sizing: Sizing) -> str:
    """Write what a GPU holds, and for how many requests that is enough."""
    request = sizing.request
    return (
        f"{format_bytes(sizing.shard.weights_bytes)} weights and "
        f"{format_bytes(sizing.replica.kv_pool_bytes)} KV cache per GPU, for "
        f"{significant(sizing.memory_ceiling_longest)} requests of {request.context_tokens} tokens "
        f"or {significant(sizing.memory_ceiling_typical)} of the "
        f"{significant(request.workload.mean_context_tokens)} that occur"
    )


def _throughput(choice: Choice) -> dict[str, float | str | None]:
    """Return how fast a replica is within the SLO targets, and what is in the way."""
    sizing, state = choice.sizing, choice.sizing.at_capacity
    first_s = typical_ttft_s(sizing.replica, sizing.request.workload, state)
    return {
        "sloConcurrency": sizing.slo_ceiling,
        "decoding": state.num_decoding,
        "limitedBy": sizing.limited_by,
        "timePerOutputTokenSeconds": state.tpot_s,
        "timeToFirstTokenSeconds": None if sizing.request.slo.is_offline else first_s,
        "tokensPerSecond": sizing.output_tokens_per_s,
        "tokensPerSecondPerGpu": choice.tokens_per_s_per_gpu,
        "boundBy": bottleneck(sizing),
    }


def _cost(choice: Choice) -> dict[str, float | str | None]:
    """Return how many replicas there are, and for how much."""
    number = {"replicas": choice.replicas, "gpus": choice.num_gpus}
    found = choice.bill
    if found is None:
        return {**number, "price": "unknown"}
    unit = found.currency.casefold()
    return {
        **number,
        "basis": found.hour.basis,
        f"{unit}PerGpuHour": found.hour.usd,
        f"{unit}PerHour": found.usd_per_hour,
        f"{unit}PerMillionTokens": found.usd_per_million_tokens,
        f"{unit}PerMillionTokensAsked": found.usd_per_million_tokens_asked,
        f"{unit}PerHourAndUser": found.usd_per_hour_and_user,
    }
