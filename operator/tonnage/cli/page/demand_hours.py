"""A plan as a page, with a demand by the hour in a picture."""

from collections.abc import Iterable
from functools import partial
from typing import Final

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tonnage.cli.page.document import Report, document
from tonnage.cli.page.drawing import BAD, SERIES, SOFT, add_legend, blank, picture
from tonnage.cli.results.demand_hours import HourlyFleet
from tonnage.cli.results.plan_summary import object_label
from tonnage.units import HOUR_S

PLOT_PX: Final = 340
NOTE: Final = (
    "Replicas that each step needs, beside as many as the peak needs all the time: what lies "
    "between them is saved, but for the time in which replicas start."
)


def plan_page(report: Report, hours: Iterable[HourlyFleet]) -> str:
    """Return the whole page: the text of the answers, and a picture of each demand by the hour."""
    pictures = (
        picture(
            partial(hours_figure, each),
            name=f"hours-{place}",
            title=f"{object_label(each.planned)} by the hour",
            about=f"{min(each.replicas)} to {max(each.replicas)}, the peak at {each.peak_at}",
            note=NOTE,
        )
        for place, each in enumerate(hours)
    )
    return document("Tonnage plan", report, pictures)


def hours_figure(found: HourlyFleet) -> Figure:
    """Draw the replicas and the rate as steps, on one scale of time."""
    figure, curve = blank(PLOT_PX), found.curve
    plots = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    edges = [step * curve.step_s / HOUR_S for step in range(len(found.replicas) + 1)]
    plots[0].axhline(found.planned.replicas, color=BAD, linestyle="--", label="constant")
    shown = (("replicas", found.replicas, SERIES[0][0]), ("requests/s", curve.requests_per_s, SOFT))
    for axes, (label, values, color) in zip(plots, shown, strict=True):
        steps = [*values, values[-1]]
        axes.step(edges, steps, color=color, where="post", label=label)
        axes.fill_between(edges, steps, step="post", color=color, alpha=0.18, linewidth=0)
        axes.set(ylabel=label, ylim=(0, None))
        axes.yaxis.set_major_locator(MaxNLocator(3, integer=label == "replicas"))
    plots[1].set(xlabel=f"hours from {curve.at(0)}", xlim=(0, edges[-1]))
    add_legend(figure, [line for axes in plots for line in axes.get_lines()])
    return figure
