"""ModelDeployments as the API server holds them, and what is made of them."""

import copy
from dataclasses import fields, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import yaml

from measured_builders import an_engine, steady_lengths
from measured_builders import with_lengths as of_lengths
from tonnage.api.objects import parse_model_deployment
from tonnage.api.status import Reason
from tonnage.catalog.gpu import built_in_gpus
from tonnage.control.assess import decide_object, size_object
from tonnage.control.decide.budget import RemainingBudget
from tonnage.control.input.memory import (
    DecisionMemory,
    Needed,
    ObjectMemory,
    PodMemory,
    ReplicaGoodput,
    TrafficMemory,
    WriteMemory,
)
from tonnage.control.input.sizing_cache import SizingCache
from tonnage.control.input.state import Assessment, Fleet, ModelState, Traffics
from tonnage.control.input.writers import Cause, Failure
from tonnage.control.observe.ownership import own_only
from tonnage.estimate.calibration import Calibrations
from tonnage.estimate.headroom import UNSEEN
from tonnage.fleet.pods import pod_view
from tonnage.fleet.views import deployment_view, model_view
from tonnage.manifests.children import Site, deployment, site_of
from tonnage.manifests.names import RECORD
from tonnage.policy.situation import Metrics
from tonnage.settings import Settings
from tonnage.sizing.plan import requests_per_s_asked
from tonnage.sizing.request import ask, look_up
from tonnage.sizing.search import size
from tonnage.sizing.workload import Slo

EXAMPLES = Path(__file__).parents[2] / "deploy" / "examples"
SITE = Site(has_pod_monitors=True, scrape_interval_s=15)
SPEC = {
    "model": {"id": "meta-llama/Llama-3.3-70B-Instruct", "weights": "fp8"},
    "hardware": {"gpu": "H200", "gpusPerReplica": 2},
    "contextLength": 8192,
    "slo": {"timeToFirstToken": {"p95": "2s"}, "timePerOutputToken": {"p95": "50ms"}},
    "demand": {
        "requestsPerSecond": 4,
        "promptTokens": {"mean": 4000, "p99": 7000},
        "outputTokens": {"mean": 1000},
    },
    "scaling": {"minReplicas": 1, "maxReplicas": 8},
    "engine": {"version": "0.33"},
}


def a_manifest(name="llama", *, namespace="serving", uid=None, generation=1, **spec):
    """A ModelDeployment; a field of the spec that is given as None is left out."""
    fields = copy.deepcopy(SPEC) | spec
    return {
        "apiVersion": "tonnage.dev/v1alpha1",
        "kind": "ModelDeployment",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": uid or f"uid-of-{name}",
            "generation": generation,
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {key: value for key, value in fields.items() if value is not None},
    }


def a_model(name="llama", **changes):
    return parse_model_deployment(a_manifest(name, **changes))


@cache
def example(file):
    """One of the examples that ship with Tonnage."""
    manifest = yaml.safe_load((EXAMPLES / f"{file}.yaml").read_text())
    manifest["metadata"] |= {"namespace": "serving", "uid": "uid-of-the-example"}
    return parse_model_deployment(manifest)


def a_request_of(model):
    return ask(model.spec, look_up(model.spec, built_in_gpus()))


def an_offline_sizing(model):
    """The answer without an SLO, which needs no run of the engine model."""
    return answer_to(replace(a_request_of(model), slo=Slo()))


answer_to = cache(size)
"""Most tests ask the same: 80 ms each time."""


def a_sizing(model=None, **spec):
    """The answer of the arithmetic to a model, ``a_model`` unless another is given."""
    return answer_to(a_request_of(model or a_model(**spec)))


def first_replicas(model=None, **spec):
    """With so many it begins: for the demand of the spec, and room for what nobody measured yet."""
    sizing = a_sizing(model, **spec)
    return sizing.replicas_for((1 + UNSEEN) * requests_per_s_asked(sizing))


