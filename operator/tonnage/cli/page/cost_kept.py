"""Policies by what they cost and what they keep: further left is cheaper, higher is better."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from matplotlib.figure import Figure

from tonnage.cli.answers.replay_words import percent
from tonnage.cli.page.drawing import BAD, SERIES, Picture, add_legend, blank, picture
from tonnage.cli.page.plain import short

PLOT_PX: Final = 320
DOT_PX: Final = 8.0


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
    policies = dict.fromkeys(dot.policy for dot in dots)
    return picture(
        lambda: cost_kept_figure(dots, target, unit),
        name=name,
        title="GPU-hours against SLO attainment",
        about=f"{', '.join(policies)}: a point for each seed",
        note="A point for each seed: further left takes fewer GPU-hours, higher has more requests "
        f"within the SLO. Below the line the target of {percent(target)} is missed.",
    )


def cost_kept_figure(dots: Sequence[Dot], target: float, unit: str) -> Figure:
    """Draw a point for each run."""
    figure = blank(PLOT_PX)
    axes = figure.add_subplot()
    axes.set(xlabel=f"GPU-hours {unit}", ylabel="requests within the SLO")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.1%}")
    handles = [axes.axhline(target, color=BAD, linestyle="--", linewidth=1.2, label="target")]
    for policy, (color, marker) in colors_of([dot.policy for dot in dots]).items():
        own = [dot for dot in dots if dot.policy == policy]
        handles += axes.plot(
            [dot.gpu_hours for dot in own],
            [dot.attainment for dot in own],
            color=color,
            marker=marker,
            markersize=DOT_PX,
            linestyle="",
            label=short(policy),
        )
    axes.set_xlim(left=0)
    add_legend(figure, handles)
    return figure
