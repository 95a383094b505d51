"""What the demo watches: one sample of load, object and engines every two seconds."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tonnage.cluster.calls import WorldError
from tonnage.cluster.kube import DEPLOYMENTS, MODEL_DEPLOYMENTS, KubeApi
from tonnage.cluster.ranges import Series, Steps, ask_range
from tonnage.settings import Settings
from tonnage_lab.load import LoadControl
from tonnage_lab.load_client import RequestRecord, attainment

INTERVAL_S: Final = 2.0
WAITING: Final = "sum(vllm:num_requests_waiting)"


@dataclass(frozen=True, slots=True, kw_only=True)
class StorySample:
    """The story at one moment. None: not known then."""

    at_s: float
    """Since the first sample."""
    sent_requests_per_s: float
    measured_requests_per_s: float | None
    capacity_requests_per_s: float | None
    """Of all replicas asked for, as Tonnage believes."""
    desired: int
    ready: int
    waiting: float | None
    mbu: float | None
    efficiency: float | None
    """Bandwidth efficiency, as learned."""
    step_ratio: float | None
    """Time of a typical step as learned, over that of the prior."""


@dataclass(slots=True, kw_only=True)
class Story:
    """Samples, the status that was last seen, and when the load changed."""

    samples: list[StorySample] = field(default_factory=list)
    phases: list[tuple[float, str]] = field(default_factory=list)
    """(time, name)"""
    began_s: float = field(default_factory=time.time)
    status: Mapping[str, Any] = field(default_factory=dict)

    def begin(self, phase: str) -> None:
        self.phases.append((time.time() - self.began_s, phase))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Where samples come from."""

    kube: KubeApi
    settings: Settings
    namespace: str
    name: str
    control: LoadControl


def take(sources: Sources, story: Story) -> StorySample:
    """Read the object, its Deployment and the queue once."""
    path = MODEL_DEPLOYMENTS.path(sources.namespace, sources.name)
    story.status = (sources.kube.get(path) or {}).get("status") or {}
    deployment = sources.kube.get(DEPLOYMENTS.path(sources.namespace, sources.name)) or {}
    desired = (deployment.get("spec") or {}).get("replicas", 0)
    waiting = ask_now(sources.settings, WAITING)
    measured, estimate = story.status.get("measured") or {}, story.status.get("estimate") or {}
    learned = (story.status.get("calibration") or {}).get("requestsPerSecond")
    each = estimate.get("requestsPerSecond") if learned is None else learned
    return StorySample(
        at_s=time.time() - story.began_s,
        sent_requests_per_s=sources.control.requests_per_s,
        measured_requests_per_s=_figure(measured, "requestsPerSecond"),
        capacity_requests_per_s=None if each is None else each * desired,
        desired=desired,
        ready=(deployment.get("status") or {}).get("readyReplicas", 0),
        waiting=waiting[0][1].get(0) if waiting else None,
        mbu=_figure(measured, "memoryBandwidthUtilization"),
        efficiency=_learned_value(story.status, "bandwidthEfficiency"),
        step_ratio=_learned_value(story.status, "stepTime"),
    )


def ask_now(settings: Settings, expression: str) -> list[Series]:
    """Return what an expression comes to now: the value of step 0 of each series."""
    steps = Steps(from_s=time.time() - INTERVAL_S, step_s=INTERVAL_S, number=1)
    return ask_range(settings, expression, steps)


def _figure(measured: Mapping[str, Any], name: str) -> float | None:
    return (measured.get(name) or {}).get("value")


def _learned_value(status: Mapping[str, Any], name: str) -> float | None:
    return ((status.get("calibration") or {}).get(name) or {}).get("learned")


@contextmanager
def sampling(sources: Sources, tell: Callable[[Story], None]) -> Iterator[Story]:
    """Sample in a thread while the block runs; ``tell`` is called after each sample."""
    story, stop = Story(), threading.Event()

    def watch() -> None:
        while not stop.wait(INTERVAL_S):
            try:
                story.samples.append(take(sources, story))
            except WorldError:
                continue  # a sample is missing: the next one comes
            tell(story)

    thread = threading.Thread(target=watch, name="sampler")
    thread.start()
    try:
        yield story
    finally:
        stop.set()
        thread.join()


