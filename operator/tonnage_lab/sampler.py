"""What the demo watches: one sample of load, object and engines every two seconds."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from tonnage.cluster.calls import WorldError
from tonnage.cluster.kube import DEPLOYMENTS, MODEL_DEPLOYMENTS, KubeApi
from tonnage.cluster.ranges import Series, Steps, ask_range
from tonnage.settings import Settings
from tonnage_lab.load import LoadControl

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
