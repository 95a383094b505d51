"""Two versions of manifests: which pods roll and why, and what replicas and cost become."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from pydantic.alias_generators import to_camel

from tonnage.api.objects import ModelDeployment
from tonnage.api.pods import UNTEMPLATED, Pods
from tonnage.cli.results.planning import Planned, Refused, RunningState
from tonnage.cli.results.rendering import FILE_SITE, template_manifest
from tonnage.control.input.state import DeploymentView
from tonnage.control.observe.queue import settle_queue
from tonnage.explain.demand_outcome import at_demand, price_figures, reached_targets
from tonnage.explain.offload import OFFLOAD
from tonnage.explain.report import usd_per_hour
from tonnage.fleet.views import deployment_view
from tonnage.manifests.changes import ALL, Change, template_changes
from tonnage.manifests.children import (
    Site,
    class_to_write_s,
    differs_in_pods,
    flags_from_annotation,
    has_recorded_cache,
    replaces_pods,
    spec_digest,
)
from tonnage.manifests.names import WORKLOADS, template_in
from tonnage.sizing.cost import GpuHour, cents, gpu_hour

SCRAPE_ANNOTATION: Final = "prometheus.io/scrape"
OF_PODS: Final = frozenset({"model", "hardware", "contextLength", "engine", "pods", "slo"})
"""Parts of a spec that a pod template is made from."""
BESIDE_PODS: Final = tuple(f"spec.pods.{to_camel(name)}" for name in (*UNTEMPLATED, "max_surge"))
"""What stands among them and replaces no pod."""

Kind = Literal["added", "removed", "changed", "same"]


def live_of(view: DeploymentView | None, model: ModelDeployment) -> RunningState | None:
    """Return what the flags for a spec are chosen by, where flags are recorded of what runs."""
    flags = flags_from_annotation(view.flags or "") if view else None
    if view is None or flags is None:
        return None
    model = settle_queue(model, view.made_from or "").model
    is_same = view.digest == spec_digest(model)
    return RunningState(
        flags=flags,
        asks_the_same=is_same or differs_in_pods(model, view.made_from),
        is_rolled=not is_same and replaces_pods(model, view.made_from),
        has_host_cache=has_recorded_cache(view.flags),
    )


def runs_pods(planned: Planned) -> bool:
    """Tell whether Tonnage makes pods for a plan: not for a scale target, nor in Recommend."""
    spec = planned.deployment.spec
    return spec.scale_target is None and spec.scaling.mode != "Recommend"


def view_of_plan(planned: Planned) -> DeploymentView:
    """Return what would run for a plan: everything in it is ours."""
    made = template_manifest(planned, FILE_SITE)
    body = {**made, "metadata": {**made["metadata"], "uid": ""}}
    view = deployment_view(body, WORKLOADS[made["kind"]])
    return replace(view, replicas=planned.replicas, template_fields=json.dumps(ALL))


def _is_annotated(view: DeploymentView) -> bool:
    """Tell whether Prometheus finds the pods by their annotations."""
    template = next(view.workload.templates(json.loads(view.template)))
    return SCRAPE_ANNOTATION in ((template.get("metadata") or {}).get("annotations") or {})


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One object before and after. None: it is not there."""

    before: Planned | Refused | None
    after: Planned | Refused | None
    running: DeploymentView | None = None
    """Before; None: nothing of ours runs."""

    @property
    def name(self) -> str:
        known = self.after or self.before
        return f"{known.deployment.namespace}/{known.deployment.name}" if known else ""

    @property
    def kind(self) -> Kind:
        if self.before is None:
            return "added"
        if self.after is None:
            return "removed"
        return "changed" if self.spec_changes else "same"

    @property
    def spec_changes(self) -> tuple[Change, ...]:
        """What differs between the two specs, field by field."""
        if self.before is None or self.after is None:
            return ()
        none = {"pods": Pods().to_dict()}  # a default is no change
        specs = (none | each.deployment.spec.to_dict() for each in (self.before, self.after))
        before, after = (dict(_leaves("spec", spec)) for spec in specs)
        return tuple(
            Change(field=path, before=before.get(path), after=after.get(path))
            for path in sorted(before.keys() | after.keys())
            if before.get(path) != after.get(path)
        )

    @property
    def pod_changes(self) -> tuple[Change, ...]:
        """For which fields of theirs the pods that run are replaced; nothing: they stay."""
        running, after = self.running, self.after
        if running is None or not isinstance(after, Planned) or not runs_pods(after):
            return ()
        if after.deployment.spec.scaling.mode == "Paused":
            return ()
        settled = settle_queue(after.deployment, running.made_from or "")
        if running.digest == spec_digest(settled.model):
            return ()
        as_it_runs = replace(after, deployment=settled.model)
        class_s = class_to_write_s(settled.model, running.flags)
        changes = self._changes_of(running, as_it_runs, class_s)
        return changes and self._changes_of(running, after, None)

    @staticmethod
    def _changes_of(
        running: DeploymentView, after: Planned, class_s: float | None
    ) -> tuple[Change, ...]:
        site = Site(
            has_pod_monitors=not _is_annotated(running),
            scrape_interval_s=FILE_SITE.scrape_interval_s,
        )
        wanted = template_manifest(after, site, running_drain_s=running.drain_s, class_s=class_s)
        live, owned = json.loads(running.template), json.loads(running.template_fields)
        return template_changes(live, template_in(wanted), owned=owned)

    @property
    def causes(self) -> tuple[str, ...]:
        """Changed fields of the spec that pods are made from, where pods are replaced."""
        if not self.pod_changes:
            return ()
        return tuple(
            each.field
            for each in self.spec_changes
            if each.field.split(".")[1] in OF_PODS and not each.field.startswith(BESIDE_PODS)
        )

    @property
    def num_rolled(self) -> int:
        """Pods that are replaced."""
        running = self.running
        if running is None or not self.pod_changes:
            return 0
        return running.replicas * running.num_nodes


