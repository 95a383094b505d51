"""A fleet under a query API that fails as a test says: the real observer, and tick by tick."""

import threading
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from fleet_builders import a_deployment_body, a_manifest, a_model, a_pod_body, a_replica_set_body
from http_double import serving
from kube_double import KubeDouble
from query_api import QueryApi
from tonnage.catalog.gpu import built_in_gpus
from tonnage.cluster.prometheus import Prometheus, QueryLimits
from tonnage.control.input.memory import Memory
from tonnage.control.tick import tick
from tonnage.estimate.metrics import QUERIES, WINDOWS
from tonnage.fleet.observe import Observer
from tonnage.fleet.store import Kind, Store
from tonnage.manifests.children import site_of
from tonnage.settings import Settings

OBJECTS = (("blue", "llama"), ("green", "mixtral"))
PODS = (("blue", "llama-0"), ("blue", "llama-1"), ("green", "mixtral-0"), ("green", "mixtral-1"))
LITTLE, MUCH = 0.1, 6.0
"""Requests/s of a pod: less than one replica's worth in all, and more than two replicas'."""
LIMITS = QueryLimits(answer_bytes=400_000, all_bytes=1_600_000, pod_bytes=0)
SHORT = replace(LIMITS, request_s=0.7, all_s=5)
"""For those who wait until they are over."""
PATIENT = replace(SHORT, request_s=4, all_s=20)
"""For those who wait for one query alone: a busy machine still answers the others in time."""


@dataclass(kw_only=True)
class World:
    """Two objects, their Prometheus, and what is remembered from tick to tick."""

    api: QueryApi
    server: object
    observer: Observer
    store: Store
    memory: Memory = field(default_factory=Memory)
    outcome: object = None
    fleet: object = None
    ahead_s: float = 0
    """The clock of Prometheus, of ours."""

    def tick(self, times=1, *, after_s=60):
        """Let time pass and decide; return the replicas decided, by namespace."""
        for _ in range(times):
            self.api.now_s += after_s
            snapshot = self.store.snapshot()
            now_s = self.api.now_s - self.ahead_s
            self.observer.begin_round(snapshot, now_s, threading.Event())
            self.fleet = self.observer.observe(snapshot, self.memory.calibrations, now_s)
            self.outcome = tick(self.fleet, self.memory)
            self.memory = self.outcome.memory
        return {each.state.view.namespace: each.decision.replicas for each in self.outcome.found}

    def conditions(self, kind="MetricsAvailable"):
        """(status, reason, message) by namespace."""
        found = {}
        for each in self.outcome.found:
            remembered = self.memory.objects[each.state.view.uid].reported.conditions[kind]
            found[each.state.view.namespace] = (
                remembered.status,
                remembered.reason,
                remembered.message,
            )
        return found

    def rates(self):
        """Completions that reached the tick, by namespace."""
        return {
            state.view.namespace: [
                each.over(WINDOWS[0]).completed_per_s for each in state.engines if each.windows
            ]
            for state in self.fleet.models
        }

    def goodput(self):
        """Requests/s that a replica is believed to serve, by object."""
        return {
            each.state.view.name: each.chosen.goodput_factor * each.sizing.goodput_requests_per_s
            for each in self.outcome.found
        }

    def needs(self):
        """Replicas for the demand, with no regard to what runs, by object."""
        return {
            each.state.view.name: each.sizing.replicas_for(
                each.traffics.demand.requests_per_s / each.chosen.goodput_factor
            )
            for each in self.outcome.found
        }


def pods_of(*objects, replicas=2):
    """(namespace, pod) of the pods of objects."""
    return tuple((space, f"{name}-{n}") for space, name in objects for n in range(replicas))


def a_store(objects=OBJECTS, replicas=2):
    store = Store()
    for namespace, name in objects:
        model = a_model(name, namespace=namespace)
        store.note(Kind.MODEL, None, a_manifest(name, namespace=namespace))
        store.note(Kind.DEPLOYMENT, None, a_deployment_body(model, replicas=replicas))
        store.note(Kind.REPLICA_SET, None, a_replica_set_body(model))
        for number in range(replicas):
            store.note(Kind.POD, None, a_pod_body(f"{name}-{number}", model=model))
    return store


@contextmanager
def a_world(*, url=None, ahead_s=0, limits=LIMITS, objects=OBJECTS, load=LITTLE, **more):
    """A fleet that was measured once. ``url``: of another server than the one that is well.

    ``more``: ``replicas`` of each object, ``settings``, and fields of the query API.
    """
    replicas, given = more.pop("replicas", 2), more.pop("settings", {})
    pods = pods_of(*objects, replicas=replicas)
    api = QueryApi(completions_per_s=dict.fromkeys(pods, load), **more)
    with serving(api) as server:
        settings = Settings(prometheus_url=url or server.url, cold_start_s=60, **given)
        observer = Observer(
            kube=KubeDouble(),
            ask=lambda sets, scrapes: Prometheus(
                settings, limits=limits, now=lambda: api.now_s - world.ahead_s
            ).ask(sets, scrapes),
            settings=settings,
            gpus=built_in_gpus(),
            site=site_of(settings, has_pod_monitors=True),
            clock=lambda: api.now_s,
        )
        store = a_store(objects, replicas)
        world = World(api=api, server=server, observer=observer, store=store, ahead_s=ahead_s)
        world.tick()
        yield world


LONG = 6
"""Ticks of 60 s: longer than the window after which a fleet goes down."""
BOTH = {"blue": 2, "green": 2}


def failing(reply, *names, namespaces=()):
    """A fault of these queries, of all when none is named, for these namespaces, if any."""

    def fault(name, limited):
        is_concerned = not (limited and namespaces) or set(limited) & set(namespaces)
        return reply(name, limited) if is_concerned and name in (names or QUERIES) else None

    return fault


def always(reply):
    return lambda name, limited: reply
