"""Policies by what they cost and what they keep: further left is cheaper, higher is better."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tonnage.cli.page.drawing import BAD, Picture, Screen, picture
from tonnage.cli.page.labels import LabelWriter, PlotPoint
from tonnage.cli.page.plain import short
from tonnage.cli.page.tables import Column, Row, Table, numbers
from tonnage.cli.page.throughput import SERIES
from tonnage.units import significant

PLOT_PX: Final = 320
DOT_PX: Final = 8.0
ROOM: Final = 0.12
"""Beyond the points on each side, as a share of what they span."""
LEAST_SPAN: Final = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """One run of a policy."""

    policy: str
    gpu_hours: float
    attainment: float


def colors_of(policies: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return colour and marker of each policy; the first six differ."""
    return {policy: SERIES[k % len(SERIES)] for k, policy in enumerate(dict.fromkeys(policies))}


def cost_kept_picture(dots: Sequence[Dot], target: float, *, unit: str, name: str) -> Picture:
    """Return the picture of all runs of a case; ``unit``: of the GPU-hours."""
    colors = colors_of([dot.policy for dot in dots])
    rows = (
        Row(
            cells=(dot.policy, significant(dot.gpu_hours), f"{dot.attainment:.2%}"),
            color=colors[dot.policy][0],
        )
        for dot in dots
    )
    columns = (Column(title="policy", kind="name"), *numbers("GPU-h", "in SLO"))
    return picture(
        lambda screen: cost_kept_figure(dots, target, unit, screen),
        Table(columns=columns, rows=tuple(rows)),
        name=name,
        title="GPU-hours against SLO attainment",
        about=f"{', '.join(colors)}: a point for each seed.",
    )


def cost_kept_figure(dots: Sequence[Dot], target: float, unit: str, screen: Screen) -> Figure:
    """Draw a point for each run, and the name of each policy beside its first."""
    figure = screen.figure(PLOT_PX)
    axes = figure.add_subplot()
    axes.set(
        xlabel=f"GPU-hours {unit}",
        ylabel="requests within the SLO",
        xlim=_span([0.0, *(dot.gpu_hours for dot in dots)], least=0.1),
        ylim=_span([target, *(dot.attainment for dot in dots)], least=LEAST_SPAN),
    )
    axes.xaxis.set_major_locator(MaxNLocator(4 if screen.is_narrow else 8))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.4g}" if value > 1 else f"{value:.1%}")
    axes.axhline(target, color=BAD, linestyle="--", linewidth=1.2)
    axes.axhspan(axes.get_ylim()[0], target, color=BAD, alpha=0.06, linewidth=0)
    colors = colors_of([dot.policy for dot in dots])
    for dot in dots:
        color, marker = colors[dot.policy]
        axes.plot(
            [dot.gpu_hours],
            [dot.attainment],
            color=color,
            marker=marker,
            markersize=DOT_PX,
            linestyle="",
            alpha=0.85,
        )
    points = {dot.policy: _point(dot) for dot in reversed(dots)}
    labels = LabelWriter(axes, [_point(dot) for dot in dots])
    for policy in colors:
        labels.write(short(policy), points[policy], color=colors[policy][0])
    return figure


def _point(dot: Dot) -> PlotPoint:
    return PlotPoint(x=dot.gpu_hours, y=dot.attainment, radius_px=DOT_PX / 2)


def _span(values: Sequence[float], *, least: float) -> tuple[float, float]:
    low, high = min(values), max(values)
    room = ROOM * max(high - low, least)
    return low - (room if low else 0.0), high + room
