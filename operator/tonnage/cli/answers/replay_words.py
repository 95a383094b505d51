"""A replay in words and cells: what text and page say alike."""

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Final

from tonnage.cli.answers.replays import PERCENT, Case, Fared, Question, Replays
from tonnage.control.input.times import rfc3339
from tonnage.replay.judge import FEWEST_OF_AN_HOUR, Judged, Limits
from tonnage.replay.policies import STAIRCASE, STATIC_PEAK, TONNAGE
from tonnage.replay.scenario import FACTORS, LOST_SCRAPES, OVERHEADS
from tonnage.replay.views import EPOCH_S
from tonnage.sizing.expected import slo_of
from tonnage.units import DAY_S, HOUR_S, counted, format_s, significant

UNKNOWN: Final = "-"
POLICY: Final = "policy"
TAKES: Final = ("GPU-h", "of\npeak", "of\nstairs", "replicas\nmean/max", "scaled\nup/down")
GIVES: Final = ("kept", "worst\nhour", "TTFT\np95", "TPOT\np95")
COLUMNS: Final = (*TAKES, *GIVES)
LONG: Final = 20 * HOUR_S
"""Traffic from which on GPU-hours are those of a day."""
P95: Final = 1
"""Its place among the percentiles."""


CHANCES: Final = f"cold starts vary by 25% to either side; {LOST_SCRAPES:.0%} of scrapes are lost"

CONSTANT: Final = "the smallest constant fleet in hindsight"
"""What static-peak is, in words."""


def headline(found: list[Fared], target: float) -> str:
    """Say what Tonnage keeps, and what it saves over the static peak where that is the target."""
    by_name = {each.policy.name: each for each in found if each.judged}
    tonnage, peak = by_name.get(TONNAGE), by_name.get(STATIC_PEAK)
    if tonnage is None:
        return f"{counted(len(found), 'policy', 'policies')}, without Tonnage"
    share = tonnage.middle("attainment") or 0.0
    kept = f"{share:.2%} of requests kept"
    hours = gpu_hours(tonnage)
    if not tonnage.keeps(target):
        beside = f"; {CONSTANT} takes {_number(peak)}" if peak else ""
        return f"Target of {percent(target)} missed: {kept} by Tonnage with {hours}{beside}"
    verdict = f"at {kept} (target {percent(target)})"
    if peak is None:
        return f"{hours} with Tonnage, {verdict}"
    ratio = tonnage.of_peak or 1.0
    return f"{hours} with Tonnage, {_change(ratio)} than {CONSTANT} ({_number(peak)}), {verdict}"


def ran_words(case: Case, found: list[Fared], question: Question) -> str:
    """Say what the fleet itself took, beside Tonnage; empty: nobody counted that.

    Where the target is missed nothing is called saved, as in the headline.
    """
    pods, gpus = question.ran_pods, case.planned.flags.parallelism.num_gpus
    tonnage = next((each for each in found if each.policy.name == TONNAGE and each.judged), None)
    if pods is None or tonnage is None:
        return ""
    first = tonnage.judged[0]
    span_s = DAY_S if is_by_day(first) else first.duration_s
    took = pods * gpus * span_s / HOUR_S
    ratio = (tonnage.middle("gpu_hours") or 0.0) * span_s / first.duration_s / took
    change = _change(ratio) if tonnage.keeps(question.target) else "which misses the target"
    span = "a day" if is_by_day(first) else f"in {format_s(first.duration_s)}"
    return (
        f"Your fleet ran {significant(pods)} replicas in the mean, as counted: {significant(took)} "
        f"GPU-hours {span} at {counted(gpus, 'GPU')} each. With Tonnage, "
        f"simulated: {_number(tonnage)}, {change}"
    )


def _change(ratio: float) -> str:
    return f"{abs(1 - ratio):.0%} {'less' if ratio <= 1 else 'more'}"


def gpu_hours(fared: Fared) -> str:
    """Write the GPU-hours of a policy: of a day, or of the traffic if that is shorter."""
    first = fared.judged[0]
    span = "a day" if is_by_day(first) else f"in {format_s(first.duration_s)}"
    return f"{_number(fared)} GPU-hours {span}"


def is_by_day(judged: Judged) -> bool:
    return judged.duration_s >= LONG


def _number(fared: Fared) -> str:
    is_day = is_by_day(fared.judged[0])
    return significant(fared.middle("gpu_hours_per_day" if is_day else "gpu_hours") or 0.0)


