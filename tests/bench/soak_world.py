"""A cluster that goes on for days of simulated time: pods follow, users change their minds.

The API server is objects in memory whose changes are told as watches tell them, Prometheus is
answers as bytes. Both fail now and then.
"""

import hashlib
import json
import math
import random
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from family_configs import LLAMA_3_1_8B
from fleet_builders import NOW_S, a_manifest, owned_by
from kube_double import KubeDouble, Object
from query_api import WINDOW, QueryApi
from tonnage.cluster.calls import KubernetesError, PrometheusError
from tonnage.cluster.kube import CONFIG_MAPS, DEPLOYMENTS, MODEL_DEPLOYMENTS, PODS, REPLICA_SETS
from tonnage.cluster.queries import AnswerReader, Answers
from tonnage.control.input.times import rfc3339
from tonnage.estimate.fleet_scrapes import FleetScrapes
from tonnage.estimate.metrics import QUERIES
from tonnage.fleet.store import Kind, Store

HOUR_S, DAY_S = 3600.0, 86_400.0
NUM_NAMESPACES = 5
EVENT_KEPT_S = HOUR_S
"""As the API server keeps them."""
START_S = 90.0
"""From created, and taken by a node, to Ready."""
MANAGED = {"tonnage.dev/managed": "true"}
GAP_S = 0.022
"""Between two tokens of a sequence."""
KV_TOKENS = 590_000
MAX_SERIES = 200_000
WATCHED = {
    "modeldeployments": Kind.MODEL,
    "deployments": Kind.DEPLOYMENT,
    "replicasets": Kind.REPLICA_SET,
    "pods": Kind.POD,
}
BUCKETS = {"ttft": ("1.0", "2.0", "+Inf"), "tpot": ("0.05", "+Inf")}
OUTAGE_HOURS = (5, 11, 17, 23)
OUTAGE_S = 60.0
"""The API server is away for longer than a Lease lasts, so the lead is lost and taken up again."""


class ToldDouble(KubeDouble):
    """Objects in memory that tell what became of them, as watches do."""

    def __init__(self) -> None:
        self.news: deque[tuple[str, str, Object]] = deque()
        super().__init__()

    def put(self, path: str, body: Object) -> Object:
        stored = super().put(path, body)
        self.news.append(("MODIFIED", path, stored))
        return stored

    def remove(self, path: str) -> None:
        if (body := self.objects.pop(path, None)) is not None:
            self.news.append(("DELETED", path, body))


@dataclass(slots=True, kw_only=True)
class Pod:
    """What runs of one replica."""

    name: str
    revision: str
    created_at_s: float
    is_ready: bool = False


