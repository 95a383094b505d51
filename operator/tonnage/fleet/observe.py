"""Observe: the store and what Prometheus says, joined into one immutable fleet."""

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain
from typing import Final

from tonnage.api.hardware import ROLES, Role
from tonnage.api.objects import InvalidSpecError, ModelDeployment
from tonnage.api.spec import Spec
from tonnage.catalog.gpu import Gpu
from tonnage.cluster.kube import CLAIMS, CONFIG_MAPS, KubeApi
from tonnage.cluster.queries import Answers
from tonnage.control.input.state import (
    ACTING,
    DeploymentView,
    Fleet,
    ModelState,
    ModelView,
    PodView,
)
from tonnage.estimate.calibration import Calibrations
from tonnage.estimate.calibration_file import Identity, LoadTest
from tonnage.estimate.fleet_scrapes import PodKey
from tonnage.estimate.metrics import queries
from tonnage.estimate.samples import EngineSamples
from tonnage.fleet.background import BackgroundTask, Start, run_inline, unheard
from tonnage.fleet.references import (
    ManifestCache,
    ModelConfigs,
    Referenced,
    UnlabelledWorkloads,
    access_modes,
    claim_of,
    data_of,
    place_of,
)
from tonnage.fleet.scrape import Ask, Rounds, nothing_decides
from tonnage.fleet.store import Key, Snapshot
from tonnage.manifests.children import Site
from tonnage.manifests.names import Workload
from tonnage.manifests.roles import role_name
from tonnage.manifests.target import TargetEngine, engine_of
from tonnage.memoize import memoize
from tonnage.settings import Settings
from tonnage.sizing.expected import slo_of

Target = tuple[str, str, str]
"""(kind, namespace, name)"""
TARGETS: Final = 256
"""Of which flags from ConfigMaps are remembered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrometheusSnapshot:
    """What Prometheus said last."""

    at_s: float
    """When, by the clock of ticks."""
    answers: Answers = field(default_factory=Answers)
    engines: Mapping[PodKey, tuple[EngineSamples, ...]] = field(default_factory=dict)
    history_awaited: Set[str] = frozenset()
    """Namespaces of whose engines it is yet to say what was before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetReading:
    """What one tick sees, by what objects name."""

    snapshot: Snapshot
    engines: Mapping[PodKey, tuple[EngineSamples, ...]]
    parsed: Mapping[str, ModelDeployment | InvalidSpecError]
    """By UID."""
    oldest_claims: Mapping[Target, ModelView]
    """By scale target."""
    autoscalers: Mapping[Target, str]
    """The first by name of each workload."""
    numbered: Mapping[Key, tuple[str, ...]]
    """Names that end with a number, by what comes before it."""
    now_s: float


