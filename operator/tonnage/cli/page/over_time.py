"""A policy over time: its replicas, what came and was planned for, who waited, the error budget."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean
from typing import Final, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from tonnage.cli.answers.replay_words import percent
from tonnage.cli.page.drawing import (
    BAD,
    GOOD,
    INK,
    SOFT,
    VIOLET,
    Picture,
    Screen,
    add_legend,
    picture,
)
from tonnage.cli.page.tables import Column, Table, numbers, plain_table
from tonnage.replay.series import SeriesPoint
from tonnage.units import HOUR_S, MINUTE_S, significant

PLOT_PX: Final = 560
HEIGHTS: Final = (3, 2, 1.2, 1.4, 1.4)
"""Relative heights of the plots: replicas, demand, queue, attainment, error budget."""
LONG_S: Final = 3 * HOUR_S
"""Traffic from which on the axis of time is in hours."""
ROWS: Final = 24
"""Of the table below a picture."""
MARGIN: Final = 1.08
MOST_BURNT: Final = 3.0
"""Whole budgets: a plot ends so far below zero."""
LEAST_LEFT: Final = -0.1
LEAST_RATE: Final = 1e-9
"""Ends of the scales of budget and demand where nothing goes beyond."""
UNKNOWN: Final = "-"
COLUMNS: Final = numbers(
    "billed", "Ready", "load", "requests/s", "planned for", "waiting after it", "in SLO",
    "budget left",
)  # fmt: skip


class Steps(NamedTuple):
    """One line of a plot: a mean for each point."""

    label: str
    color: str
    style: str
    values: Sequence[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyCourse:
    """One run of a policy, and what it is held against."""

    name: str
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

    @property
    def budget_left_fractions(self) -> list[float]:
        """What is left of the requests that may be late of all that came so far, by edges.

        NaN where none may be.
        """
        allowed = 1 - self.target
        if not allowed:
            return [math.nan] * (len(self.points) + 1)
        left, came, late = [1.0], 0.0, 0.0
        for point in self.points:
            number = point.requests_per_s * (point.until_s - point.at_s)
            came += number
            late += number * (1 - (1.0 if point.attainment is None else point.attainment))
            left.append(1 - late / (allowed * came) if came else 1.0)
        return left


def top_of(courses: Sequence[Sequence[SeriesPoint]]) -> float:
    """Return the most replicas that any of some runs shows."""
    shown = (max(point.live, point.load) for points in courses for point in points)
    return MARGIN * max(shown, default=1.0)


def course_picture(course: PolicyCourse, *, name: str) -> Picture:
    """Return the picture of one run; ``name`` is unique in the page."""
    worst = min((p.attainment for p in course.points if p.attainment is not None), default=1.0)
    live = [point.live for point in course.points]
    return picture(
        lambda screen: course_figure(course, screen),
        _table(course),
        name=name,
        title=f"{course.name} over time",
        about=f"{significant(min(live))} to {significant(max(live))} replicas, at worst "
        f"{worst:.0%} of the requests within the SLO.",
    )


def course_figure(course: PolicyCourse, screen: Screen) -> Figure:
    """Draw five plots with one scale of time."""
    figure = screen.figure(PLOT_PX)
    plots = figure.subplots(len(HEIGHTS), 1, sharex=True, height_ratios=HEIGHTS)
    edges = course.edges
    middles = [mean(each) for each in pairwise(edges)]
    handles = [*_replicas(plots[0], edges, course), *_demand(plots[1], edges, course)]
    handles += _queue(plots[2], edges, course)
    handles += _draw_attainment(plots[3], middles, course)
    handles += _budget(plots[4], edges, course)
    plots[-1].set(xlabel=f"{course.unit[0]} since the traffic began", xlim=(0, edges[-1]))
    add_legend(figure, handles, screen, plot_px=PLOT_PX)
    return figure


def _draw_steps(axes: Axes, edges: Sequence[float], lines: Sequence[Steps]) -> list[Line2D]:
    return [
        axes.plot(
            edges,
            line.values,
            color=line.color,
            linestyle=line.style,
            linewidth=1.3,
            drawstyle="steps-post",
            label=line.label,
        )[0]
        for line in lines
    ]


def _replicas(axes: Axes, edges: Sequence[float], course: PolicyCourse) -> list[Line2D]:
    """Draw means of a while as steps, the last one as wide as the others."""
    points = (*course.points, course.points[-1])
    live = [point.live for point in points]
    axes.fill_between(edges, live, step="post", color=course.color, alpha=0.18, linewidth=0)
    lines = [
        Steps("billed", course.color, "-", live),
        Steps("Ready", SOFT, "--", [point.ready for point in points]),
        Steps("load, in full replicas", INK, "-", [point.load for point in points]),
    ]
    handles = _draw_steps(axes, edges, lines)
    axes.set(ylabel="replicas", ylim=(0, course.most))
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    return handles


def _demand(axes: Axes, edges: Sequence[float], course: PolicyCourse) -> list[Line2D]:
    """Draw what came, and what replicas were planned for where the policy says it."""
    points = (*course.points, course.points[-1])
    came = [point.requests_per_s for point in points]
    planned = [_number(point.planned_requests_per_s) for point in points]
    lines = [Steps("requests/s", SOFT, "-", came)]
    if any(map(math.isfinite, planned)):
        lines.append(Steps("planned for", course.color, ":", planned))
    handles = _draw_steps(axes, edges, lines)
    top = max(value for value in (*came, *planned, LEAST_RATE) if math.isfinite(value))
    axes.set(ylabel="requests/s", ylim=(0, MARGIN * top))
    axes.yaxis.set_major_locator(MaxNLocator(3))
    return handles


def _queue(axes: Axes, edges: Sequence[float], course: PolicyCourse) -> list[Line2D]:
    """Draw who waited at the end of each while; nobody did at the beginning."""
    waiting = [0.0, *(point.waiting for point in course.points)]
    (line,) = axes.plot(edges, waiting, color=VIOLET, linewidth=1.2, label="waiting")
    axes.fill_between(edges, waiting, color=VIOLET, alpha=0.15, linewidth=0)
    axes.set(ylabel="requests", ylim=(0, MARGIN * max(*waiting, 1)))
    axes.yaxis.set_major_locator(MaxNLocator(3, integer=True))
    return [line]


def _draw_attainment(axes: Axes, times: Sequence[float], course: PolicyCourse) -> list[Line2D]:
    shares = [_number(point.attainment) for point in course.points]
    met = [share if share >= course.target else math.nan for share in shares]
    missed = [share if share < course.target else math.nan for share in shares]
    lines = []
    for label, color, values in (("in SLO", GOOD, met), ("below the target", BAD, missed)):
        (line,) = axes.plot(
            times, values, color=color, linewidth=0, marker=".", markersize=3.5, label=label
        )
        lines.append(line)
    limit = axes.axhline(
        course.target,
        color=BAD,
        linestyle="--",
        linewidth=1.2,
        label=f"target {percent(course.target)}",
    )
    least = min((p.attainment for p in course.points if p.attainment is not None), default=1.0)
    axes.set(ylabel="in SLO", ylim=(max(0.0, min(least, course.target) - 0.05), 1.02))
    axes.yaxis.set_major_locator(MaxNLocator(3))
    axes.yaxis.set_major_formatter(lambda value, _: "" if value > 1 else f"{value:.0%}")
    return [*lines, limit]


def _budget(axes: Axes, edges: Sequence[float], course: PolicyCourse) -> list[Line2D]:
    """Draw what is left of the requests that may be late; below zero more were."""
    left = [max(each, -MOST_BURNT) for each in course.budget_left_fractions]
    (line,) = axes.plot(edges, left, color=GOOD, linewidth=1.2, label="error budget left")
    burnt = [min(0.0, each) for each in left]
    axes.fill_between(edges, burnt, color=BAD, alpha=0.25, linewidth=0)
    axes.axhline(0, color=BAD, linestyle="--", linewidth=1.0)
    least = min(each for each in (*left, LEAST_LEFT) if math.isfinite(each))
    axes.set(ylabel="budget left", ylim=(least, 1.1))
    axes.yaxis.set_major_locator(MaxNLocator(3))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    return [line]


def _number(value: float | None) -> float:
    """Return a value as a plot takes it; what is missing is a gap."""
    return math.nan if value is None else value


def _table(course: PolicyCourse) -> Table:
    """Return some of the points, evenly spread."""
    unit, each_s = course.unit
    every = max(1, -(-len(course.points) // ROWS))
    rated = list(zip(course.points, course.budget_left_fractions[1:], strict=True))
    shown = rated[:-1:every] + rated[-1:]
    rows = (
        (
            significant(point.at_s / each_s),
            f"{point.live:.1f}",
            f"{point.ready:.1f}",
            significant(point.load),
            significant(point.requests_per_s),
            UNKNOWN
            if point.planned_requests_per_s is None
            else significant(point.planned_requests_per_s),
            f"{point.waiting:g}",
            UNKNOWN if point.attainment is None else f"{point.attainment:.1%}",
            UNKNOWN if math.isnan(left) else f"{round(left, 2) + 0.0:.0%}",
        )
        for point, left in shown
    )
    return plain_table((Column(title=unit, kind="name"), *COLUMNS), rows)