@dataclass(slots=True, kw_only=True)
class Slot:
    """A place for one ModelDeployment, with the load that comes to it."""

    number: int
    chance: random.Random
    age: int = 0
    """How often it was made anew."""
    name: str = ""
    question: int = 0
    pods: list[Pod] = field(default_factory=list)
    num_pods: int = 0
    """Ever made."""

    @property
    def namespace(self) -> str:
        return f"team-{self.number % NUM_NAMESPACES}"

    @property
    def has_config(self) -> bool:
        """Tell whether its model's config.json comes from a ConfigMap."""
        return self.number % 10 == 9

    def requests_per_s(self, now_s: float) -> float:
        """Return the load: a wave over the day, with noise."""
        wave = 1 + 0.7 * math.sin(2 * math.pi * now_s / DAY_S + self.number)
        return (0.6 + 0.15 * (self.number % 8)) * wave * self.chance.uniform(0.9, 1.1)

    def spec(self) -> dict:
        prompt, output = 2000 + 200 * (self.question % 10), 500 + 50 * (self.question // 10 % 10)
        model = {"id": "meta-llama/Llama-3.3-70B-Instruct", "weights": "fp8"}
        if self.has_config:
            source = {"configMapKeyRef": {"name": self.name, "key": "config.json"}}
            model = {"id": f"example/{self.name}", "config": source}
        return {
            "model": model,
            "demand": {
                "requestsPerSecond": 1,
                "promptTokens": {"mean": prompt, "p99": 2 * prompt},
                "outputTokens": {"mean": output},
            },
            "scaling": {"minReplicas": 1, "maxReplicas": 6},
        }

    def lengths(self) -> tuple[float, float]:
        """Return prompt and output tokens, which waver."""
        demand = self.spec()["demand"]
        return tuple(
            demand[each]["mean"] * self.chance.uniform(0.95, 1.05)
            for each in ("promptTokens", "outputTokens")
        )


@dataclass(kw_only=True)
class SoakWorld:
    """Everything around the loop. It goes on whenever the loop waits."""

    num_objects: int
    seed: int = 1
    now_s: float = NOW_S
    leads: Callable[[], bool] = field(default=lambda: False)
    kube: ToldDouble = field(default_factory=ToldDouble)
    happened: dict[str, int] = field(default_factory=dict)
    _events: deque[tuple[float, str]] = field(default_factory=deque)
    _fails: dict[str, float] = field(default_factory=dict)
    api: QueryApi = field(default_factory=lambda: QueryApi(completions_per_s={}))
    """Queries that fail, and until when; ``*``: all."""

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)  # noqa: S311
        self.began_at_s = self.now_s
        self.kube.fail = self._fail
        self.slots = [
            Slot(number=each, chance=self.chance, question=self.chance.randrange(100))
            for each in range(self.num_objects)
        ]
        for slot in self.slots:
            slot.name = f"m{slot.number:03}"
            self._make(slot)

    @property
    def hours(self) -> float:
        return (self.now_s - self.began_at_s) / HOUR_S

    def go_on(self, seconds: float, store: Store) -> None:
        """Let time pass: the cluster follows, users act, watches tell."""
        self.now_s += seconds
        for slot in self.slots:
            self._follow(slot)
        share = seconds / HOUR_S * self.num_objects / 20
        for what, (per_hour, deed) in DEEDS.items():
            if self.chance.random() < per_hour * share:
                self.happened[what] = self.happened.get(what, 0) + 1
                deed(self, self.chance.choice(self.slots))
        while self._events and self._events[0][0] < self.now_s - EVENT_KEPT_S:
            self.kube.objects.pop(self._events.popleft()[1], None)
        while self.kube.news:
            self._tell(store, *self.kube.news.popleft())

    def _tell(self, store: Store, event: str, path: str, body: Object) -> None:
        plural = path.split("/")[-2]
        kind = WATCHED.get(plural)
        if plural == "events" and event == "MODIFIED":
            self._events.append((self.now_s, path))
        is_selected = (body["metadata"].get("labels") or {}).items() >= MANAGED.items()
        if kind is not None and (kind is Kind.MODEL or is_selected):
            store.note(kind, event, body)

    def _fail(self, verb: str, path: str) -> None:
        hour = int(self.hours)
        if hour in OUTAGE_HOURS and (self.hours - hour) * HOUR_S < OUTAGE_S:
            raise KubernetesError(f"{verb} {path}: ConnectTimeoutError", status=0)

    # What users do, and what breaks

    def _ask_other(self, slot: Slot) -> None:
        slot.question = self.chance.randrange(100)
        self._change(slot, **slot.spec())

    def _make_anew(self, slot: Slot, name: str | None = None) -> None:
        """Delete an object with what the garbage collector deletes, and make it again."""
        for pod in list(slot.pods):
            self._drop(slot, pod)
        children = re.compile(rf"/namespaces/{slot.namespace}/[a-z]+/{slot.name}(-rs-.*)?$")
        for path in [self._path(slot), *filter(children.search, list(self.kube.objects))]:
            self.kube.remove(path)
        slot.age += 1
        slot.name = name or slot.name
        self._make(slot)

    def _rename(self, slot: Slot) -> None:
        self._make_anew(slot, f"m{slot.number:03}-{slot.age + 1}")

    def _lose_pod(self, slot: Slot) -> None:
        if slot.pods:
            self._drop(slot, self.chance.choice(slot.pods))

    def _set_mode(self, slot: Slot) -> None:
        mode = self.chance.choice(("Auto", "Paused", "Recommend", "Auto"))
        self._change(slot, scaling=slot.spec()["scaling"] | {"mode": mode})

    def _silence_all(self, _: Slot) -> None:
        self._fails["*"] = self.now_s + self.chance.uniform(30, 300)

    def _silence(self, _: Slot) -> None:
        self._fails[self.chance.choice(list(QUERIES))] = self.now_s + 120

    def _path(self, slot: Slot) -> str:
        return MODEL_DEPLOYMENTS.path(slot.namespace, slot.name)

    def _make(self, slot: Slot) -> None:
        if slot.has_config:
            self._configure(slot)
        uid = f"uid-{slot.number}-{slot.age}"
        manifest = a_manifest(slot.name, namespace=slot.namespace, uid=uid, **slot.spec())
        manifest["metadata"]["creationTimestamp"] = rfc3339(self.now_s)
        self.kube.put(self._path(slot), manifest)

    def _configure(self, slot: Slot) -> None:
        text = json.dumps(
            LLAMA_3_1_8B | {"intermediate_size": 14336 - 256 * self.chance.randrange(4)}
        )
        place = CONFIG_MAPS.path(slot.namespace, slot.name)
        self.kube.put(place, {"metadata": {}, "data": {"config.json": text}})

    def _change(self, slot: Slot, **spec: object) -> None:
        live = self.kube.objects[self._path(slot)]
        metadata = live["metadata"] | {"generation": live["metadata"]["generation"] + 1}
        self.kube.put(self._path(slot), live | {"metadata": metadata, "spec": live["spec"] | spec})

    def _restart(self, slot: Slot) -> None:
        """As ``kubectl rollout restart`` does."""
        path = DEPLOYMENTS.path(slot.namespace, slot.name)
        live = self.kube.objects.get(path)
        if live is None:
            return
        template = live["spec"]["template"]
        metadata = template.get("metadata") or {}
        notes = {"kubectl.kubernetes.io/restartedAt": rfc3339(self.now_s)}
        metadata |= {"annotations": (metadata.get("annotations") or {}) | notes}
        spec = live["spec"] | {"template": template | {"metadata": metadata}}
        self.kube.put(path, live | {"spec": spec})

    # What controllers and kubelets do

    def _follow(self, slot: Slot) -> None:
        """Bring up what is asked for: one new pod at a time replaces an old one."""
        place = DEPLOYMENTS.path(slot.namespace, slot.name)
        live = self.kube.objects.get(place)
        if live is None:
            return
        for pod in slot.pods:
            if not pod.is_ready and self.now_s - pod.created_at_s >= START_S:
                pod.is_ready = True
                self._show(slot, pod)
        text = json.dumps(live["spec"]["template"], sort_keys=True)
        revision = hashlib.sha256(text.encode()).hexdigest()[:8]
        wanted = live["spec"]["replicas"]
        while len(slot.pods) < wanted:
            self._add(slot, revision, live)
        old = [pod for pod in slot.pods if pod.revision != revision]
        if old:
            self._roll(slot, old, revision, live)
        else:
            self._collect(slot, revision)
        while len(slot.pods) > wanted + bool(old):
            self._drop(slot, slot.pods[0 if old else -1])
        self._report(place, slot, revision)

    def _roll(self, slot: Slot, old: list[Pod], revision: str, live: Object) -> None:
        if any(not pod.is_ready for pod in slot.pods if pod.revision == revision):
            return
        if len(slot.pods) > live["spec"]["replicas"]:
            self._drop(slot, old[0])
        else:
            self._add(slot, revision, live)

    def _add(self, slot: Slot, revision: str, live: Object) -> None:
        owner = REPLICA_SETS.path(slot.namespace, f"{slot.name}-rs-{revision}")
        if owner not in self.kube.objects:
            owners = owned_by("Deployment", slot.name, live["metadata"]["uid"])
            metadata = {"name": owner.split("/")[-1], "namespace": slot.namespace}
            metadata |= {"ownerReferences": owners, "labels": dict(MANAGED)}
            self.kube.put(owner, {"metadata": metadata})
        slot.num_pods += 1
        name = f"{slot.name}-{slot.age}-{slot.num_pods}"
        pod = Pod(name=name, revision=revision, created_at_s=self.now_s)
        slot.pods.append(pod)
        self._show(slot, pod)

    def _show(self, slot: Slot, pod: Pod) -> None:
        set_name = f"{slot.name}-rs-{pod.revision}"
        set_path = REPLICA_SETS.path(slot.namespace, set_name)
        ready = {"type": "Ready", "status": str(pod.is_ready)}
        ready |= {"lastTransitionTime": rfc3339(self.now_s)}
        metadata = {"name": pod.name, "namespace": slot.namespace, "uid": f"uid-of-{pod.name}"}
        metadata |= {"creationTimestamp": rfc3339(pod.created_at_s), "labels": dict(MANAGED)}
        metadata |= {"ownerReferences": owned_by("ReplicaSet", set_name, f"uid-of-{set_path}")}
        scheduled = {"type": "PodScheduled", "status": "True"}
        conditions = [ready, scheduled | {"lastTransitionTime": rfc3339(pod.created_at_s)}]
        state = {"name": "vllm", "state": {"running": {}}}
        status = {"conditions": conditions, "containerStatuses": [state]}
        self.kube.put(PODS.path(slot.namespace, pod.name), {"metadata": metadata, "status": status})

    def _drop(self, slot: Slot, pod: Pod) -> None:
        slot.pods.remove(pod)
        self.kube.remove(PODS.path(slot.namespace, pod.name))

    def _collect(self, slot: Slot, revision: str) -> None:
        """Delete the ReplicaSets of earlier revisions."""
        first = REPLICA_SETS.path(slot.namespace, f"{slot.name}-rs-")
        kept = first + revision
        for path in [p for p in self.kube.objects if p.startswith(first) and p != kept]:
            self.kube.remove(path)

    def _report(self, place: str, slot: Slot, revision: str) -> None:
        live = self.kube.objects[place]
        status = {
            "observedGeneration": live["metadata"].get("generation", 0),
            "replicas": len(slot.pods),
            "updatedReplicas": sum(pod.revision == revision for pod in slot.pods),
            "readyReplicas": sum(pod.is_ready for pod in slot.pods),
        }
        if live.get("status") != status:
            self.kube.put(place, live | {"status": status})

    # What Prometheus says

    def ask(self, sets: Iterable, scrapes: FleetScrapes) -> Answers:
        answers = Answers()
        self._say()
        for queries in sets:
            for name, text in queries.expressions.items():
                if max(self._fails.get(each, 0) for each in ("*", name)) > self.now_s:
                    error = PrometheusError("Prometheus: timed out", reason="QueryTimeout")
                    answers.fail(name, queries, error)
                    continue
                reader = AnswerReader(scrapes, max_series=MAX_SERIES)
                self.api.windows_s[name] = float(WINDOW.search(text)[1])
                body = self.api.reply(name, queries.namespaces).body
                reader.feed(body)
                is_partial = reader.end(most_kept_bytes=math.inf)
                answers.bytes_read += len(body)
                answers.add(name, queries, (reader.answered, is_partial, 0.0))
        return answers

    def _say(self) -> None:
        """Tell of each pod that serves."""
        api, told = self.api, {}
        for slot in self.slots:
            ready = [pod for pod in slot.pods if pod.is_ready]
            rate = slot.requests_per_s(self.now_s) / max(1, len(ready))
            for pod in ready:
                told[slot.namespace, pod.name] = self._figures(rate, *slot.lengths())
        api.now_s, api.of_pod = self.now_s, told
        api.completions_per_s = {pod: each["completed"] for pod, each in told.items()}
        api.histories = {pod: each for pod, each in api.histories.items() if pod in told}

    def _figures(self, rate: float, prompt: float, output: float) -> Mapping[str, object]:
        gap_s = GAP_S * self.chance.uniform(0.97, 1.03) * (1 + 0.02 * rate)
        running = rate * output * gap_s
        return {
            "cache": {"kv_cache_size_tokens": str(KV_TOKENS)},
            "completed": rate,
            "computed_prompt_tokens": rate * prompt,
            "finished": rate,
            "finished_output_tokens": rate * output,
            "finished_prompt_tokens": rate * prompt,
            "kv_usage": min(1.0, running * (prompt + output / 2) / KV_TOKENS),
            "preemptions": 0,
            "prefill_s": 0.2 * rate,
            "prefills": rate,
            "running": round(running),
            "started": rate,
            "started_prompt_tokens": rate * prompt,
            "token_gap_s": running,
            "token_gaps": rate * output,
            "tpot": dict.fromkeys(BUCKETS["tpot"], rate),
            "ttft": dict.fromkeys(BUCKETS["ttft"], rate),
        }


DEEDS: Mapping[str, tuple[float, Callable[[SoakWorld, Slot], None]]] = {
    "spec": (3.0, SoakWorld._ask_other),
    "anew": (2.0, SoakWorld._make_anew),
    "renamed": (1.0, SoakWorld._rename),
    "pod lost": (8.0, SoakWorld._lose_pod),
    "rollout": (3.0, SoakWorld._restart),
    "mode": (2.0, SoakWorld._set_mode),
    "config": (1.0, SoakWorld._configure),
    "prometheus down": (1.0, SoakWorld._silence_all),
    "query fails": (3.0, SoakWorld._silence),
}
"""How often something happens in an hour, in a fleet of twenty objects, and what."""