@dataclass(slots=True, kw_only=True)
class Observer:
    """Reads the world for a tick. Keeps what it has read of manifests and ConfigMaps."""

    kube: KubeApi
    ask: Ask
    settings: Settings
    gpus: Mapping[str, Gpu]
    site: Site
    """But for LeaderWorkerSets and PodMonitors, which come and go."""
    calibration_files: Mapping[Identity, LoadTest] = field(default_factory=dict)
    taken_names: set[tuple[str, str]] = field(default_factory=set)
    """Deployments that no watch shows, since they lack our label; the writer adds what it meets."""
    tell: Callable[[Answers], None] = unheard
    """Takes what Prometheus said in a round, for the operator's own metrics."""
    start: Start = run_inline
    """Runs a round of questions to Prometheus: here and now, or beside the loop."""
    clock: Callable[[], float] = time.monotonic
    """What the time between rounds is measured by."""
    _manifests: ManifestCache = field(default_factory=ManifestCache)
    _configs: ModelConfigs = field(init=False)
    _claims: Referenced[Key, tuple[str, ...]] = field(init=False)
    _config_maps: Referenced[Key, Mapping[str, str]] = field(init=False)
    """Of the flags of scale targets."""
    _taken: UnlabelledWorkloads = field(init=False)
    rounds: Rounds = field(init=False)
    """The questions to Prometheus."""
    _said: PrometheusSnapshot | None = None
    _skew_s: float = 0.0
    """Of the clock of Prometheus, as it was last known."""

    def __post_init__(self) -> None:
        kube, tick_s = self.kube, self.settings.tick_s
        self._configs = ModelConfigs(kube=kube, tick_s=tick_s)
        self._claims = Referenced(kube=kube, resource=CLAIMS, part=access_modes, tick_s=tick_s)
        self._config_maps = Referenced(kube=kube, resource=CONFIG_MAPS, part=data_of, tick_s=tick_s)
        self._taken = UnlabelledWorkloads(kube=kube, names=self.taken_names)
        self.rounds = Rounds(
            ask=self.ask,
            settings=self.settings,
            work=BackgroundTask(self.start),
            clock=self.clock,
        )

    def begin_round(self, snapshot: Snapshot, now_s: float, news: threading.Event) -> None:
        """Begin to ask Prometheus about what is there; ``news`` is set when it has answered.

        Without objects there is nothing to ask.
        """
        models = self._ours(snapshot, self._manifests.parse(snapshot.models.values()))[1]
        if not models:
            self.forget()
            return
        slos = [slo_of(model.spec) for model in models]
        ttft_limits_s = {target.limit_s for slo in slos for target in slo.ttft}
        tpot_limits_s = {target.limit_s for slo in slos for target in slo.tpot}

        def expressions(namespaces: Sequence[str], has_history: bool) -> Mapping[str, str]:
            return queries(
                self.settings,
                ttft_limits_s=ttft_limits_s,
                tpot_limits_s=tpot_limits_s,
                namespaces=namespaces,
                has_history=has_history,
            )

        owned = (pod for pods in snapshot.pods_by_deployment.values() for pod in pods)
        pods = ((pod.namespace, pod.name) for pod in owned)
        self.rounds.begin(expressions, pods, now_s, news)

    def forget(self) -> None:
        """Ask anew: what Prometheus said before is not decided by."""
        self.rounds.forget()
        self._said = None

    def observe(
        self,
        snapshot: Snapshot,
        known: Calibrations,
        now_s: float,
        *,
        has_groups: bool = False,
        has_pod_monitors: bool = True,
    ) -> Fleet:
        """Return the fleet. What Prometheus does not answer is missing in it, and named.

        ``has_groups``, ``has_pod_monitors``: the cluster serves LeaderWorkerSets, PodMonitors.
        """
        parsed = self._manifests.parse(snapshot.models.values())
        if self.settings.mode == "recommend":
            parsed = {
                uid: as_advice(each) if isinstance(each, ModelDeployment) else each
                for uid, each in parsed.items()
            }
        views, ours = self._ours(snapshot, parsed)
        self._configs.forget(parsed, filter(None, map(place_of, ours)))
        self._claims.forget(set(map(claim_of, ours)))
        lives = chain(snapshot.deployments.values(), snapshot.groups.values())
        self._config_maps.forget(
            {(live.namespace, name) for live in lives for name in live.engine.config_maps}
        )
        needed = {key_of(view, parsed[view.uid]) for view in views}
        for seen_names in (snapshot.deployments, snapshot.groups, snapshot.oversized):
            needed -= seen_names.keys()
        self._taken.look(needed, now_s, has_groups=has_groups)
        heard = self._latest(now_s)
        said = heard if ours else PrometheusSnapshot(at_s=now_s)
        answers = said.answers
        seen = FleetReading(
            snapshot=snapshot,
            engines=said.engines,
            parsed=parsed,
            oldest_claims=oldest_claims(snapshot.models.values(), parsed),
            autoscalers={
                (each.target_kind, each.namespace, each.target_name): each.name
                for _, each in sorted(snapshot.autoscalers.items(), reverse=True)
            },
            numbered=numbered_names(snapshot.models.values(), parsed),
            now_s=now_s,
        )
        models = tuple(self._read(view, parsed[view.uid], seen) for view in views)
        return Fleet(
            now_s=now_s,
            models=models,
            metrics_problem=nothing_decides(answers),
            problems=answers.problems,
            partial=frozenset(answers.partial),
            clock_skew_s=answers.clock_skew_s,
            calibrations=known,
            calibration_files=self.calibration_files,
            gpus=self.gpus,
            settings=self.settings,
            site=replace(self.site, has_groups=has_groups, has_pod_monitors=has_pod_monitors),
            said_at_s=said.at_s,
            history_awaited=said.history_awaited,
        )

    def _ours(
        self, snapshot: Snapshot, parsed: Mapping[str, ModelDeployment | InvalidSpecError]
    ) -> tuple[Sequence[ModelView], Sequence[ModelDeployment]]:
        """Return what this release acts on, by its class, in order, and what of it is valid."""
        known = (view for _, view in sorted(snapshot.models.items()))
        views = [each for each in known if each.operator_class == self.settings.operator_class]
        models = (parsed[view.uid] for view in views)
        return views, [each for each in models if isinstance(each, ModelDeployment)]

    def _latest(self, now_s: float) -> PrometheusSnapshot:
        """Return what Prometheus said last; what no tick before saw is joined, and told."""
        answers = self.rounds.take(now_s)
        if answers is not None:
            said_at_s = now_s - self.rounds.held_s
            if answers.clock_skew_s is not None:
                self._skew_s = answers.clock_skew_s
            engines = self.rounds.samples(said_at_s + self._skew_s)
            self._said = PrometheusSnapshot(
                at_s=said_at_s,
                answers=answers,
                engines=engines,
                history_awaited=self.rounds.awaited,
            )
            self.tell(answers)
        return self._said or PrometheusSnapshot(at_s=now_s)

    def _read(
        self, view: ModelView, model: ModelDeployment | InvalidSpecError, seen: FleetReading
    ) -> ModelState:
        """Return what is known of an object; a bug in that must not stop the others."""
        try:
            return self._state(view, model, seen)
        except Exception as error:
            deployment = _still_running(view, seen.snapshot)
            return ModelState(view=view, model=model, deployment=deployment, bug=error)

    def _state(
        self, view: ModelView, model: ModelDeployment | InvalidSpecError, seen: FleetReading
    ) -> ModelState:
        snapshot = seen.snapshot
        if not isinstance(model, ModelDeployment):
            return ModelState(view=view, model=model, deployment=_still_running(view, snapshot))
        target, key = model.spec.scale_target, key_of(view, model)
        seen_there = (
            snapshot.of_kind(target.kind).get(key) if target else snapshot.workload(key, view.uid)
        )
        deployment = seen_there or self._read_unlabelled(view, model)
        if target and deployment and deployment.engine.config_maps:
            deployment = self._with_config_maps(deployment, seen.now_s)
        pods = snapshot.replicas_of(deployment, seen.now_s) if deployment else ()
        with_workers = bool(deployment and deployment.engine.workers_answer)
        engines = tuple(_engines_of(pods, seen, with_workers=with_workers))
        if (held_s := self.rounds.held_s) > self.settings.scrape_interval_s:
            engines = tuple(replace(each, held_s=held_s) for each in engines)
        oldest = seen.oldest_claims.get((target.kind, *key)) if target else None
        scaler = seen.autoscalers.get((deployment.kind, *key)) if deployment else None
        return ModelState(
            view=view,
            model=model,
            deployment=deployment,
            pods=pods,
            oversized_bytes=snapshot.oversized.get(key) or self._taken.oversized.get(key),
            model_config=self._configs.of(view, model, seen.now_s),
            claim_modes=self._claims.of(claim_of(model), seen.now_s),
            conflicting_autoscaler=f"HorizontalPodAutoscaler {scaler}" if scaler else None,
            earlier_owner=oldest.name if oldest and oldest.uid != view.uid else None,
            numbered=seen.numbered.get(view.key, ()),
            roles=dict(_roles(view, seen)) if model.spec.topology else {},
            engines=engines,
        )

    def _with_config_maps(self, live: DeploymentView, now_s: float) -> DeploymentView:
        """Return a target with the flags that ConfigMaps of its namespace give it."""
        found = ((name, (live.namespace, name)) for name in live.engine.config_maps)
        data = {name: self._config_maps.of(place, now_s) for name, place in found}
        known = json.dumps({name: texts for name, texts in data.items() if texts is not None})
        return replace(live, engine=_engine_with(live.workload, live.template, known))

    def _read_unlabelled(self, view: ModelView, model: ModelDeployment) -> DeploymentView | None:
        """Return what no watch shows. Ours is none where the writer labels it again."""
        found, target = self._taken.of(key_of(view, model)), model.spec.scale_target
        if found and target and found.kind != target.kind:
            return None
        is_ours = found is not None and found.owner_uid == view.uid
        return None if is_ours and model.spec.scaling.mode in ACTING else found