NOW_S = 1_767_312_000.0
"""2026-01-02T00:00:00Z, a day after everything was created."""
CREATED = "2026-01-01T00:00:00Z"
READY_AT = "2026-01-01T00:10:00Z"
OLD_S = NOW_S - 100_000
"""Long before: nothing is young any more."""


def at(seconds):
    """A Kubernetes time, so many seconds before NOW_S."""
    return datetime.fromtimestamp(NOW_S - seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def owned_by(kind, name, uid):
    return [{"apiVersion": "v1", "kind": kind, "name": name, "uid": uid, "controller": True}]


def a_deployment_body(model=None, *, replicas=2, ready=None, sizing=None, **metadata):
    """The Deployment that Tonnage made for a model, rolled out."""
    model = model or a_model()
    made = deployment(model, sizing or a_sizing(model), SITE)
    num_ready = replicas if ready is None else ready
    made["spec"]["replicas"] = replicas
    made["metadata"] |= {"uid": f"uid-of-deployment-{model.name}", "resourceVersion": "7"}
    made["metadata"] |= {"generation": 3, "managedFields": managed_by("tonnage", "f:template")}
    made["metadata"] |= metadata
    made["metadata"]["managedFields"] = [*made["metadata"]["managedFields"], *recorded_by()]
    made["status"] = {
        "observedGeneration": made["metadata"]["generation"],
        "replicas": replicas,
        "updatedReplicas": replicas,
        "readyReplicas": num_ready,
    }
    return made


R1 = {
    "name": "r1",
    "model": {"id": "deepseek-ai/DeepSeek-R1"},
    "hardware": {"gpu": "H100", "gpusPerReplica": 16},
    "contextLength": 16_384,
    "slo": {"timeToFirstToken": {"p95": "8s"}, "timePerOutputToken": {"p95": "150ms"}},
    "demand": {
        "requestsPerSecond": 1,
        "promptTokens": {"mean": 2000, "p99": 8000},
        "outputTokens": {"mean": 800},
    },
    "scaling": {"minReplicas": 1, "maxReplicas": 3},
}
"""A model that takes two nodes of eight GPUs."""


def a_model_over_nodes(**changes):
    return a_model(**R1 | changes)


def a_groups_body(model=None, **options):
    """The LeaderWorkerSet that Tonnage made for a model over several nodes, rolled out."""
    made = a_deployment_body(model or a_model_over_nodes(), **options)
    fields = {"f:leaderWorkerTemplate": {"f:leaderTemplate": {}, "f:workerTemplate": {}}}
    entry = {"manager": "tonnage", "operation": "Apply", "fieldsV1": {"f:spec": fields}}
    made["metadata"]["managedFields"] = [entry, *recorded_by()]
    return made


def a_stateful_set_body(name, owner):
    """A StatefulSet of a LeaderWorkerSet: of leaders, or of the workers of one."""
    return {
        "metadata": {
            "name": name,
            "namespace": "serving",
            "uid": f"uid-of-set-{name}",
            "labels": {"leaderworkerset.sigs.k8s.io/name": name},
            "ownerReferences": owned_by(*owner),
        }
    }


def the_sets_of_groups(model, *, num_groups):
    """The StatefulSets of a LeaderWorkerSet: that of its leaders, and one for each of these."""
    owner = ("LeaderWorkerSet", model.name, f"uid-of-deployment-{model.name}")
    names = [f"{model.name}-{index}" for index in range(num_groups)]
    workers = [a_stateful_set_body(name, ("Pod", name, f"uid-of-{name}")) for name in names]
    return [a_stateful_set_body(model.name, owner), *workers]


def a_group_pod_body(name, *, of, **options):
    """A pod of a group, by the name of the StatefulSet that made it."""
    made = a_pod_body(name, **options)
    made["metadata"]["ownerReferences"] = owned_by("StatefulSet", of, f"uid-of-set-{of}")
    return made


def a_deployment_of_a_config_map():
    """The same for a spec whose model is read from a ConfigMap."""
    config = {"configMapKeyRef": {"name": "config", "key": "config.json"}}
    return a_deployment_body(
        a_model(model={"id": "meta-llama/Llama-3.3-70B-Instruct", "config": config})
    )


def managed_by(manager, field, **more):
    """An entry of managedFields: a manager that owns something in a field of the spec."""
    fields = {"f:spec": {field: {"f:spec": {}}}}
    entry = {"manager": manager, "operation": "Apply", "fieldsV1": fields}
    return [entry | more]


def recorded_by(manager="tonnage", *names):
    """An entry of managedFields: a manager that applied annotations of ours; by default all."""
    fields = {f"f:{name}": {} for name in names or RECORD.values()}
    annotations = {"f:metadata": {"f:annotations": fields}}
    return [{"manager": manager, "operation": "Apply", "fieldsV1": annotations}]


def a_replica_set_body(model=None, *, uid=None):
    model = model or a_model()
    name = f"{model.name}-abc"
    return {
        "metadata": {
            "name": name,
            "namespace": model.namespace,
            "uid": uid or f"uid-of-{name}",
            "ownerReferences": owned_by(
                "Deployment", model.name, f"uid-of-deployment-{model.name}"
            ),
        }
    }


def a_pod_body(name="a", *, model=None, ready_for_s=3600, **status):
    """A pod of the ReplicaSet, Ready for so long; None: not Ready."""
    model = model or a_model()
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": at(ready_for_s or 0)}
    created = at((ready_for_s or 0) + 600)
    if ready_for_s is None:
        ready |= {"status": "False", "lastTransitionTime": created}
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": created}
    return {
        "metadata": {
            "name": name,
            "namespace": model.namespace,
            "uid": f"uid-of-{name}",
            "creationTimestamp": created,
            "ownerReferences": owned_by(
                "ReplicaSet", f"{model.name}-abc", f"uid-of-{model.name}-abc"
            ),
        },
        "status": {
            "conditions": [ready, scheduled],
            "containerStatuses": [{"name": "vllm", "state": {"running": {}}}],
        }
        | status,
    }


def uids_of(names):
    return frozenset(f"uid-of-{name}" for name in names)


UNSCHEDULABLE = {
    "conditions": [
        {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "0/4 nodes are available: 4 Insufficient nvidia.com/gpu.",
        }
    ]
}
CRASH_LOOPING = {
    "conditions": [{"type": "Ready", "status": "False"}],
    "containerStatuses": [
        {"name": "vllm", "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "restartCount": 7}
    ],
}


def engines_at(load, pods, *, sizing=None, **changes):
    """One engine for each pod, together at so many times what one replica sustains.

    Their requests have the 4,000 prompt and 1,000 output tokens that ``SPEC`` expects.
    """
    rate = load * (sizing or a_sizing()).goodput_requests_per_s / max(1, len(pods))
    told = {"completed_per_s": rate, "lengths": steady_lengths(4000, 1000)} | changes
    return tuple(an_engine(pod, **told) for pod in pods)


def with_lengths(state, *args, **changes):
    """The state with requests of other lengths; without any arguments, with none."""
    lengths = steady_lengths(*args, **changes) if args else {}
    return replace(state, engines=tuple(of_lengths(each, lengths) for each in state.engines))


def a_state(manifest=None, *, replicas=2, load=1.0, live=None, pods=None, **changes):
    """An object whose replicas are all Ready and report; ``load``: 1 is one replica's worth.

    ``replicas`` None: there is no Deployment yet. ``live``: the body of another Deployment.
    """
    manifest = manifest or a_manifest()
    model = parse_model_deployment(manifest)
    names = [chr(ord("a") + number) for number in range(replicas or 0)]
    bodies = [a_pod_body(name, model=model) for name in names] if pods is None else pods
    state = ModelState(
        view=model_view(manifest),
        model=model,
        deployment=None
        if replicas is None
        else deployment_view(live or a_deployment_body(model, replicas=replicas)),
        pods=tuple(pod_view(each) for each in bodies),
        engines=engines_at(load, names),
    )
    return replace(state, **changes)


def unmeasured(state, memory):
    """An object of which nothing is measured or decided yet."""
    why = Reason("NoReadyReplica", "")
    nothing = Traffics(metrics=Metrics.NEVER, why=why, demand=None, lengths=None)
    return Assessment(state=state, memory=memory, traffics=nothing)


def no_config(message):
    """What is known of a config.json that is not there."""
    return Reason("ModelConfigMissing", message)


def a_fleet(*states, now_s=NOW_S, **changes):
    """Plans stand on the middle of what is believed, unless a test sets ``speed_range``."""
    given = {"speed_range": 0} | changes.pop("settings", {})
    settings = Settings(prometheus_url="http://prometheus.test:9090", **given)
    fleet = Fleet(
        now_s=now_s,
        models=states,
        metrics_problem=None,
        calibrations=Calibrations(),
        gpus=built_in_gpus(),
        settings=settings,
        site=site_of(settings, has_pod_monitors=True),
    )
    return replace(fleet, **changes)


def some_needs(*needs):
    """What was needed of late, as (time, replicas), of engines that no others are compared with."""
    request = a_sizing().request
    served = ReplicaGoodput(
        engine="others", workload=request.workload, slo=request.slo, requests_per_s=1.0
    )
    return tuple(Needed(at_s=at_s, replicas=each, served=served) for at_s, each in needs)


def a_memory(state, *, needs=1, recent_needs=None, **changes):
    """What is remembered of an object that was watched for long and needed so many replicas."""
    recent = ((NOW_S - 15, needs),) if recent_needs is None else recent_needs
    ready = frozenset(pod.name for pod in state.pods if pod.is_ready)
    memory = ObjectMemory(
        uid=state.view.uid,
        decided=DecisionMemory(since_s=OLD_S, recent_needs=some_needs(*recent)),
        traffic=TrafficMemory(served_since_s=OLD_S),
        pods=PodMemory(
            ready=ready,
            present=frozenset(pod.uid for pod in state.pods),
            replicas=state.deployment.replicas if state.deployment else None,
        ),
        written=WriteMemory(children_checked_at_s=NOW_S, children_generation=state.view.generation),
    )
    return remembering(memory, **changes)


def failures(kind, said="denied by a webhook", *, cause=Cause.REFUSED, **changes):
    """What is remembered where one write of the first spec failed and is tried again later."""
    known = Failure(cause=cause, detail=said, generation=1, times=1, at_s=NOW_S + 60)
    return {kind: replace(known, **changes)}


PARTS = ("decided", "pods", "traffic", "sizing", "goodput", "demand", "written", "reported")


def remembering(memory, **changes):
    """The same memory with other parts, or other fields of the one part that has them."""
    for name, value in changes.items():
        holders = [
            part for part in PARTS if name in {each.name for each in fields(getattr(memory, part))}
        ]
        if name in {each.name for each in fields(memory)}:
            memory = replace(memory, **{name: value})
        else:
            (part,) = holders
            changed = replace(getattr(memory, part), **{name: value})
            memory = replace(memory, **{part: changed})
    return memory


def assessed(state=None, *, memory=None, fleet=None, free_gpus=None, **changes):
    """Assess one object as the loop does; ``changes``: of the state."""
    state = state or a_state(**changes)
    known = memory or a_memory(state)
    return assess(state, fleet or a_fleet(state), known, free_gpus=free_gpus)


def assess(state, fleet, memory, *, free_gpus, asker=None):
    """Assess one object as a tick does, without the others."""
    state, asker = own_only(state, may_adopt=fleet.settings.mode == "full"), asker or SizingCache()
    sized = size_object(state, fleet, memory, asker)
    return decide_object(sized, fleet, asker, RemainingBudget(gpus=free_gpus))
