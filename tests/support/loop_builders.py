"""A whole loop over an API server in memory, a Prometheus of values and a clock that is told."""

from dataclasses import dataclass, field

from fleet_builders import (
    NOW_S,
    SITE,
    UNSCHEDULABLE,
    a_group_pod_body,
    a_manifest,
    a_model,
    a_pod_body,
    a_replica_set_body,
    the_sets_of_groups,
)
from kube_double import KubeDouble, led
from prometheus_double import asking
from query_api import WINDOW, QueryApi, name_of
from tonnage.catalog.gpu import built_in_gpus
from tonnage.cluster.calls import PrometheusError
from tonnage.cluster.kube import (
    DEPLOYMENTS,
    LEADER_WORKER_SETS,
    MODEL_DEPLOYMENTS,
    PODS,
    REPLICA_SETS,
    STATEFUL_SETS,
)
from tonnage.fleet.act import Writer
from tonnage.fleet.calibration import CalibrationConfigMap
from tonnage.fleet.lists import Lists
from tonnage.fleet.loop import Loop
from tonnage.fleet.observe import Observer
from tonnage.fleet.store import Store
from tonnage.fleet.watches import followed
from tonnage.fleet.write_queue import WriteQueue
from tonnage.manifests.children import site_of
from tonnage.settings import Settings

SETTINGS = Settings(prometheus_url="http://prometheus.test:9090", speed_range=0)
"""Plans stand on the middle of what is believed: what they come to is what ``a_sizing`` says."""


@dataclass(kw_only=True)
class World:
    """Everything around the loop; a test changes it and lets time pass."""

    kube: KubeDouble
    now_s: float = NOW_S
    leads: bool = True
    completions_per_s: dict[str, float] = field(default_factory=dict)
    """By pod; a pod that is not named reports nothing."""
    figures: dict[str, dict[str, float]] = field(default_factory=dict)
    """By pod, instead of ``STEADY``."""
    kv_tokens: int | None = None
    is_down: bool = False
    api: QueryApi = field(default_factory=lambda: QueryApi(completions_per_s={}))

    def ask(self, text):
        if self.is_down:
            raise PrometheusError("Prometheus: ConnectTimeout", reason="PrometheusUnreachable")
        api = self.api
        name = name_of(text)
        api.now_s, api.windows_s = self.now_s, {name: float(WINDOW.search(text)[1])}
        cache = {"cache": {"kv_cache_size_tokens": str(self.kv_tokens)}} if self.kv_tokens else {}
        api.of_pod = {
            ("serving", pod): cache | self.figures.get(pod, {}) for pod in self.completions_per_s
        }
        return [
            (labels, [(at_s, float(value)) for at_s, value in values])
            for pod, rate in self.completions_per_s.items()
            for labels, values in api.series(name, ("serving", pod), rate)
        ]

    def serve(self, name="llama", *, replicas=None, ready=True, ready_at_s=NOW_S - 3600):
        """Play the Deployment controller and the kubelets: bring up what is asked for."""
        model = a_model(name)
        place = DEPLOYMENTS.path("serving", name)
        live = self.kube.objects[place]
        number = live["spec"]["replicas"] if replicas is None else replicas
        status = {"observedGeneration": live["metadata"].get("generation", 0), "replicas": number}
        status |= {"updatedReplicas": number, "readyReplicas": number if ready else 0}
        self.kube.put(place, live | {"status": status})
        owner = a_replica_set_body(model)
        owner["metadata"]["ownerReferences"][0]["uid"] = live["metadata"]["uid"]
        owner["metadata"]["labels"] = {"tonnage.dev/managed": "true"}
        self.kube.put(REPLICA_SETS.path("serving", owner["metadata"]["name"]), owner)
        for place in [each for each in self.kube.objects if f"/pods/{name}-" in each]:
            del self.kube.objects[place]
        for index in range(number):
            pod = a_pod_body(
                f"{name}-{index}", model=model, ready_for_s=NOW_S - ready_at_s if ready else None
            )
            pod["metadata"]["labels"] = {"tonnage.dev/managed": "true"}
            self.kube.put(PODS.path("serving", f"{name}-{index}"), pod)
        return [f"{name}-{index}" for index in range(number)]

    def serve_groups(self, model, *, pending=(), missing=()):
        """Play the controller of LeaderWorkerSets: the groups that are asked for, of two pods each.

        ``pending``, ``missing``: pods that no node takes, or that are not made.
        """
        place = LEADER_WORKER_SETS.path("serving", model.name)
        live = self.kube.objects[place]
        number = live["spec"]["replicas"]
        groups = [f"{model.name}-{index}" for index in range(number)]
        out = {*pending, *missing}
        whole = [each for each in groups if not {each, f"{each}-1"} & out]
        status = {"replicas": number, "updatedReplicas": number, "readyReplicas": len(whole)}
        status["observedGeneration"] = live["metadata"].get("generation", 0)
        self.kube.put(place, live | {"status": status})
        sets = the_sets_of_groups(model, num_groups=number)
        sets[0]["metadata"]["ownerReferences"][0]["uid"] = live["metadata"]["uid"]
        for each in sets:
            self.kube.put(STATEFUL_SETS.path("serving", each["metadata"]["name"]), each)
        for group in groups:
            for name, owner in ((group, model.name), (f"{group}-1", group)):
                is_ready = group in whole or (name == f"{group}-1" and name not in out)
                self._put_pod(
                    a_group_pod_body(
                        name,
                        of=owner,
                        model=model,
                        ready_for_s=3600 if is_ready else None,
                        **(UNSCHEDULABLE if name in pending else {}),
                    ),
                    is_there=name not in missing,
                )
        return whole

    def _put_pod(self, body, *, is_there):
        place = PODS.path("serving", body["metadata"]["name"])
        body["metadata"]["labels"] = {"tonnage.dev/managed": "true"}
        self.kube.objects.pop(place, None)
        if is_there:
            self.kube.put(place, body)


