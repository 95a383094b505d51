"""What a tick found, as the operator's own metrics: samples of each object, with bounded labels."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from tonnage.api.status import LearnedConstant
from tonnage.control.input.memory import ObjectMemory
from tonnage.control.input.state import Assessment, Fleet
from tonnage.control.input.writers import WriteKind
from tonnage.control.report.conditions import has_roles, said_by_roles
from tonnage.control.report.reasons import label_reason
from tonnage.control.report.status import newest_decision, replicas_status
from tonnage.control.tick import TickResult
from tonnage.explain.report import usd_per_hour

Key = tuple[str, str]
"""Namespace and name of an object."""


class Family(NamedTuple):
    """A metric of each object: what it says, and its labels beside namespace and name."""

    text: str
    labels: tuple[str, ...] = ()
    is_counter: bool = False


class MetricSample(NamedTuple):
    """One value of one object; a family that is missing here was not known in this tick."""

    family: str
    value: float
    labels: tuple[str, ...] = ()
    """Values of the family's own labels, in its order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectSeries:
    """What one object shows in this tick, and what is added to its counters."""

    key: Key
    gauges: tuple[MetricSample, ...]
    counts: tuple[MetricSample, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSeries:
    """The series of one tick."""

    objects: tuple[ObjectSeries, ...]
    num_objects: int
    num_left_out: int
    """Objects that have no series, since there are more than may have some."""
    num_faults: int
    """Bugs of ours that objects met in this tick."""
    is_blind: bool
    """Prometheus answered nothing that decides."""


TARGET: Final = ("slo", "quantile")
FAMILIES: Final[Mapping[str, Family]] = {
    "tonnage_replicas_needed": Family("Replicas that the demand asks for, before any limit"),
    "tonnage_replicas_wanted": Family("Replicas that Tonnage wants, within every limit"),
    "tonnage_replicas_current": Family("Replicas that the Deployment asks for"),
    "tonnage_replicas_ready": Family("Replicas that are Ready"),
    "tonnage_max_num_seqs": Family("The flag max-num-seqs of the plan"),
    "tonnage_max_num_batched_tokens": Family("The flag max-num-batched-tokens of the plan"),
    "tonnage_requests_per_second": Family("Measured demand"),
    "tonnage_waiting_requests": Family("Requests that wait in the queues of all replicas"),
    "tonnage_goodput_requests_per_second": Family(
        "Requests per second that one replica can serve within every SLO target"
    ),
    "tonnage_goodput_factor": Family(
        "Factor on the goodput of the step time, learned from SLO attainment"
    ),
    "tonnage_utilization": Family(
        "Measured demand over the goodput of the replicas that are Ready"
    ),
    "tonnage_memory_bandwidth_utilization": Family(
        "Share of the GPU's memory bandwidth that engine steps use, while engines are busy"
    ),
    "tonnage_model_flops_utilization": Family(
        "Share of the GPU's dense FLOP/s that engine steps use, while engines are busy"
    ),
    "tonnage_slo_attainment": Family("Share of requests within the limit of an SLO target", TARGET),
    "tonnage_error_budget_left": Family(
        "Unused share of the late requests that an SLO target allows over its window", TARGET
    ),
    "tonnage_error_budget_burn_rate": Family(
        "Recent late requests over those that an SLO target allows of as many", TARGET
    ),
    "tonnage_calibration": Family(
        "Constants of the step time: before anything was measured, as learned, and as planned",
        labels=("constant", "estimate"),
    ),
    "tonnage_calibration_doubt": Family(
        "Relative standard deviation of a learned constant", labels=("constant",)
    ),
    "tonnage_usd_per_hour": Family("Price of the replicas that Tonnage wants"),
    "tonnage_status_failures": Family(
        "Failures in a row to write the status, for what it is or by a webhook: 0 in order"
    ),
    "tonnage_condition": Family(
        "1 for the status and the reason that a condition has now",
        labels=("type", "status", "reason"),
    ),
    "tonnage_decisions": Family(
        "Changes of the number of replicas that were decided",
        labels=("reason", "direction"),
        is_counter=True,
    ),
    "tonnage_conflicts": Family(
        "Changes by other writers of what Tonnage had written", labels=("field",), is_counter=True
    ),
}
UTILIZATION: Final = {
    "memory_bandwidth_utilization": "memoryBandwidthUtilization",
    "model_flops_utilization": "modelFlopsUtilization",
}
"""Figures of the last look, smoothed."""
CONSTANTS: Final = {
    "OverheadFactor": "overhead_factor",
    "BandwidthEfficiency": "bandwidth_efficiency",
    "PrefillEfficiency": "prefill_efficiency",
    "StepTime": "step_time",
}
"""Of the step time, at the last look; the last is what they make together."""


def fleet_series(outcome: TickResult, fleet: Fleet, *, most: int) -> FleetSeries:
    """Return the series of a tick.

    Only so many objects have any: the oldest, so that a new one takes the series of none.
    """
    known = sorted(outcome.found, key=lambda each: (each.state.view.created, each.state.view.key))
    shown = [(each, outcome.memory.objects[each.state.view.uid]) for each in known[:most]]
    return FleetSeries(
        objects=tuple(
            ObjectSeries(
                key=found.state.view.key,
                gauges=tuple(gauges(found, memory)),
                counts=tuple(counts(found, memory, now_s=fleet.now_s)),
            )
            for found, memory in shown
        ),
        num_objects=len(known),
        num_left_out=len(known) - len(shown),
        num_faults=len(outcome.faults),
        is_blind=fleet.metrics_problem is not None,
    )


def gauges(found: Assessment, memory: ObjectMemory) -> Iterator[MetricSample]:
    """Yield what is known of an object now; ``memory``: as this tick leaves it."""
    for family, value in _figures(found, memory).items():
        if value is not None:
            yield MetricSample(f"tonnage_{family}", value)
    yield from _of_targets(found)
    learned = memory.reported.calibration if found.chosen else None
    for name, field in CONSTANTS.items() if learned else ():
        constant: LearnedConstant = getattr(learned, field)
        for estimate in ("prior", "learned", "planned"):
            yield MetricSample("tonnage_calibration", getattr(constant, estimate), (name, estimate))
        yield MetricSample("tonnage_calibration_doubt", constant.deviation_fraction, (name,))
    repeated = said_by_roles(found)
    for condition in memory.reported.conditions.values():
        if condition.type not in repeated:
            labels = (condition.type, condition.status, label_reason(condition.reason))
            yield MetricSample("tonnage_condition", 1.0, labels)


def _of_targets(found: Assessment) -> Iterator[MetricSample]:
    for each in found.observed.attainments if found.observed else ():
        target = (each.name, f"{each.quantile:g}")
        yield MetricSample("tonnage_slo_attainment", each.fraction, target)
    for budget in found.budgets:
        target = (budget.objective.latency, f"{budget.objective.quantile:g}")
        yield MetricSample("tonnage_error_budget_left", budget.left, target)
        yield MetricSample("tonnage_error_budget_burn_rate", budget.burn_rate, target)


def _figures(found: Assessment, memory: ObjectMemory) -> dict[str, float | None]:
    """Return what has no labels of its own, by the name of its family; None: it is not known."""
    replicas, demand, chosen = replicas_status(found), found.traffics.demand, found.chosen
    unwritten = found.memory.written.failures.get(WriteKind.STATUS)
    known: dict[str, float | None] = {"status_failures": unwritten.times if unwritten else 0}
    if demand is not None:
        known |= {"requests_per_second": demand.requests_per_s, "waiting_requests": demand.waiting}
    if not has_roles(found):  # whose series say it
        known |= {
            "replicas_wanted": replicas.desired,
            "replicas_current": replicas.current,
            "replicas_ready": replicas.ready,
            "replicas_needed": found.need.replicas if found.need else None,
        }
    if found.observed is not None:
        known |= {name: memory.reported.gauges.get(of) for name, of in UTILIZATION.items()}
    if chosen is not None:
        each_requests_per_s = chosen.capacity.each_requests_per_s(max(1, replicas.ready))
        served_per_s = replicas.ready * each_requests_per_s
        known |= {
            "max_num_seqs": chosen.sizing.flags.max_num_seqs,
            "max_num_batched_tokens": chosen.sizing.flags.max_num_batched_tokens,
            "goodput_requests_per_second": each_requests_per_s,
            "goodput_factor": chosen.goodput_factor,
            "usd_per_hour": usd_per_hour(chosen.sizing, replicas.desired),
        }
        if demand is not None and served_per_s > 0:
            known["utilization"] = demand.requests_per_s / served_per_s
    return known


def counts(found: Assessment, memory: ObjectMemory, *, now_s: float) -> Iterator[MetricSample]:
    """Yield what this tick adds to an object's counters."""
    decision = newest_decision(found.memory.reported, memory.reported)
    if decision:
        direction = "up" if decision.to_replicas > decision.from_replicas else "down"
        yield MetricSample("tonnage_decisions", 1.0, (label_reason(decision.code), direction))
    writers = found.memory.writers
    for name, part in (("replicas", writers.replicas), ("template", writers.template)):
        if part.is_new and part.edited_at_s == now_s:
            yield MetricSample("tonnage_conflicts", 1.0, (name,))
