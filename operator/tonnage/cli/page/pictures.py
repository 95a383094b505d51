"""Pages of plan and compare: text as on terminals, and pictures."""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from tonnage.cli.page.document import (
    BAD,
    FAINT,
    INK,
    PAPER,
    SERIES,
    SOFT,
    Picture,
    Report,
    add_legend,
    blank,
    document,
    log_scale,
    picture,
    short,
)
from tonnage.cli.results.beside import HOURS
from tonnage.cli.results.comparing import Compared
from tonnage.cli.results.plan_summary import BatchRow, batch_rows, object_label
from tonnage.cli.results.planning import Planned, Refused
from tonnage.cli.text.compare import comparison_report
from tonnage.cli.text.plan import memory_parts
from tonnage.sizing.compare import Choice
from tonnage.sizing.memory.ceiling import BudgetPart
from tonnage.sizing.plan import Sizing, requests_per_s_asked
from tonnage.sizing.workload import Slo, Target
from tonnage.units import GIB, HOUR_S, count_of, format_bytes, format_s, significant

PLOT_PX: Final = 340
DOT_PX: Final = 5.5
LOAD_LINE_PX: Final = 12.0
MARGIN: Final = 1.25
"""Of the scales beyond what they show, as a factor."""
NOTE: Final = (
    "Each point is a batch, from few requests to many: higher is cheaper, further left is faster. "
    "The large point is the load line: where the class is to be run. Hollow points break a limit."
)
Batches = tuple[str, Sequence[BatchRow], int]
"""The name of a class, its batches from small to large, and the GPUs of a replica."""


def compare_page(found: Compared) -> str:
    deployment, pictures = found.deployment, []
    if classes := [batches_of(each) for each in found.selection.choices[: len(SERIES)]]:
        pictures = [
            picture(
                lambda: throughput_figure(classes, found.request.slo),
                name="compare-throughput",
                title="Output tokens per second of one GPU against TPOT",
                about=f"{', '.join(name for name, _, _ in classes)}, by batch",
                note=NOTE,
            )
        ]
    title = f"Tonnage compare: {deployment.namespace}/{deployment.name}"
    return document(title, lambda console: comparison_report(found, console), pictures)


def batches_of(choice: Choice) -> Batches:
    return choice.gpu.name, batch_rows(choice.sizing), choice.sizing.parallelism.num_gpus


def throughput_figure(classes: Sequence[Batches], slo: Slo) -> Figure:
    figure = blank(PLOT_PX)
    axes = figure.add_subplot()
    lines = [_line(axes, *each) for each in zip(classes, SERIES, strict=False)]
    targets = strictest(slo)
    lines += [
        axes.axvline(
            each.limit_s, color=BAD, linestyle="--", linewidth=1.4, label=f"SLO: TPOT {each}"
        )
        for each in targets
    ]
    _scale(axes, classes, targets)
    add_legend(figure, lines)
    return figure


def strictest(slo: Slo) -> list[Target]:
    """Return the targets on TPOT, of those with the same limit only the one that binds."""
    found = {each.limit_s: each for each in sorted(slo.tpot, key=lambda each: each.quantile)}
    return [found[limit_s] for limit_s in sorted(found)]


def _scale(axes: Axes, classes: Sequence[Batches], targets: Sequence[Target]) -> None:
    times = [row.state.tpot_s for _, rows, _ in classes for row in rows]
    times += [each.limit_s for each in targets]
    rates = [row.tokens_per_s / num_gpus for _, rows, num_gpus in classes for row in rows]
    log_scale(axes, "x", (min(times) / MARGIN, max(times) * MARGIN), format_s)
    log_scale(axes, "y", (min(rates) / MARGIN, max(rates) * MARGIN), "{:,g}".format)
    axes.set(xlabel="TPOT: time per output token", ylabel="output tokens/s of one GPU")


def _line(axes: Axes, batches: Batches, series: tuple[str, str]) -> Line2D:
    """Draw a class: hollow where a limit is broken, large at the load line."""
    (name, rows, num_gpus), (color, marker) = batches, series
    points = ([row.state.tpot_s for row in rows], [row.tokens_per_s / num_gpus for row in rows])
    (line,) = axes.plot(*points, color=color, marker=marker, markersize=DOT_PX, label=short(name))
    over = [k for k, row in enumerate(rows) if row.over]
    best = [k for k, row in enumerate(rows) if row.is_load_line]
    for chosen, face, size in ((over, PAPER, DOT_PX), (best, color, LOAD_LINE_PX)):
        axes.plot(
            *points, linestyle="", color=color, marker=marker, markersize=size,
            markerfacecolor=face, markevery=chosen,
        )  # fmt: skip
    return line


HOURS_NOTE: Final = (
    "Replicas that each step needs, beside as many as the peak needs all the time: what lies "
    "between them is saved, but for the time in which replicas start."
)


LOADS: Final = tuple(part / 20 for part in range(2, 22))
"""Of what the replicas sustain: from a tenth to a little more than all."""
HIGHEST: Final = 1.6
"""Times a target that is drawn."""
LOAD_NOTE: Final = (
    "Latencies over their targets: a line that passes 1 misses its target. Dotted: the same with "
    "one replica more."
)
MEMORY_NOTE: Final = "What a GPU holds once the engine runs; the text above has how sure each is."
MEMORY_PX: Final = 90