def as_advice(model: ModelDeployment) -> ModelDeployment:
    """Return an object that would be acted on as one that is only advised."""
    return replace(model, spec=_advised(model.spec))


@memoize
def _advised(spec: Spec) -> Spec:
    if spec.scaling.mode not in ACTING:
        return spec
    scaling = spec.scaling.model_copy(update={"mode": "Recommend"})
    return spec.model_copy(update={"scaling": scaling})


@lru_cache(maxsize=TARGETS)
def _engine_with(workload: Workload, template: str, config_maps: str) -> TargetEngine:
    return engine_of(workload, json.loads(template), json.loads(config_maps))


def _engines_of(
    pods: Iterable[PodView], seen: FleetReading, *, with_workers: bool
) -> Iterator[EngineSamples]:
    """Yield what engines say, those of a worker as its leader's: they are ranks of one replica.

    A worker that says nothing is an engine of which nothing is known.
    """
    for pod in pods:
        yield from (own := seen.engines.get((pod.namespace, pod.name), ()))
        workers = seen.snapshot.pods_by_deployment.get((pod.namespace, pod.uid), ())
        for worker in workers if with_workers and own else ():
            silent = EngineSamples(
                pod=pod.name, engine="", scrape_interval_s=own[0].scrape_interval_s
            )
            for each in seen.engines.get((worker.namespace, worker.name), (silent,)):
                yield replace(each, pod=pod.name, engine=f"{worker.name} {each.engine}")


