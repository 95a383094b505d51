"""Labels in a plot: beside what they name, and clear of everything else."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Final

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.transforms import Bbox

from tonnage.cli.page.drawing import INK, SMALL_PX

GAP_PX: Final = 2.0
"""Between a label and anything else, at least."""
FAR_PX: Final = (8.0, 18.0)
AROUND: Final = ((1, -1), (0, -1), (-1, 1), (0, 1), (1, 0), (-1, 0), (1, 1), (-1, -1))
"""Where a label may stand, seen from its point: to the right, and up."""
CORNERS: Final = ((1, -1), (-1, 1), (-1, -1), (1, 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlotPoint:
    """A point in a plot, in the units of its axes, and the room that its marker takes."""

    x: float
    y: float
    radius_px: float


class LabelWriter:
    """Writes labels into a plot of which all else is drawn."""

    def __init__(self, axes: Axes, points: Iterable[PlotPoint]) -> None:
        """Settle where everything stands; ``points``: the markers that labels keep clear of."""
        figure = axes.get_figure(root=True)
        if figure is None:
            raise ValueError("axes without a figure")
        canvas = FigureCanvasAgg(figure)
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        self._axes, self._renderer = axes, canvas.get_renderer()  # type: ignore[no-untyped-call]
        self._frame = axes.get_window_extent()
        self._points = [self._around(point) for point in points]
        self._labels: list[Bbox] = []
        self._lines = [
            line.get_transform().transform_path(line.get_path())
            for line in axes.get_lines()
            if line.get_linestyle() != "None"
        ]

    def write(self, text: str, point: PlotPoint, *, color: str | None = None) -> None:
        """Write a text beside a point, or nowhere if there is no room for it.

        ``color``: of the point, where that tells it apart; its label may then be nearer to another.
        """
        own = self._around(point)
        for across, up, away in _offsets(point.radius_px):
            label = self._axes.annotate(
                text,
                (point.x, point.y),
                xytext=away,
                textcoords="offset points",
                ha=("right", "center", "left")[across + 1],
                va=("top", "center", "bottom")[up + 1],
                color=color or INK,
                weight="bold" if color else "normal",
                fontsize=SMALL_PX,
            )
            box = label.get_window_extent(self._renderer)
            if self._is_clear(box) and (color or self._is_nearest(box, own)):
                self._labels.append(box)
                return
            label.remove()

    def _around(self, point: PlotPoint) -> Bbox:
        x, y = self._axes.transData.transform((point.x, point.y))
        return Bbox.from_extents(x, y, x, y).padded(point.radius_px)

    def _is_clear(self, box: Bbox) -> bool:
        frame, apart = self._frame, box.padded(GAP_PX)
        is_within = frame.contains(*apart.min) and frame.contains(*apart.max)
        return (
            is_within
            and not apart.count_overlaps([*self._points, *self._labels])
            and not any(line.intersects_bbox(box, filled=False) for line in self._lines)
        )

    def _is_nearest(self, box: Bbox, own: Bbox) -> bool:
        """Tell whether no other point could be taken for the one that a label stands at."""
        return all(_distance(box, own) <= _distance(box, other) for other in self._points)


def _distance(one: Bbox, other: Bbox) -> float:
    across = max(one.x0 - other.x1, other.x0 - one.x1, 0.0)
    up = max(one.y0 - other.y1, other.y0 - one.y1, 0.0)
    return math.hypot(across, up)


def _offsets(radius_px: float) -> Iterator[tuple[int, int, tuple[float, float]]]:
    """Yield where a label may stand: to the right, up, and by how much; close by at first."""
    near = radius_px + GAP_PX + 1
    for across, up in AROUND:
        yield across, up, (across * near, up * near)
    for far, (across, up) in product(FAR_PX, CORNERS):  # beside a line through the point
        yield across, up, (across * (GAP_PX + 1), up * (near + far))