def plan_page(report: Report, answers: Iterable[Planned | Refused]) -> str:
    planned = [(k, each) for k, each in enumerate(answers) if isinstance(each, Planned)]
    pictures = (one for place, each in planned for one in _of_plan(place, each))
    return document("Tonnage plan", report, pictures)


def _of_plan(place: int, answer: Planned) -> Iterator[Picture]:
    label, sizing, replicas = object_label(answer), answer.sizing, answer.replicas
    rate = requests_per_s_asked(sizing)
    if rate and not sizing.request.slo.is_offline:
        yield picture(
            partial(load_figure, sizing, replicas, rate),
            name=f"load-{place}",
            title=f"{label}: latencies by load",
            about=f"{count_of(replicas, 'replica')}, demand {significant(rate)} requests/s",
            note=LOAD_NOTE,
        )
    yield picture(
        partial(memory_figure, sizing),
        name=f"memory-{place}",
        title=f"{label}: memory of a GPU",
        about=", ".join(map(_part_written, memory_parts(sizing))),
        note=MEMORY_NOTE,
    )
    if hours := answer.beside.get(HOURS):
        yield picture(
            partial(hours_figure, hours, replicas),
            name=f"hours-{place}",
            title=f"{label} by the hour",
            about=f"up to {replicas}, the peak at {hours['peak']['at']}",
            note=HOURS_NOTE,
        )


def load_figure(sizing: Sizing, replicas: int, requests_per_s: float) -> Figure:
    """Draw TTFT and TPOT over their targets by the rate, of the replicas and of one more."""
    figure = blank(PLOT_PX)
    axes, slo, lines = figure.add_subplot(), sizing.request.slo, list[Line2D]()
    for number, line in ((replicas, "-"), (replicas + 1, ":")):
        rates = [load * sizing.sustained_requests_per_s(number) for load in LOADS]
        served = [sizing.at(rate, number) for rate in rates]
        for targets, (color, marker), name in zip(
            (slo.ttft, slo.tpot), SERIES, ("TTFT", "TPOT"), strict=False
        ):
            if targets:
                target = max(targets, key=lambda each: each.quantile)
                found = [each.at(target.quantile) for each in served]
                values = [(each.ttft_s if name == "TTFT" else each.tpot_s) for each in found]
                lines += axes.plot(
                    rates,
                    [_over(each, target) for each in values],
                    linestyle=line,
                    color=color,
                    marker=marker if line == "-" else None,
                    markersize=DOT_PX,
                    label=f"{name} {target}, {count_of(number, 'replica')}",
                )
    lines += [
        axes.axhline(1.0, color=BAD, linestyle="--", label="SLO"),
        axes.axvline(
            requests_per_s, color=INK, label=f"demand: {significant(requests_per_s)} requests/s"
        ),
    ]
    axes.set(xlabel="requests/s", ylabel="latency over its target", ylim=(0.0, HIGHEST))
    axes.set_xlim(0.0, None)
    add_legend(figure, lines)
    return figure


def _over(latency_s: float | None, target: Target) -> float:
    """Return a latency over its target; one without end is drawn beyond the picture."""
    return math.nan if latency_s is None else min(latency_s / target.limit_s, 2 * HIGHEST)


def memory_figure(sizing: Sizing) -> Figure:
    """Draw the memory of a GPU as a bar."""
    figure = blank(MEMORY_PX)
    axes, begins_gib, bars = figure.add_subplot(), 0.0, list[Artist]()
    colors = itertools.cycle(color for color, _ in SERIES)
    for part in memory_parts(sizing):
        color = FAINT if part.name == "unused" else next(colors)
        [bar] = axes.barh(0.0, part.num_bytes / GIB, left=begins_gib, color=color)
        bar.set_label(_part_written(part))
        bars.append(bar)
        begins_gib += part.num_bytes / GIB
    axes.set(xlabel="GiB", xlim=(0.0, begins_gib), yticks=[])
    add_legend(figure, bars)
    return figure


def _part_written(part: BudgetPart) -> str:
    return f"{part.name} {format_bytes(part.num_bytes)}"


def hours_figure(found: Mapping[str, Any], constant: int) -> Figure:
    """Draw the replicas and the rate as steps, on one scale of time."""
    figure, steps = blank(PLOT_PX), found["steps"]
    plots = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    edges = [step * found["stepSeconds"] / HOUR_S for step in range(len(steps) + 1)]
    plots[0].axhline(constant, color=BAD, linestyle="--", label="constant")
    shown = (("replicas", "replicas", SERIES[0][0]), ("requests/s", "requestsPerSecond", SOFT))
    for axes, (label, key, color) in zip(plots, shown, strict=True):
        values = [each[key] for each in (*steps, steps[-1])]
        axes.step(edges, values, color=color, where="post", label=label)
        axes.fill_between(edges, values, step="post", color=color, alpha=0.18, linewidth=0)
        axes.set(ylabel=label, ylim=(0, None))
        axes.yaxis.set_major_locator(MaxNLocator(3, integer=key == "replicas"))
    plots[1].set(xlabel=f"hours from {found['begins']}", xlim=(0, edges[-1]))
    add_legend(figure, [line for axes in plots for line in axes.get_lines()])
    return figure
