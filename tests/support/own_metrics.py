"""The operator's metrics page as a tick fills it, and what an expression of PromQL names."""

import re
from pathlib import Path

from fleet_builders import (
    NOW_S,
    UNSCHEDULABLE,
    a_deployment_body,
    a_fleet,
    a_manifest,
    a_memory,
    a_pod_body,
    a_sizing,
    a_state,
    no_config,
)
from measured_builders import an_engine
from tonnage.control.input.memory import Memory
from tonnage.control.series import fleet_series
from tonnage.control.tick import tick
from tonnage.estimate.budget import Ledger
from tonnage.fleet.heartbeat import Heartbeat

VLLM_PAGE = Path(__file__).parents[1] / "unit/lab/data/vllm-0.33-metrics.txt"
ENDINGS = {"counter": ("_total",), "histogram": ("_sum", "_count", "_bucket")}
OF_GPUS = frozenset({"DCGM_FI_PROF_DRAM_ACTIVE"})
"""Of NVIDIA's exporter."""
NAME = re.compile(r"\b(?:tonnage_|vllm:|DCGM_)[A-Za-z0-9_:]+")
SELECTOR = re.compile(r"(tonnage_[a-z_]+)\{([^}]*)\}")
LABEL = re.compile(r"([a-z_]+)\s*(?:=~|!~|!=|=)")
EACH = a_sizing().goodput_requests_per_s
DOWN = ("PrometheusUnreachable", "no answer")
STUCK = [{"type": "Progressing", "status": "False", "message": "deadline exceeded"}]


def judged(fraction):
    """Two engines whose requests have so large a share within the limit of TTFT."""
    within = {2.0: fraction, float("inf"): 1.0}
    return tuple(an_engine(pod, completed_per_s=EACH / 2, ttft_within=within) for pod in "ab")


def with_status(**conditions):
    body = a_deployment_body()
    body["status"] |= conditions
    return body


HEALTHY = {"engines": judged(0.99)}
BURNT, AMPLE = (
    Ledger(limits={"TTFT 2.00 s": {int(NOW_S // 3600): (1e6, late)}}) for late in (7e4, 0.0)
)
OF_THE_OPERATOR = {"TonnageOperatorBlind", "TonnageSettingsRefused"}
"""Alerts that are about no object."""
FAULTS = {
    "TonnageSLOMissed": {"engines": judged(0.5), "ledger": AMPLE},
    "TonnageErrorBudgetBurnt": HEALTHY | {"ledger": BURNT},
    "TonnageMetricsMissing": {"engines": ()},
    "TonnageNoCapacity": HEALTHY
    | {"pods": [a_pod_body("a"), a_pod_body("b"), a_pod_body("c", **UNSCHEDULABLE)]},
    "TonnageConflict": HEALTHY | {"conflicting_autoscaler": "HorizontalPodAutoscaler llama"},
    "TonnageRolloutStuck": HEALTHY | {"live": with_status(conditions=STUCK)},
    "TonnageStalled": {"engines": (), "model_config": no_config("no such key")},
    "TonnageCalibrationOutOfRange": {
        "engines": tuple(an_engine(p, completed_per_s=EACH / 2, kv_tokens=100_000) for p in "ab")
    },
}
"""What a tick sees when something is wrong, by the alert that it is to raise."""
ALONGSIDE = {"TonnageStalled": {"TonnageMetricsMissing"}}
"""Alerts that a fault raises beside its own."""


def told(changes=HEALTHY, **fleet):
    """The series of one tick of one object; ``ledger``: of the requests that came before."""
    changes = dict(changes)
    ledger = changes.pop("ledger", Ledger())
    state = a_state(a_manifest(), **changes)
    seen = a_fleet(state, now_s=NOW_S, **fleet)
    outcome = tick(seen, Memory(objects={state.view.uid: a_memory(state, ledger=ledger)}))
    return fleet_series(outcome, seen, most=10)


def exposed():
    """{sample name: labels} of the operator's page; of object series as a tick fills them."""
    heartbeat = Heartbeat()
    found = {}
    for family in heartbeat.registry.collect():
        found |= {name: set() for name in names_of(family)}
    heartbeat.failed_queries.labels("scrapes")
    heartbeat.step("observe")
    for family in heartbeat.registry.collect():
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def names_of(family):
    """The names of the samples of a family, also while it has none."""
    return {f"{family.name}{ending}" for ending in ENDINGS.get(family.type, ("",))}


def of_vllm():
    """{sample name: labels} of a page of vLLM 0.33; counters are listed by their samples."""
    lines = VLLM_PAGE.read_text().splitlines()
    rows = [line.split() for line in lines if not line.startswith("#")]
    return {
        f"{name}{ending}": set(labels[0].split(",") if labels else ()) | {"le"}
        for name, kind, *labels in rows
        for ending in (ENDINGS[kind] if kind == "histogram" else ("",))
    }
