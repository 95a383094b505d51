"""The five aspects by which a GPU class is chosen, as figures of one class."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from tonnage.explain.cost_words import full_use, missing_price, tokens_per_day
from tonnage.explain.report import bottleneck, rate_written, round_estimate
from tonnage.explain.validation import unconfirmed_figures
from tonnage.sizing.bill import tokens_per_s_asked
from tonnage.sizing.compare import Choice
from tonnage.sizing.cost import amount
from tonnage.sizing.plan import Sizing, requests_per_s_asked
from tonnage.sizing.serving.ttft import typical_ttft_s
from tonnage.units import count_of, format_bytes, format_s, significant


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFigure:
    """One figure: its name as data has it, its value, and both as a person reads it."""

    name: str
    value: float | str
    written: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Aspect:
    """One aspect and its figures. What is unknown, or does not apply, is left out."""

    name: str
    figures: tuple[KeyFigure, ...]

    def __str__(self) -> str:
        return ", ".join(figure.written for figure in self.figures)

    def to_dict(self) -> dict[str, float | str]:
        return {figure.name: figure.value for figure in self.figures}


def aspects(choice: Choice) -> tuple[Aspect, ...]:
    """Return the aspects of one class, in order; JSON calls them stages."""
    return tuple(Aspect(name=name, figures=tuple(each(choice))) for name, each in ASPECTS.items())


def _workload(choice: Choice) -> Iterator[KeyFigure]:
    """What is asked."""
    sizing, request = choice.sizing, choice.sizing.request
    workload = request.workload
    yield from _demand(sizing)
    prompt, cached, output = (
        workload.prompt.mean_tokens, workload.cached_fraction, workload.output_tokens
    )  # fmt: skip
    yield _figure("promptTokens", prompt, f"{significant(prompt)} prompt tokens")
    yield _figure("cachedPromptFraction", cached, f"{cached:.0%} of them cached")
    yield _figure("outputTokens", output, f"{significant(output)} output tokens")
    targets = [f"TTFT {each}" for each in request.slo.ttft]
    targets += [f"TPOT {each}" for each in request.slo.tpot]
    value = ", ".join(targets) or "nothing promised (offline)"
    yield KeyFigure(name="promises", value=value, written=", ".join(targets) or "no SLO (offline)")


def _demand(sizing: Sizing) -> Iterator[KeyFigure]:
    rate, tokens_per_s = requests_per_s_asked(sizing), tokens_per_s_asked(sizing)
    if rate is None or tokens_per_s is None:
        yield KeyFigure(name="demand", value="not given", written="no demand given")
        return
    demand, is_offline = sizing.request.demand, sizing.request.slo.is_offline
    if (num_users := demand.usual.num_users) is not None:
        yield _count("users", num_users, count_of(f"{num_users:.0f}", "user"))
        duty = demand.duty_fraction
        yield _figure("dutyFraction", duty, f"in flight {duty:.0%} of the time")
    yield _figure("requestsPerSecond", rate, rate_written(sizing, rate))
    per_s = f"{significant(tokens_per_s)} output tokens/s"
    written = tokens_per_day(tokens_per_s) if is_offline else per_s
    yield _figure("outputTokensPerSecond", tokens_per_s, written)


def _memory(choice: Choice) -> Iterator[KeyFigure]:
    """Does it fit, and how many requests?"""
    sizing, split = choice.sizing, choice.sizing.flags.parallelism
    weights, pool = sizing.shard.weights_bytes, sizing.replica.kv_pool_bytes
    held, typical = sizing.memory_ceiling_longest, sizing.memory_ceiling_typical
    context = sizing.request.context_tokens
    mean = sizing.request.workload.mean_context_tokens
    yield KeyFigure(name="split", value=str(split), written=f"split {split}")
    yield _count("weightsBytesPerGpu", weights, f"{format_bytes(weights)} weights per GPU")
    yield _count("kvCacheBytesPerGpu", pool, f"{format_bytes(pool)} KV cache per GPU")
    yield _figure(
        "concurrencyAtContextLength", held, f"{significant(held)} requests of {context} tokens"
    )
    yield _figure(
        "concurrencyAtTypicalLength",
        typical,
        f"{significant(typical)} of the {significant(mean)} that occur",
    )


def _throughput(choice: Choice) -> Iterator[KeyFigure]:
    """How fast within the SLO targets, and what is in the way?"""
    sizing, state = choice.sizing, choice.sizing.at_capacity
    first_s = typical_ttft_s(sizing.replica, sizing.request.workload, state)
    per_s, per_gpu = sizing.output_tokens_per_s, choice.tokens_per_s_per_gpu
    at = f"{significant(state.num_decoding)} decoding at the {full_use(sizing)}"
    if sizing.slo_ceiling is not None:
        ceiling = sizing.slo_ceiling
        yield _figure("sloConcurrency", ceiling, f"TPOT allows {significant(ceiling)} decoding")
    yield _figure("decoding", state.num_decoding, at)
    yield KeyFigure(name="limitedBy", value=sizing.limited_by, written=f"limit {sizing.limited_by}")
    yield _figure("timePerOutputTokenSeconds", state.tpot_s, f"TPOT {format_s(state.tpot_s)}")
    if not sizing.request.slo.is_offline:
        yield _figure("timeToFirstTokenSeconds", first_s, f"TTFT {format_s(first_s)}")
    yield _figure("tokensPerSecond", per_s, f"{significant(per_s)} output tokens/s")
    yield _figure("tokensPerSecondPerGpu", per_gpu, f"{significant(per_gpu)} per GPU")
    bound = bottleneck(sizing)
    yield KeyFigure(name="boundBy", value=bound, written=f"bound by {bound}")


def _cost(choice: Choice) -> Iterator[KeyFigure]:
    """How many, and for how much?"""
    found, each = choice.bill, choice.sizing.flags.parallelism.num_gpus
    yield _count("replicas", choice.replicas, f"{choice.replicas} x {count_of(each, 'GPU')}")
    yield _count("gpus", choice.num_gpus, f"{count_of(choice.num_gpus, 'GPU')} in all")
    if found is None:
        missing = missing_price(choice.gpu, each)
        yield KeyFigure(name="price", value="unknown", written=f"no price: {missing}")
        return
    unit = found.currency
    hour, per_million = found.hour, found.usd_per_million_tokens
    asked, user = found.usd_per_million_tokens_asked, found.usd_per_hour_and_user
    parts = f" ({hour.rent.basis if hour.rent else hour.parts})"
    yield KeyFigure(name="basis", value=hour.basis, written=f"{hour.basis}{parts}")
    yield _figure(
        _money("usdPerGpuHour", unit), hour.usd, f"{amount(hour.usd)} {unit} per GPU and hour"
    )
    yield _figure(
        _money("usdPerHour", unit),
        found.usd_per_hour,
        f"{found.usd_per_hour:.2f} {unit} per hour in all",
    )
    yield _figure(
        _money("usdPerMillionTokens", unit),
        per_million,
        f"{per_million:.2f} {unit} per million output tokens at the {full_use(choice.sizing)}",
    )
    if asked is not None:
        yield _figure(
            _money("usdPerMillionTokensAsked", unit), asked, f"{asked:.2f} for those asked"
        )
    if user is not None:
        yield _figure(
            _money("usdPerHourAndUser", unit), user, f"{user:.4f} {unit} per hour and user"
        )


def _money(name: str, currency: str) -> str:
    """Name a figure after the currency that it is in.

    >>> _money("usdPerHour", "EUR")
    'eurPerHour'
    """
    return name.replace("usd", currency.casefold(), 1)


def _validation(choice: Choice) -> Iterator[KeyFigure]:
    """Is it true? What only a measurement can say."""
    for each in unconfirmed_figures(choice.sizing):
        yield KeyFigure(name=each.name, value=each.value, written=each.name)


ASPECTS: Final[dict[str, Callable[[Choice], Iterator[KeyFigure]]]] = {
    "workload": _workload,
    "memory": _memory,
    "throughput": _throughput,
    "cost": _cost,
    "measured validation": _validation,
}


def _figure(name: str, value: float, written: str) -> KeyFigure:
    return KeyFigure(name=name, value=round_estimate(value), written=written)


def _count(name: str, value: float, written: str) -> KeyFigure:
    return KeyFigure(name=name, value=round(value), written=written)
