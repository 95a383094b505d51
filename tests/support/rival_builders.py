"""What a rival's rule is shown, made up by hand; and a load that a rule scales for."""

from bisect import bisect_right
from dataclasses import replace

from fleet_builders import a_model, a_request_of, a_sizing
from tonnage.replay.baselines.rule import ObservedPod, Signals
from tonnage.replay.cluster import FirstPlan, ReplayedModel, StartupTime
from tonnage.replay.policies import RivalController
from tonnage.replay.prometheus import Series
from tonnage.replay.simulation import Simulation
from tonnage.replay.traffic import Rate, TrafficSource, traffic
from tonnage.settings import Settings
from tonnage.sizing.expected import expected_workload
from tonnage.sizing.request import Flags
from tonnage.sizing.split import Parallelism
from tonnage.sizing.workload import Slo, Target

FLAGS = Flags(
    max_num_seqs=256,
    max_num_batched_tokens=8192,
    gpu_memory_utilization=0.9,
    parallelism=Parallelism(tensor=1),
)
SETTINGS = Settings(prometheus_url="http://prometheus.test:9090")
SMALL = {
    "model": {"id": "meta-llama/Llama-3.1-8B-Instruct"},
    "hardware": {"gpu": "H100", "gpusPerReplica": 1},
    "demand": {
        "requestsPerSecond": 8,
        "promptTokens": {"mean": 2000, "p99": 4000},
        "outputTokens": {"mean": 200},
    },
    "scaling": {"minReplicas": 1, "maxReplicas": 6, "routing": "LeastOutstanding"},
}
DURATION_S = 360.0


def piecewise(pieces: list[tuple[float, float]]) -> Rate:
    """Return a rate by when each begins; the first from the start.

    >>> piecewise([(0, 4.0), (60, 8.0)])(61)
    8.0
    """
    starts, rates = [start for start, _ in pieces], [rate for _, rate in pieces]
    return lambda at_s: rates[max(0, bisect_right(starts, at_s) - 1)]


KNOWN = {
    "flags": FLAGS,
    "min_replicas": 1,
    "max_replicas": 100,
    "slo": Slo(
        ttft=(Target(quantile=0.9, limit_s=2.0),), tpot=(Target(quantile=0.9, limit_s=0.05),)
    ),
    "kv_tokens": 100_000,
    "believed_requests_per_s": 10.0,
}
"""What is known of an object: 100,000 KV tokens, 10 requests/s of a replica as believed."""


def a_signal(asked=4, *, at_s=0.0, ready=None, about=None, **answers):
    """Signals of so many pods, each of an answer's values of one of them in order."""
    ready = asked if ready is None else ready
    seen = tuple(
        ObservedPod(name=f"pod-{n}", age_s=1000.0, ready_for_s=900.0 if n < ready else None)
        for n in range(asked)
    )
    return Signals(
        at_s=at_s,
        asked=asked,
        pods=seen,
        answers={name: list(_series(values)) for name, values in answers.items()},
        **KNOWN | (about or {}),
    )


def _series(values):
    """A value for each pod; or for the first one, by upper bound of a histogram."""
    if isinstance(values, dict):
        for bound, value in values.items():
            le = "+Inf" if bound == float("inf") else str(bound)
            yield Series(labels={"pod": "pod-0", "le": le}, value=value)
        return
    for number, value in enumerate(values):
        if value is not None:
            labels = {"namespace": "serving", "pod": f"pod-{number}", "engine": "0"}
            yield Series(labels=labels, value=value)


def turns(rule, count, *, asked, in_flight=0, requests_per_s=0.0):
    """What it asks for at each of so many acts, of what stays as it is."""
    found = []
    for n in range(count):
        at_s = n * rule.interval_s
        signal = a_signal(asked, at_s=at_s)
        counted = {"in_flight": in_flight, "arrived": round(requests_per_s * at_s)}
        found.append(rule.replicas(replace(signal, **counted)))
    return found


def a_record(rule, *, replicas=2):
    """A load that rises from half of what two replicas serve to twice that, scaled by a rule."""
    model = a_model(**SMALL)
    request, sizing = a_request_of(model), a_sizing(model)
    source = TrafficSource(
        rate=piecewise([(0, 4.0), (60, 30.0)]), shapes=((0.0, expected_workload(model.spec)),)
    )
    served = ReplayedModel(
        model=model,
        traffic=traffic(source, duration_s=DURATION_S, context_tokens=request.context_tokens),
        start=StartupTime(mean_s=60.0),
    )
    planned = FirstPlan(
        flags=sizing.flags,
        replicas=replicas,
        believed_requests_per_s=sizing.goodput_requests_per_s,
    )
    controller = RivalController(rule, planned)
    return Simulation(served, settings=SETTINGS, controller=controller).run(DURATION_S)


def simulated(rival):
    """A record of the rule as its project ships it."""
    return a_record(rival.factory(rival.default, SETTINGS.scrape_interval_s))
