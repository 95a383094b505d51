"""Pages of plan and compare: text as on terminals, and pictures."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from tonnage.cli.page.document import (
    BAD,
    PAPER,
    SERIES,
    SOFT,
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
from tonnage.sizing.compare import Choice
from tonnage.sizing.workload import Slo, Target
from tonnage.units import HOUR_S, format_s

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


def plan_page(report: Report, answers: Iterable[Planned | Refused]) -> str:
    pictures = (
        picture(
            partial(hours_figure, each.beside[HOURS], each.replicas),
            name=f"hours-{place}",
            title=f"{object_label(each)} by the hour",
            about=f"up to {each.replicas}, the peak at {each.beside[HOURS]['peak']['at']}",
            note=HOURS_NOTE,
        )
        for place, each in enumerate(answers)
        if isinstance(each, Planned) and HOURS in each.beside
    )
    return document("Tonnage plan", report, pictures)


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