INK: Final = "#1f2933"
DEMAND: Final = "#0b6e99"
CAPACITY: Final = "#b0bec5"
READY: Final = "#2f855a"
WARM: Final = "#c05621"
TARGET: Final = "#9b2c2c"
WINDOW_S: Final = 15.0
HEIGHTS: Final = (3, 2, 1.4, 1.6, 1.8)
PERCENT: Final = 100


def draw(
    path: Path,
    story: Story,
    records: Sequence[RequestRecord],
    *,
    limits_s: tuple[float, float],
    hidden_efficiency: float | None,
) -> None:
    """Write the picture. ``limits_s``: the SLO targets on TTFT and TPOT, at p95.

    ``hidden_efficiency``: None where nobody knows it.
    """
    figure = Figure(figsize=(9, 10), layout="constrained")
    axes = figure.subplots(len(HEIGHTS), 1, sharex=True, height_ratios=list(HEIGHTS))
    _demand(axes[0], story.samples)
    _replicas(axes[1], story.samples)
    _queue(axes[2], story.samples)
    _attainment(axes[3], story, records, limits_s)
    _bandwidth(axes[4], story.samples, hidden_efficiency)
    for each in axes:
        _frame(each, story)
    axes[-1].set_xlabel("seconds since the load began")
    for at_s, phase in story.phases:
        axes[0].annotate(phase, (at_s, 1.02), xycoords=("data", "axes fraction"), color=INK)
    figure.suptitle("Load triples and falls: what Tonnage measures, decides and learns", color=INK)
    figure.savefig(path, dpi=110)


def _frame(axes: Axes, story: Story) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", alpha=0.25)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False, fontsize=8)
    for at_s, _ in story.phases:
        axes.axvline(at_s, color=INK, alpha=0.2, linewidth=1)


def _line(axes: Axes, samples: Sequence[StorySample], name: str, **style: Any) -> None:
    known = [(s.at_s, getattr(s, name)) for s in samples if getattr(s, name) is not None]
    axes.step([at_s for at_s, _ in known], [value for _, value in known], where="post", **style)


def _demand(axes: Axes, samples: Sequence[StorySample]) -> None:
    _line(axes, samples, "capacity_requests_per_s", color=CAPACITY, label="capacity believed")
    _line(axes, samples, "sent_requests_per_s", color=INK, linestyle=":", label="sent")
    _line(axes, samples, "measured_requests_per_s", color=DEMAND, label="measured")
    axes.set_ylabel("requests/s")


def _replicas(axes: Axes, samples: Sequence[StorySample]) -> None:
    _line(axes, samples, "desired", color=DEMAND, label="asked for")
    _line(axes, samples, "ready", color=READY, linewidth=2, label="ready")
    axes.set_ylabel("replicas")


def _queue(axes: Axes, samples: Sequence[StorySample]) -> None:
    _line(axes, samples, "waiting", color=WARM, label="waiting")
    axes.set_ylabel("queue")


def _attainment(
    axes: Axes, story: Story, records: Sequence[RequestRecord], limits_s: tuple[float, float]
) -> None:
    ttft_s, tpot_s = limits_s
    for label, color, limits in (
        ("TTFT met", DEMAND, {"ttft_s": ttft_s}),
        ("TPOT met", READY, {"tpot_s": tpot_s}),
    ):
        shares = [
            attainment(
                records,
                since_s=story.began_s + each.at_s - WINDOW_S,
                until_s=story.began_s + each.at_s,
                **limits,
            )
            for each in story.samples
        ]
        known = [
            (each.at_s, PERCENT * share)
            for each, share in zip(story.samples, shares, strict=True)
            if share is not None
        ]
        axes.plot([x for x, _ in known], [y for _, y in known], color=color, label=label)
    axes.axhline(95, color=TARGET, linestyle="--", linewidth=1, label="target")
    axes.set_ylabel("% of requests")


def _bandwidth(axes: Axes, samples: Sequence[StorySample], hidden_efficiency: float | None) -> None:
    _line(axes, samples, "mbu", color=DEMAND, label="MBU observed")
    _line(axes, samples, "efficiency", color=READY, label="bandwidth\nefficiency learned")
    if hidden_efficiency is not None:
        axes.axhline(hidden_efficiency, color=INK, linestyle=":", linewidth=1, label="as hidden")
    axes.set_ylabel("of bandwidth")
