"""Observe: the store and what Prometheus says, joined into one immutable fleet."""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from tonnage.api.objects import InvalidSpecError, ModelDeployment, parse_model_deployment
from tonnage.catalog.gpu import Gpu
from tonnage.cluster.errors import WorldError
from tonnage.cluster.kube import CONFIG_MAPS, DEPLOYMENTS, KubeApi
from tonnage.cluster.questions import Answers
from tonnage.control.state import DeploymentView, Fleet, ModelState, ModelView
from tonnage.estimate.calibration import Calibrations
from tonnage.estimate.calibration_file import Identity
from tonnage.estimate.metrics import queries
from tonnage.estimate.posterior import SpeedPosterior
from tonnage.estimate.samples import Scrape, join
from tonnage.fleet.scrape import Ask, Scraper, nothing_decides
from tonnage.fleet.store import Snapshot
from tonnage.fleet.views import AutoscalerView, deployment_view
from tonnage.settings import Settings
from tonnage.sizing.expected import slo_of

LOG = logging.getLogger("tonnage.observe")
CONFIG_AGE_S = 300
"""A config.json is read again after this time, or when its ModelDeployment changed."""


@lru_cache(maxsize=16_384)
def parsed(manifest: str) -> ModelDeployment | InvalidSpecError:
    """Parse a manifest once for each version of it."""
    try:
        return parse_model_deployment(json.loads(manifest), tolerate_unknown=True)
    except InvalidSpecError as error:
        return error


def _untold(_: Answers) -> None:
    """Nobody listens."""


