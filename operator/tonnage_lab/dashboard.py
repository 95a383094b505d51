"""The chart's dashboard as a picture: its own queries, asked of a Prometheus for a stretch of time.

What Grafana would show is drawn without it: each panel in its place, each series with its legend.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tonnage.cluster.errors import PrometheusError
from tonnage.cluster.ranges import Steps, ask_range
from tonnage.settings import Settings
from tonnage_lab import assets
from tonnage_lab.picture import INK
from tonnage_lab.processes import LabError

COLUMNS: Final = 24
"""Of Grafana's grid."""
WIDTH_INCHES: Final = 15
CELL_INCHES: Final = 0.36
"""Height of a cell of the grid."""
MARGIN: Final = 1.0
"""Around a panel, in cells."""
MOST_SERIES: Final = 12
"""In one panel of a picture."""
HEADROOM: Final = 1.35
"""Above the lines, for the legend."""
RATE_WINDOW: Final = "60s"
"""In place of Grafana's own, which follows from the scrape interval."""
UNITS: Final = {"percentunit": "share", "reqps": "requests/s", "s": "s", "currencyUSD": "USD/hour"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A stretch of time, in unix seconds, and how often it is looked at."""

    from_s: float
    to_s: float
    step_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelLine:
    """One series of a panel. Times are seconds since the stretch began."""

    label: str
    at_s: tuple[float, ...]
    values: tuple[float, ...]


def chart_dashboard() -> Mapping[str, Any]:
    """Return the dashboard that the chart ships."""
    file = assets.of_checkout("charts") / "tonnage/files/dashboard.json"
    found: Mapping[str, Any] = json.loads(file.read_text())
    return found


def draw_dashboard(path: Path, url: str, stretch: Stretch) -> None:
    """Write the dashboard over a stretch of time as a picture.

    Raises:
        LabError: Prometheus refuses a query.
    """
    panels = chart_dashboard()["panels"]
    height = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels)
    figure = Figure(figsize=(WIDTH_INCHES, CELL_INCHES * height))
    for panel in panels:
        axes = figure.add_axes(_place(panel["gridPos"], height))
        lines = [line for each in panel["targets"] for line in _lines(url, each, panel, stretch)]
        _panel(axes, panel, lines, stretch)
    figure.savefig(path, dpi=90)


def _place(cells: Mapping[str, int], height: int) -> tuple[float, float, float, float]:
    """Return where a panel is in the figure: left, bottom, width and height as shares of it."""
    left, width = cells["x"] + MARGIN, cells["w"] - 1.5 * MARGIN
    bottom, tall = height - cells["y"] - cells["h"] + MARGIN, cells["h"] - 2 * MARGIN
    return left / COLUMNS, bottom / height, width / COLUMNS, tall / height


def expression(text: str) -> str:
    """Return a query of the dashboard with everything chosen.

    >>> expression('sum(rate(x_total{namespace=~"$namespace"}[$__rate_interval]))')
    'sum(rate(x_total{namespace=~".*"}[60s]))'
    """
    return re.sub(r"\$(?:namespace|name)\b", ".*", text.replace("$__rate_interval", RATE_WINDOW))


def _lines(
    url: str, target: Mapping[str, Any], panel: Mapping[str, Any], stretch: Stretch
) -> Iterator[PanelLine]:
    first_s = stretch.from_s - stretch.step_s  # the first step ends where the stretch begins
    number = int((stretch.to_s - stretch.from_s) // stretch.step_s) + 1
    steps = Steps(from_s=first_s, step_s=stretch.step_s, number=number)
    query = expression(target["expr"])
    try:
        found = ask_range(Settings(prometheus_url=url), query, steps)
    except PrometheusError as refused:
        raise LabError(f"panel {panel['title']}: {query}: {refused}") from refused
    for labels, points in found:
        if points:
            at_s = tuple(step * stretch.step_s for step in points)
            yield PanelLine(label=_legend(target, labels), at_s=at_s, values=tuple(points.values()))


def _legend(target: Mapping[str, Any], labels: Mapping[str, str]) -> str:
    """Return the legend of a series; of a table's row, all its labels."""
    form = target["legendFormat"]
    if not form:
        return " ".join(value for name, value in sorted(labels.items()) if name != "__name__")
    return re.sub(r"\{\{(\w+)\}\}", lambda found: labels.get(found[1], "-"), form)


def _panel(
    axes: Axes, panel: Mapping[str, Any], lines: Sequence[PanelLine], stretch: Stretch
) -> None:
    shown = lines[:MOST_SERIES]
    axes.set_title(panel["title"], fontsize=9, color=INK, loc="left")
    axes.set_xlim(0, stretch.to_s - stretch.from_s)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=7)
    if panel["type"] == "table":
        _draw_presence(axes, shown)
    else:
        for line in shown:
            axes.plot(line.at_s, line.values, label=line.label, linewidth=1.4)
        scale = panel["fieldConfig"]["defaults"]["custom"].get("scaleDistribution", {})
        if scale.get("type") == "symlog":
            axes.set_yscale("symlog", base=scale["log"], linthresh=scale["linearThreshold"])
        axes.set_ylim(0, HEADROOM * axes.get_ylim()[1])
        axes.grid(axis="y", alpha=0.25)
        axes.set_ylabel(UNITS.get(panel["fieldConfig"]["defaults"]["unit"], ""), fontsize=7)
    if not shown:
        axes.text(0.5, 0.5, "no data", transform=axes.transAxes, ha="center", fontsize=8)
    elif panel["type"] != "table":
        axes.legend(fontsize=6, frameon=False, loc="upper left")


def _draw_presence(axes: Axes, lines: Sequence[PanelLine]) -> None:
    """Show for each row of a table when it was there."""
    for row, line in enumerate(lines):
        axes.plot(line.at_s, [row] * len(line.at_s), ".", markersize=4)
        axes.text(line.at_s[0], row + 0.2, line.label, fontsize=6, color=INK)
    axes.set_yticks(())
    axes.set_ylim(-1, len(lines))
