"""A replay as one page: what Tonnage saves, and each policy over time, drawn."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tonnage.cli.page.document import (
    BAD,
    GOOD,
    INK,
    SERIES,
    SOFT,
    VIOLET,
    Picture,
    add_legend,
    blank,
    document,
    picture,
)
from tonnage.cli.results.replays import CaseResult, Replays
from tonnage.cli.text.replay import percent, replay_report
from tonnage.replay.evaluation import SeriesPoint
from tonnage.replay.policy import description_of
from tonnage.units import HOUR_S, MINUTE_S, significant

PLOT_PX: Final = 560
WIDE_PX: Final = 940
"""So that time has the width of the page."""
HEIGHTS: Final = (3, 2, 1.2, 1.4)
"""Relative heights of the plots: replicas, demand, queue, attainment."""
LONG_S: Final = 3 * HOUR_S
"""Traffic from which on the axis of time is in hours."""
NOTE: Final = (
    "The first seed. Billed, in the colour of the policy: replicas from creation to their end. The "
    "load is what the requests take, in replicas at their fluid bound: above the Ready ones a "
    "queue grows. Planned for, where the policy says it: what comes or is forecast, with "
    "headroom, the reserve for bursts, and events. A dot is the share within the SLO of the "
    "requests of a while: red below the target."
)
MARGIN: Final = 1.08


def replay_page(found: Replays) -> str:
    scenario = found.question.scenario
    deployment, target = scenario.model, scenario.target
    pictures = (
        picture
        for number, (_, fared) in enumerate(found.by_start())
        for picture in _courses(number, fared, target)
    )
    title = f"Tonnage replay: {deployment.namespace}/{deployment.name}"
    return document(title, lambda console: replay_report(found, console), pictures)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyCourse:
    """One run of a policy, and what it is compared with."""

    points: Sequence[SeriesPoint]
    target: float
    most: float
    """Replicas at the top of the scale: that of all pictures of a case."""
    color: str
    """Of the policy, as in the table and among the others."""

    @property
    def unit(self) -> tuple[str, float]:
        is_long = self.points[-1].until_s > LONG_S
        return ("hours", HOUR_S) if is_long else ("minutes", MINUTE_S)

    @property
    def edges(self) -> list[float]:
        """When each point began, and the last one ended, in the unit."""
        each_s = self.unit[1]
        times_s = (*(point.at_s for point in self.points), self.points[-1].until_s)
        return [at_s / each_s for at_s in times_s]

    def steps(self, value: Callable[[SeriesPoint], float | None]) -> list[float]:
        """Return a figure at each edge, the last point as wide as the others; NaN: a gap."""
        found = (value(point) for point in (*self.points, self.points[-1]))
        return [math.nan if each is None else each for each in found]


def _courses(number: int, found: Sequence[CaseResult], target: float) -> Iterator[Picture]:
    """Yield the picture of each policy with its first seed, all on one scale."""
    firsts = [(each, each.outcomes[0].points) for each in found if each.outcomes[0].points]
    tops = (max(point.live, point.load) for _, points in firsts for point in points)
    most = max(tops, default=1.0)
    for place, (each, points) in enumerate(firsts):
        color, _ = SERIES[found.index(each) % len(SERIES)]
        course = PolicyCourse(points=points, target=target, most=most, color=color)
        worst = min((p.attainment for p in points if p.attainment is not None), default=1.0)
        live = [point.live for point in points]
        yield picture(
            partial(course_figure, course),
            name=f"replay-{number}-{place}",
            title=f"{each.policy} over time",
            about=f"{significant(min(live))} to {significant(max(live))} replicas, at worst "
            f"{worst:.0%} of the requests within the SLO",
            note=f"{description_of(each.policy)}. {NOTE}",
        )


def course_figure(course: PolicyCourse) -> Figure:
    """Draw four plots with one scale of time."""
    figure = blank(PLOT_PX, WIDE_PX)
    plots = figure.subplots(len(HEIGHTS), 1, sharex=True, height_ratios=HEIGHTS)
    for axes, (label, draw) in zip(plots, PLOTS.items(), strict=True):
        draw(axes, course)
        axes.set_ylabel(label)
        axes.yaxis.set_major_locator(MaxNLocator(3, integer=label == "replicas"))
    plots[-1].set(xlabel=f"{course.unit[0]} since the traffic began", xlim=(0, course.edges[-1]))
    add_legend(figure, [line for axes in plots for line in axes.get_legend_handles_labels()[0]])
    return figure


def _replicas(axes: Axes, course: PolicyCourse) -> None:
    """Draw means of a while as steps."""
    edges, live = course.edges, course.steps(lambda point: point.live)
    ready, load = course.steps(lambda point: point.ready), course.steps(lambda point: point.load)
    axes.fill_between(edges, live, step="post", color=course.color, alpha=0.18, linewidth=0)
    axes.step(edges, live, color=course.color, where="post", label="billed")
    axes.step(edges, ready, color=SOFT, linestyle="--", where="post", label="Ready")
    axes.step(edges, load, color=INK, where="post", label="load, in full replicas")
    axes.set_ylim(0, MARGIN * course.most)


def _demand(axes: Axes, course: PolicyCourse) -> None:
    """Draw what came, and what replicas were planned for where the policy says it."""
    came = course.steps(lambda point: point.requests_per_s)
    planned = course.steps(lambda point: point.planned_requests_per_s)
    axes.step(course.edges, came, color=SOFT, where="post", label="requests/s")
    if any(map(math.isfinite, planned)):
        axes.step(
            course.edges, planned, color=course.color, linestyle=":", where="post",
            label="planned for",
        )  # fmt: skip
    axes.set_ylim(bottom=0)


def _queue(axes: Axes, course: PolicyCourse) -> None:
    """Draw who waited at the end of each while; nobody did at the beginning."""
    waiting = [0.0, *(point.waiting for point in course.points)]
    axes.plot(course.edges, waiting, color=VIOLET, label="waiting")
    axes.set_ylim(bottom=0)


def _attainment(axes: Axes, course: PolicyCourse) -> None:
    shares, target = course.steps(lambda point: point.attainment), course.target
    for label, color, is_met in (("in SLO", GOOD, True), ("below the target", BAD, False)):
        shown = [share if (share >= target) is is_met else math.nan for share in shares[:-1]]
        axes.plot(course.edges[:-1], shown, ".", color=color, markersize=3.5, label=label)
    axes.axhline(target, color=BAD, linestyle="--", label=f"target {percent(target)}")
    axes.yaxis.set_major_formatter(lambda value, _: "" if value > 1 else f"{value:.0%}")


PLOTS: Final = {
    "replicas": _replicas,
    "requests/s": _demand,
    "requests": _queue,
    "in SLO": _attainment,
}