def _roles(view: ModelView, seen: FleetReading) -> Iterator[tuple[Role, ModelState]]:
    """Yield the objects that have the names of both roles of another one, whoever made them."""
    for role in ROLES:
        other = seen.snapshot.models.get((view.namespace, role_name(view.name, role)))
        if other is not None:
            yield role, ModelState(view=other, model=seen.parsed[other.uid])


def key_of(view: ModelView, model: ModelDeployment | InvalidSpecError) -> Key:
    """Return the workload that an object is about: of its own name, or its scale target."""
    target = model.spec.scale_target if isinstance(model, ModelDeployment) else None
    return view.namespace, target.name if target else view.name


def _still_running(view: ModelView, snapshot: Snapshot) -> DeploymentView | None:
    """Return what was made for an object that is not valid any more: it takes up GPUs."""
    deployment = snapshot.workload(view.key, view.uid)
    is_ours = deployment is not None and deployment.owner_uid == view.uid
    return deployment if is_ours else None


def oldest_claims(
    views: Iterable[ModelView], parsed: Mapping[str, ModelDeployment | InvalidSpecError]
) -> Mapping[Target, ModelView]:
    """Return the oldest ModelDeployment of each scale target, whichever release acts on it."""
    claims = dict[Target, ModelView]()
    for view in sorted(views, key=lambda each: (each.created, each.uid), reverse=True):
        model = parsed[view.uid]
        if isinstance(model, ModelDeployment) and model.spec.scale_target:
            target = model.spec.scale_target
            claims[target.kind, view.namespace, target.name] = view
    return claims


def numbered_names(
    views: Iterable[ModelView], parsed: Mapping[str, ModelDeployment | InvalidSpecError]
) -> Mapping[Key, tuple[str, ...]]:
    """Return the ModelDeployments with a Service that have the name of a group of another one."""
    names = dict[Key, tuple[str, ...]]()
    for view in views:
        base, _, number = view.name.rpartition("-")
        model = parsed[view.uid]
        has_service = isinstance(model, ModelDeployment) and not model.spec.scale_target
        if base and number.isdecimal() and has_service:
            names[view.namespace, base] = (*names.get((view.namespace, base), ()), view.name)
    return names
