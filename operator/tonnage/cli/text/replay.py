"""A replay for a terminal: what Tonnage saves, and every policy in a row."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Final, Literal

from rich.console import Console, RenderableType
from rich.text import Text

from tonnage.cli.console import printable
from tonnage.cli.results.replays import PERCENT, CaseResult, ReplayQuestion, Replays
from tonnage.cli.text.layout import DIM, INDENT, fitting_table, heading, indent
from tonnage.control.input.times import rfc3339
from tonnage.replay.cluster import EPOCH_S
from tonnage.replay.evaluation import FEWEST_OF_AN_HOUR, RunFigures
from tonnage.replay.policies import FACTORS, LOST_SCRAPES, OVERHEADS
from tonnage.replay.policy import BEST_STATIC, IN_TIME, TONNAGE
from tonnage.replay.traces import unused_of
from tonnage.sizing.cost import GpuHour
from tonnage.units import DAY_S, HOUR_S, count_of, format_s, significant

UNKNOWN: Final = "-"
POLICY: Final = "policy"
COST: Final = "cost"
COLUMNS: Final = (
    "GPU-h", COST, "of\npeak", "in\nSLO", "worst\nhour", "TTFT\np95", "TPOT\np95",
    "replicas\nmean/max", "scaled\nup/down",
)  # fmt: skip
LONG: Final = 20 * HOUR_S
"""Traffic from which on GPU-hours are those of a day."""
P95: Final = 1
"""Its place among the percentiles."""

CHANCES: Final = f"cold starts vary by 25% to either side; {LOST_SCRAPES:.0%} of scrapes are lost"

CONSTANT: Final = "the smallest constant fleet in hindsight"
"""What best-static is, in words."""


def headline(found: list[CaseResult], target: float) -> str:
    """Say what Tonnage keeps, and what it saves over the static peak where that is the target."""
    by_name = {each.policy.name: each for each in found if each.figures}
    tonnage, peak = by_name.get(TONNAGE), by_name.get(BEST_STATIC)
    if tonnage is None:
        return f"{count_of(len(found), 'policy', 'policies')}, without Tonnage"
    share = tonnage.middle("attainment") or 0.0
    kept = f"{share:.2%} of requests within the SLO"
    hours = gpu_hours(tonnage)
    if not tonnage.keeps(target):
        beside = f"; {CONSTANT} takes {_number(peak)}" if peak else ""
        other = _in_time(by_name, share)
        return f"Target of {percent(target)} missed: {kept} by Tonnage with {hours}{other}{beside}"
    verdict = f"at {kept} (target {percent(target)})"
    if peak is None:
        return f"{hours} with Tonnage, {verdict}"
    ratio = tonnage.of_peak or 1.0
    return f"{hours} with Tonnage, {_compared(ratio)} {CONSTANT} ({_number(peak)}), {verdict}"


def _in_time(by_name: Mapping[str, CaseResult], share: float) -> str:
    """Say what engines that refuse would keep, where that is more."""
    fared = by_name.get(IN_TIME)
    kept = fared.middle("attainment") if fared else None
    if fared is None or kept is None or kept <= share:
        return ""
    return f"; {kept:.2%} with engine.admission: inTime and {_number(fared)}"


def ran_words(found: list[CaseResult], question: ReplayQuestion) -> str:
    """Say what the fleet itself took, beside Tonnage; empty: nobody counted that.

    Where the target is missed nothing is called saved, as in the headline.
    """
    pods, scenario = question.ran_pods, question.scenario
    gpus = scenario.planned.flags.parallelism.num_gpus
    tonnage = next((each for each in found if each.policy.name == TONNAGE and each.figures), None)
    if pods is None or tonnage is None:
        return ""
    first = tonnage.figures[0]
    span_s = DAY_S if is_by_day(first) else first.duration_s
    took = pods * gpus * span_s / HOUR_S
    ratio = (tonnage.middle("gpu_hours") or 0.0) * span_s / first.duration_s / took
    is_met = tonnage.keeps(scenario.target)
    change = f"{_compared(ratio)} that" if is_met else "which misses the target"
    span = "a day" if is_by_day(first) else f"in {format_s(first.duration_s)}"
    return (
        f"Your fleet ran {significant(pods)} replicas on average, as counted: "
        f"{_with_cost(took, question.hour)} {span} at {count_of(gpus, 'GPU')} each. With Tonnage, "
        f"simulated: {_number(tonnage)}, {change}"
    )


def _compared(ratio: float) -> str:
    change = f"{abs(1 - ratio):.0%}"
    return "as many as" if change == "0%" else f"{change} {'less' if ratio < 1 else 'more'} than"


def gpu_hours(fared: CaseResult) -> str:
    """Write the GPU-hours of a policy: of a day, or of the traffic if that is shorter."""
    first = fared.figures[0]
    span = "a day" if is_by_day(first) else f"in {format_s(first.duration_s)}"
    return f"{_with_cost(_hours(fared), fared.hour)} {span}"


def _with_cost(hours: float, hour: GpuHour | None) -> str:
    cost = "" if hour is None else f" ({hour.usd * hours:,.2f} {hour.currency})"
    return f"{significant(hours)} GPU-hours{cost}"


def is_by_day(judged: RunFigures) -> bool:
    return judged.duration_s >= LONG


def _hours(fared: CaseResult) -> float:
    is_day = is_by_day(fared.figures[0])
    return fared.middle("gpu_hours_per_day" if is_day else "gpu_hours") or 0.0


def _number(fared: CaseResult) -> str:
    return significant(_hours(fared))


def verdict_kind(found: list[CaseResult], target: float) -> Literal["yes", "short", "no"]:
    """Return "no" where Tonnage misses the target; without Tonnage, where any policy does.

    "short": it meets the target, with more GPU-hours than the smallest constant fleet.
    """
    own = [each for each in found if each.policy.name == TONNAGE]
    if not all(each.keeps(target) for each in own or found):
        return "no"
    is_dearer = any((each.of_peak or 0.0) > 1 for each in own)
    return "short" if is_dearer else "yes"


def percent(share: float) -> str:
    """Write a share.

    >>> percent(0.99), percent(0.995)
    ('99%', '99.5%')
    """
    return f"{round(PERCENT * share, 4):g}%"


def cells(fared: CaseResult) -> dict[str, str]:
    """Return the cells of a policy by ``COLUMNS``."""
    if not fared.figures:
        return dict.fromkeys(COLUMNS, UNKNOWN)
    worst = fared.least("worst_hour")
    kept = fared.middle("attainment")
    most = max(each.max_replicas for each in fared.figures)
    found = (
        _number(fared),
        UNKNOWN if fared.hour is None else f"{fared.hour.usd * _hours(fared):,.2f}",
        UNKNOWN if fared.of_peak is None else f"{fared.of_peak:.2f}",
        f"{kept:.2%}",
        f"{worst:.2%}",
        format_s(_p95(fared, "ttft_s")),
        format_s(_p95(fared, "tpot_s")),
        f"{fared.middle('mean_replicas'):.1f}/{most}",
        f"{fared.middle('scaled_up'):g}/{fared.middle('scaled_down'):g}",
    )
    return dict(zip(COLUMNS, found, strict=True))


def _p95(fared: CaseResult, name: str) -> float:
    return float(median(getattr(each, name)[P95] for each in fared.figures))


def fluid_words(found: Sequence[CaseResult]) -> str:
    outcomes = [outcome for each in found for outcome in each.outcomes if outcome.judged]
    if not outcomes:
        return ""
    least = median(outcome.fluid_gpu_hours for outcome in outcomes)
    first = outcomes[0].judged
    if first and is_by_day(first):
        least *= DAY_S / first.duration_s
    return f"Lower bound, replicas always full: {significant(least)} GPU-h."


def case_title(question: ReplayQuestion, start_s: float) -> str:
    planned, gpu = question.scenario.planned, question.scenario.model.spec.hardware.gpu
    flags, number = planned.flags, planned.flags.parallelism.num_gpus
    return (
        f"{gpu}{f' x {number}' if number > 1 else ''}, cold start {format_s(start_s)}, "
        f"max-num-seqs {flags.max_num_seqs}; begins with "
        f"{count_of(planned.replicas, 'replica')}"
    )


def notes(found: Replays) -> Iterator[str]:
    """Yield what the figures mean and stand on."""
    question, scenario = found.question, found.question.scenario
    limits = scenario.limits
    asked = [
        f"{name} within {format_s(limit)}"
        for name, limit in (("TTFT", limits.ttft_s), ("mean TPOT", limits.tpot_s))
        if limit < float("inf")
    ]
    seeds = count_of(question.num_seeds, "seed")
    seeds = seeds if question.num_seeds == 1 else f"medians of {seeds}"
    yield (
        f"in SLO: requests with {' and '.join(asked)}, unserved ones missed; worst hour: the least "
        f"share in any 60 minutes with {FEWEST_OF_AN_HOUR} requests (of all seeds); {seeds}"
    )
    judged = [each.judged for each in found.outcomes if each.judged]
    if judged:
        longer = f", {judged[0].num_too_long} longer than contextLength and missed"
        span_s = judged[0].duration_s
        span = format_s(span_s) if span_s < 2 * HOUR_S else f"{significant(span_s / HOUR_S)} h"
        yield (
            f"requests: {question.source}, {judged[0].num_requests} in {span}"
            f"{longer if judged[0].num_too_long else ''}"
            f"{f'; {question.trace.clock}' if question.trace else ''}"
        )
    if question.trace and question.trace.unused:
        yield f"columns not used: {unused_of(question.trace)}"
    if judged:
        span = "a day" if is_by_day(judged[0]) else "the traffic"
        yield f"GPU-h: of {span}, from the creation of pods to their end"
    gpu, hour = scenario.model.spec.hardware.gpu, question.hour
    yield f"cost: no price of {gpu} is known" if hour is None else f"cost: {gpu} at {hour}"
    yield f"of peak: GPU-hours over those of {BEST_STATIC}, which knows the traffic beforehand"
    if scenario.model.spec.scaling.schedules:
        yield f"schedules: by a clock that is {rfc3339(EPOCH_S)} when the traffic begins"
    yield _engines(scenario.speed)


def _engines(speed: float | None) -> str:
    low, high = FACTORS
    if speed == 1:
        return f"simulated, not measured: engines are as fast as believed; {CHANCES}"
    pace = (
        f"drawn at random: efficiencies {low:g} to {high:g} times those believed, overheads "
        f"{OVERHEADS[0]:g} to {OVERHEADS[1]:g} times"
        if speed is None
        else f"{speed:g} times as fast as believed"
    )
    return f"simulated, not measured: engines are {pace}; {CHANCES}"


COLORS: Final = {"yes": "green", "short": "yellow", "no": "red"}


def replay_report(found: Replays, console: Console) -> Iterator[RenderableType]:
    question, deployment = found.question, found.question.scenario.model
    target = found.question.scenario.target
    name = f"{deployment.namespace}/{deployment.name}: {deployment.spec.model.id}"
    yield heading(f"{name}, {printable(question.source)}")
    for start_s, fared in found.by_start():
        kind = verdict_kind(fared, target)
        yield Text(headline(fared, target), style=COLORS[kind])
        if ran := ran_words(fared, question):
            yield Text(ran)
        yield Text(case_title(question, start_s), style="bold")
        rows = [{POLICY: str(each.policy), **cells(each)} for each in fared]
        styles = ["" if each.keeps(target) else "red" for each in fared]
        table = fitting_table(rows, names=[POLICY], console=console, indent=INDENT, styles=styles)
        yield from map(indent, table)
        for each in fared:
            for note in each.notes:
                yield indent(Text(f"{each.policy}: {note}", style=DIM))
        yield indent(Text(fluid_words(fared), style=DIM))
        yield Text()
    for note in notes(found):
        yield Text(note, style=DIM)