@dataclass(slots=True, kw_only=True)
class Observer:
    """Reads the world for a tick. Keeps only what it has read of ConfigMaps."""

    kube: KubeApi
    ask: Ask
    settings: Settings
    gpus: Mapping[str, Gpu]
    has_pod_monitors: bool
    calibration_files: Mapping[Identity, SpeedPosterior] = field(default_factory=dict)
    taken_names: set[tuple[str, str]] = field(default_factory=set)
    """Deployments that the writer met and no watch shows, since they lack our label."""
    tell: Callable[[Answers], None] = _untold
    """Takes what Prometheus said in a tick, for the operator's own metrics."""
    _configs: dict[str, tuple[float, str, str | None, str | None]] = field(default_factory=dict)
    _scraper: Scraper = field(init=False)

    def __post_init__(self) -> None:
        self._scraper = Scraper(ask=self.ask, settings=self.settings)

    def observe(self, snapshot: Snapshot, known: Calibrations, now_s: float) -> Fleet:
        """Return the fleet. What Prometheus does not answer is missing in it, and named."""
        models = [view for _, view in sorted(snapshot.models.items()) if self._is_ours(view)]
        uids = {view.uid for view in models}
        self._configs = {uid: known for uid, known in self._configs.items() if uid in uids}
        answers = self._ask_about(models, snapshot, now_s)
        self.tell(answers)
        scrape = join(answers.series, self.settings)
        return Fleet(
            now_s=now_s,
            models=tuple(self._state(view, snapshot, scrape, now_s) for view in models),
            metrics_problem=nothing_decides(answers),
            problems=answers.problems,
            partial=answers.partial,
            clock_skew_s=answers.clock_skew_s,
            calibrations=known,
            calibration_files=self.calibration_files,
            gpus=self.gpus,
            settings=self.settings,
            has_pod_monitors=self.has_pod_monitors,
        )

    def _is_ours(self, view: ModelView) -> bool:
        """Tell whether this release acts on an object, by its class."""
        return view.operator_class == self.settings.operator_class

    def _ask_about(self, models: Sequence[ModelView], snapshot: Snapshot, now_s: float) -> Answers:
        specs = [
            m.spec for m in (parsed(v.manifest) for v in models) if isinstance(m, ModelDeployment)
        ]
        if not specs:
            return Answers()
        slos = [slo_of(spec) for spec in specs]
        ttft_limits_s = {target.limit_s for slo in slos for target in slo.ttft}
        tpot_limits_s = {target.limit_s for slo in slos for target in slo.tpot}

        def expressions(namespaces: Sequence[str]) -> Mapping[str, str]:
            return queries(
                self.settings,
                ttft_limits_s=ttft_limits_s,
                tpot_limits_s=tpot_limits_s,
                namespaces=namespaces,
            )

        owned = (pod for pods in snapshot.pods_by_deployment.values() for pod in pods)
        pods = ((pod.namespace, pod.name) for pod in owned)
        return self._scraper.scrape(expressions, pods, now_s)

    def _state(
        self, view: ModelView, snapshot: Snapshot, answers: Scrape, now_s: float
    ) -> ModelState:
        model = parsed(view.manifest)
        if not isinstance(model, ModelDeployment):
            return ModelState(view=view, model=model, deployment=_still_running(view, snapshot))
        name = model.spec.scale_target.name if model.spec.scale_target else view.name
        key = (view.namespace, name)
        deployment = snapshot.deployments.get(key) or self._taken(key)
        pods = snapshot.pods_of(deployment) if deployment else ()
        config, problem = self._config(view, model, now_s)
        keys = [(pod.namespace, pod.name) for pod in pods]
        return ModelState(
            view=view,
            model=model,
            deployment=deployment,
            pods=pods,
            model_config=config,
            config_problem=problem,
            conflicting_autoscaler=_conflicting_autoscaler(deployment, snapshot),
            older_claim=_older_claim(view, model, snapshot),
            engines=tuple(each for key in keys for each in answers.engines.get(key, ())),
        )

    def _taken(self, key: tuple[str, str]) -> DeploymentView | None:
        """Return a Deployment in the way of an object's own, as long as it is there."""
        if key not in self.taken_names:
            return None
        try:
            found = self.kube.get(DEPLOYMENTS.path(*key))
        except WorldError as error:
            LOG.warning("object=%s/%s: %s", *key, error)
            return None
        if found is None:
            self.taken_names.discard(key)
            return None
        return deployment_view(found)

    def _config(
        self, view: ModelView, model: ModelDeployment, now_s: float
    ) -> tuple[str | None, str | None]:
        """Return (config.json, problem) for a spec that refers to a ConfigMap."""
        source = model.spec.model.config
        if source is None:
            return None, None
        known = self._configs.get(view.uid)
        if known and now_s - known[0] < CONFIG_AGE_S and known[1] == view.manifest:
            return known[2], known[3]
        reference = source.config_map_key_ref
        try:
            found = self.kube.get(CONFIG_MAPS.path(view.namespace, reference.name))
        except WorldError as error:
            if known and known[1] == view.manifest:
                return known[2], known[3]  # what was read last holds until it can be read again
            return None, f"ConfigMap {reference.name}: {error}"
        text = ((found or {}).get("data") or {}).get(reference.key)
        problem = None
        if text is None:
            problem = f"ConfigMap {reference.name} has no key {reference.key} in {view.namespace}"
        self._configs[view.uid] = (now_s, view.manifest, text, problem)
        return text, problem


def _still_running(view: ModelView, snapshot: Snapshot) -> DeploymentView | None:
    """Return what was made for an object that is not valid any more: it takes up GPUs."""
    deployment = snapshot.deployments.get(view.key)
    is_ours = deployment is not None and deployment.owner_uid == view.uid
    return deployment if is_ours else None


def _conflicting_autoscaler(deployment: DeploymentView | None, snapshot: Snapshot) -> str | None:
    """Return a HorizontalPodAutoscaler that scales the same Deployment."""
    if deployment is None:
        return None

    def conflicts(scaler: AutoscalerView) -> bool:
        is_same = scaler.target_kind == "Deployment" and scaler.target_name == deployment.name
        return is_same and scaler.namespace == deployment.namespace

    names = sorted(s.name for s in snapshot.autoscalers.values() if conflicts(s))
    return f"HorizontalPodAutoscaler {names[0]}" if names else None


def _older_claim(view: ModelView, model: ModelDeployment, snapshot: Snapshot) -> str | None:
    """Return the name of an older ModelDeployment with the same scale target."""
    target = model.spec.scale_target
    if target is None:
        return None
    claims = []
    for other in snapshot.models.values():
        claimant = parsed(other.manifest)
        if other.namespace == view.namespace and isinstance(claimant, ModelDeployment):
            same = claimant.spec.scale_target
            if same and same.name == target.name:
                claims.append((other.created, other.uid, other.name))
    oldest = min(claims)
    return None if oldest[1] == view.uid else oldest[2]