def is_kept(found: list[Fared], target: float) -> bool:
    """Whether Tonnage keeps the target; without it, whether every policy does."""
    own = [each for each in found if each.policy.name == TONNAGE]
    return all(each.keeps(target) for each in own or found)


def percent(share: float) -> str:
    """Write a share.

    >>> percent(0.99), percent(0.995)
    ('99%', '99.5%')
    """
    return f"{round(PERCENT * share, 4):g}%"


def cells(fared: Fared) -> tuple[str, ...]:
    """Return the cells of a policy below ``COLUMNS``."""
    if not fared.judged:
        return tuple(UNKNOWN for _ in COLUMNS)
    worst = fared.least("worst_hour")
    kept = fared.middle("attainment")
    most = max(each.max_replicas for each in fared.judged)
    return (
        _number(fared),
        _ratio(fared.of_peak),
        _ratio(fared.of_stairs),
        f"{fared.middle('mean_replicas'):.1f}/{most}",
        f"{fared.middle('scaled_up'):g}/{fared.middle('scaled_down'):g}",
        f"{kept:.2%}",
        f"{worst:.2%}",
        format_s(_p95(fared, "ttft_s")),
        format_s(_p95(fared, "tpot_s")),
    )


def _p95(fared: Fared, name: str) -> float:
    return float(median(getattr(each, name)[P95] for each in fared.judged))


def _ratio(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.2f}"


def fluid_words(found: Sequence[Fared]) -> str:
    """Say what the traffic takes at least."""
    outcomes = [outcome for each in found for outcome in each.outcomes if outcome.judged]
    if not outcomes:
        return ""
    least = median(outcome.fluid_gpu_hours for outcome in outcomes)
    first = outcomes[0].judged
    if first and is_by_day(first):
        least *= DAY_S / first.duration_s
    return f"Lower bound, perfect packing: {significant(least)} GPU-h."


def case_title(case: Case) -> str:
    flags = case.planned.flags
    number, first = flags.parallelism.num_gpus, case.planned.replicas
    return (
        f"{case.gpu}{f' x {number}' if number > 1 else ''}, cold start {format_s(case.start_s)}, "
        f"max-num-seqs {flags.max_num_seqs}; begins with "
        f"{counted(first, 'replica')}"
    )


def notes(found: Replays) -> Iterator[str]:
    """Yield what the figures mean and stand on."""
    question = found.question
    limits = Limits.of(slo_of(found.deployment.spec))
    asked = [
        f"{name} within {format_s(limit)}"
        for name, limit in (("TTFT", limits.ttft_s), ("mean TPOT", limits.tpot_s))
        if limit < float("inf")
    ]
    seeds = "1 seed" if question.num_seeds == 1 else f"medians of {question.num_seeds} seeds"
    yield (
        f"kept: requests with {' and '.join(asked)}, unserved ones missed; worst hour: the least "
        f"share in any 60 minutes with {FEWEST_OF_AN_HOUR} requests (of all seeds); {seeds}"
    )
    judged = [each.judged for each in found.outcomes if each.judged]
    if judged:
        longer = f", {judged[0].num_too_long} longer than contextLength and missed"
        span_s = judged[0].duration_s
        yield (
            f"requests: {question.source}, {judged[0].num_requests} in {_span(span_s)}"
            f"{longer if judged[0].num_too_long else ''}"
        )
        span = "a day" if is_by_day(judged[0]) else "the traffic"
        yield f"GPU-h: of {span}, from the creation of pods to their end"
    yield (
        f"of peak, of stairs: GPU-hours over those of {STATIC_PEAK} and {STAIRCASE}, which know "
        "the traffic beforehand"
    )
    if found.deployment.spec.scaling.schedules:
        yield f"schedules: by a clock that is {rfc3339(EPOCH_S)} when the traffic begins"
    yield _engines(question.speed)


def _span(duration_s: float) -> str:
    if duration_s < 2 * HOUR_S:
        return format_s(duration_s)
    return f"{significant(duration_s / HOUR_S)} h"


def _engines(speed: float | None) -> str:
    low, high = FACTORS
    if speed == 1:
        return f"simulated, not measured: engines are as fast as believed; {CHANCES}"
    pace = (
        f"drawn by seed: efficiencies {low:g} to {high:g} times the prior's, overheads "
        f"{OVERHEADS[0]:g} to {OVERHEADS[1]:g} times"
        if speed is None
        else f"{speed:g} times as fast as believed"
    )
    return f"simulated, not measured: engines are {pace}; {CHANCES}"