def a_world(*manifests):
    objects = [
        (MODEL_DEPLOYMENTS.path("serving", each["metadata"]["name"]), each)
        for each in manifests or [a_manifest()]
    ]
    return World(kube=KubeDouble(objects))


def a_loop(world, **settings):
    return a_loop_asking(asking(world.ask), world, **settings)


def a_loop_asking(ask, world, **settings):
    known = SETTINGS.model_copy(update=settings)
    kube = led(world.kube, lambda: world.leads)
    writer = Writer(
        kube=kube,
        site=SITE,
        queue=WriteQueue(per_s=known.writes_per_s, clock=lambda: world.now_s),
    )
    store = Store()
    return Loop(
        store=store,
        observer=Observer(
            kube=world.kube,
            ask=ask,
            settings=known,
            gpus=built_in_gpus(),
            site=site_of(known, has_pod_monitors=True),
            taken_names=writer.taken_names,
            clock=lambda: world.now_s,
        ),
        writer=writer,
        calibration=CalibrationConfigMap(kube, namespace="tonnage-system"),
        settings=known,
        lists=Lists(store=store, kube=world.kube, namespaces=known.namespaces),
        now=lambda: world.now_s,
    )


def show(loop, world):
    """Play the watches: show the loop what stands on the API server."""
    has_groups = LEADER_WORKER_SETS not in world.kube.unserved
    for kind, resource, selector in followed(has_groups=has_groups):
        listed = world.kube.list(resource.path(None), label_selector=selector)
        loop.store.reconcile(kind, listed)


def tick(loop, world, *, after_s=15):
    """Let time pass, show what is there, and tick; return the writes as short texts."""
    world.now_s += after_s
    show(loop, world)
    before = len(world.kube.writes)
    loop.tick()
    return [call.short for call in world.kube.writes[before:]]


def served(*manifests, load_per_pod=0.9, **settings):
    """(loop, world) with everything rolled out and reporting, at rest."""
    world = a_world(*manifests)
    loop = a_loop(world, **settings)
    tick(loop, world)
    for manifest in manifests or [a_manifest()]:
        for pod in world.serve(manifest["metadata"]["name"]):
            world.completions_per_s[pod] = load_per_pod
    for _ in range(6):
        tick(loop, world, after_s=60)
    return loop, world


def status_of(world, name="llama"):
    return world.kube.objects[MODEL_DEPLOYMENTS.path("serving", name)]["status"]


def condition(world, kind, name="llama"):
    [found] = [each for each in status_of(world, name)["conditions"] if each["type"] == kind]
    return found["status"], found["reason"]


def replicas_of(world, name="llama"):
    return world.kube.objects[DEPLOYMENTS.path("serving", name)]["spec"]["replicas"]