def offload_of(answer: Planned | Refused | None) -> str | None:
    """Return what Auto chose of the KV cache in host memory, and why; None: it was not asked."""
    reasons = answer.reasons if isinstance(answer, Planned) else ()
    return next((each.message for each in reasons if each.code == OFFLOAD), None)


def cost_of(answer: Planned | Refused | None) -> float | None:
    """Return USD per hour of the replicas planned; None: there is no price, or no plan."""
    return usd_per_hour(answer.sizing, answer.replicas) if isinstance(answer, Planned) else None


def hour_of(answer: Planned | Refused | None) -> GpuHour | None:
    """Return the hour of one GPU that is paid; None: there is no price, or no plan."""
    if not isinstance(answer, Planned):
        return None
    return gpu_hour(answer.sizing.request.gpu, answer.sizing.parallelism.num_gpus)


def total_cost(answers: Iterable[Planned | Refused | None]) -> float | None:
    """Return USD per hour of all of them; None where one has no price, or no plan."""
    costs = [cost_of(each) for each in answers if each is not None]
    known = [cost for cost in costs if cost is not None]
    return cents(sum(known)) if len(known) == len(costs) else None


def figures(found: Difference) -> dict[str, Any]:
    """Return one object's difference as plain figures."""
    return {
        "name": found.name,
        "kind": found.kind,
        "specChanges": [_change(each) for each in found.spec_changes],
        "podsRolled": found.num_rolled,
        "causes": list(found.causes),
        "podChanges": [_change(each) for each in found.pod_changes],
        "before": figures_of(found.before),
        "after": figures_of(found.after),
    }


def _change(change: Change) -> dict[str, str | None]:
    return {"field": change.field, "before": change.before, "after": change.after}


def figures_of(answer: Planned | Refused | None) -> dict[str, Any] | None:
    """Return what one side comes to, as plain figures."""
    if answer is None:
        return None
    if isinstance(answer, Refused):
        return {"refused": {"reason": answer.code, "message": answer.message}}
    cost, flags, hour = cost_of(answer), answer.sizing.flags, hour_of(answer)
    asked, offload = at_demand(answer.sizing, answer.replicas), offload_of(answer)
    targets = reached_targets(answer.sizing, asked.served) if asked else ()
    return {
        "replicas": answer.replicas,
        "replicasNeeded": answer.sizing.replicas,
        "gpus": answer.replicas * flags.parallelism.num_gpus,
        "maxNumSeqs": flags.max_num_seqs,
        "usdPerHour": None if cost is None else cents(cost),
        "price": None if hour is None else price_figures(hour),
        **({"kvOffload": offload} if offload else {}),
        "latencies": {name: {"reached": each, "target": most} for name, each, most in targets},
    }


def _leaves(path: str, node: Any) -> Iterator[tuple[str, str]]:
    if isinstance(node, Mapping) and node:
        for key, value in node.items():
            yield from _leaves(f"{path}.{key}", value)
        return
    yield path, node if isinstance(node, str) else json.dumps(node, sort_keys=True)
