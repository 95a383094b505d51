"""A plan as a page, with a demand by the hour in a picture."""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Final

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tonnage.cli.page.document import (
    BAD,
    SERIES,
    SOFT,
    Report,
    add_legend,
    blank,
    document,
    picture,
)
from tonnage.cli.results.beside import HOURS
from tonnage.cli.results.plan_summary import object_label
from tonnage.cli.results.planning import Planned, Refused
from tonnage.units import HOUR_S

PLOT_PX: Final = 340
NOTE: Final = (
    "Replicas that each step needs, beside as many as the peak needs all the time: what lies "
    "between them is saved, but for the time in which replicas start."
)


def plan_page(report: Report, answers: Iterable[Planned | Refused]) -> str:
    """Return the whole page: the text of the answers, and a picture of each demand by the hour."""
    pictures = (
        picture(
            partial(hours_figure, each.beside[HOURS], each.replicas),
            name=f"hours-{place}",
            title=f"{object_label(each)} by the hour",
            about=f"up to {each.replicas}, the peak at {each.beside[HOURS]['peak']['at']}",
            note=NOTE,
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
