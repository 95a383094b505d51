"""Slim, immutable views of what the loop watches: only what a decision can depend on."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain

from tonnage.cluster.pages import oversized_bytes
from tonnage.control.input.state import DeploymentView, ModelView, PodView
from tonnage.fleet.pods import (
    Object,
    controller_uid,
    integer,
    message_of,
    num_gpus,
    uncounted_gpus,
    unix_s,
)
from tonnage.manifests.changes import Change
from tonnage.manifests.children import without_queue
from tonnage.manifests.names import (
    ADOPT_LABEL,
    APPROVE_ANNOTATION,
    DEPLOYMENT,
    DIGEST_ANNOTATION,
    MANAGED_LABEL,
    MANAGER,
    RECORD,
    SCALE_MANAGER,
    Workload,
)
from tonnage.manifests.target import engine_of

OURS = frozenset({MANAGER, SCALE_MANAGER})


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSetView:
    """What links a pod to its workload: a ReplicaSet, or a StatefulSet of a LeaderWorkerSet.

    A LeaderWorkerSet has one of leaders; each of these has one of its workers.
    """

    namespace: str
    name: str
    uid: str
    deployment_uid: str | None
    """Of what controls it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoscalerView:
    """A HorizontalPodAutoscaler: it conflicts with us where it targets our workload."""

    namespace: str
    name: str
    uid: str
    target_kind: str
    target_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OversizedView:
    """An object other than a ModelDeployment that is too large to be read."""

    namespace: str
    name: str
    uid: str
    num_bytes: int


View = ModelView | DeploymentView | PodView | ReplicaSetView | AutoscalerView | OversizedView


def model_view(body: Object) -> ModelView:
    metadata, spec = body["metadata"], body.get("spec")
    annotations = metadata.get("annotations") or {}
    asked = spec.get("operatorClass") if isinstance(spec, Mapping) else None
    kept = {
        key: metadata[key] for key in ("name", "namespace", "uid", "generation") if key in metadata
    }
    manifest = {
        "apiVersion": body.get("apiVersion"),
        "kind": body.get("kind"),
        "metadata": kept,
        "spec": spec,
    }
    return ModelView(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        generation=metadata.get("generation", 0),
        created=metadata.get("creationTimestamp") or "",
        manifest=json.dumps(manifest, default=dict),
        status=_text(body.get("status") or {}),
        deleted_at_s=unix_s(metadata.get("deletionTimestamp")),
        approve=annotations.get(APPROVE_ANNOTATION),
        operator_class=asked if isinstance(asked, str) else None,
        owner_uid=controller_uid(metadata),
        digest=annotations.get(DIGEST_ANNOTATION),
        is_oversized=oversized_bytes(body) is not None,
    )


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True, default=dict)


def deployment_view(body: Object, workload: Workload = DEPLOYMENT) -> DeploymentView:
    metadata, spec, status = body["metadata"], body.get("spec") or {}, body.get("status") or {}
    template = spec.get(workload.template) or {}
    answering, *others_of_group = templates = tuple(workload.templates(template))
    num_workers = int(template.get("size", 1)) - 1 if workload.is_group else 0
    pod_spec = answering.get("spec") or {}
    pod_specs = [pod_spec, *(each.get("spec") or {} for each in others_of_group)]
    pod_labels = [(each.get("metadata") or {}).get("labels") or {} for each in templates]
    recorded, record_edits = _record(metadata)
    labels = metadata.get("labels") or {}
    others = _template_owners(metadata, workload)
    entries = metadata.get("managedFields") or ()
    ours = (_template_fields(each, workload) for each in entries if _is_ours(each))
    # Up to 0.8 a LeaderWorkerSet does not say which generation it has observed.
    unobserved = metadata.get("generation", 0) if workload.is_group and status else 0
    return DeploymentView(
        kind=workload.kind,
        num_nodes=1 + num_workers,
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        owner_uid=controller_uid(metadata),
        owner=_controller(metadata),
        adopt=labels.get(ADOPT_LABEL),
        selector=frozenset(((spec.get("selector") or {}).get("matchLabels") or {}).items()),
        is_opted_in=all(each.get(MANAGED_LABEL) == "true" for each in (labels, *pod_labels)),
        replicas=spec.get("replicas", 1),
        is_paused=spec.get("paused") is True,
        is_deleting="deletionTimestamp" in metadata,
        generation=metadata.get("generation", 0),
        observed_generation=status.get("observedGeneration", unobserved),
        ready=status.get("readyReplicas", 0),
        updated=status.get("updatedReplicas", 0),
        total=status.get("replicas", 0),
        digest=recorded.get("digest"),
        flags=recorded.get("flags"),
        engine=engine_of(workload, template),
        gpus_per_replica=num_gpus(pod_spec) + num_workers * sum(map(num_gpus, pod_specs[1:])),
        uncounted_gpus=tuple(dict.fromkeys(chain.from_iterable(map(uncounted_gpus, pod_specs)))),
        replicas_managers=_replicas_managers(metadata),
        template_managers=frozenset(name for name, _ in others),
        template_owners=_text(others),
        template_digest=_digest(template),
        pod_spec_digest=_digest(pod_specs if others_of_group else pod_spec),
        problems=() if workload.is_group else tuple(_problems(body)),
        drain_s=integer(recorded.get("drain_s")),
        grace_s=pod_spec.get("terminationGracePeriodSeconds"),
        template=_text(template),
        template_fields=_text(next(filter(None, ours), None)),
        rendered=recorded.get("rendered"),
        made_from=recorded.get("made_from"),
        record_edits=record_edits,
    )


def _record(metadata: Object) -> tuple[dict[str, str], tuple[Change, ...]]:
    """Return what we recorded in annotations, by field, and those that others wrote.

    Only what we own is ours: with the rest anybody could say what runs, and from which spec.
    """
    annotations, entries = metadata.get("annotations") or {}, metadata.get("managedFields") or ()
    owned = [(each, _fields_of(each, "f:metadata").get("f:annotations") or {}) for each in entries]
    recorded, edits = dict[str, str](), list[Change]()
    for field, name in RECORD.items():
        owners = [entry for entry, fields in owned if f"f:{name}" in fields]
        if name in annotations and any(map(_is_ours, owners)):
            recorded[field] = annotations[name]
        elif name in annotations:
            by = tuple(sorted(map(_name_of, owners)))
            edits.append(Change(field=f"annotation {name}", before="there", after="", by=by))
    return without_queue(recorded), tuple(edits)


def _controller(metadata: Object) -> str | None:
    """Return kind and name of what controls an object."""
    owners = metadata.get("ownerReferences") or ()
    named = (f"{each['kind']} {each['name']}" for each in owners if each.get("controller"))
    return next(named, None)


def _replicas_managers(metadata: Object) -> tuple[str, ...]:
    """Return the managers, not ours, that own the number of replicas, and by which way."""
    owners = (
        (entry.get("manager") or "unknown", entry.get("subresource"))
        for entry in metadata.get("managedFields") or ()
        if "f:replicas" in _fields_of(entry, "f:spec")
    )
    others = {(name, way) for name, way in owners if name not in OURS}
    return tuple(sorted(f"{name} (/{way})" if way else name for name, way in others))


def _template_owners(metadata: Object, workload: Workload) -> list[tuple[str, Object]]:
    """Return (manager, fields) of those, not us, that own fields of the pods' spec.

    Annotations and labels of the template are no edit: ``kubectl rollout restart`` writes one.
    """
    return [
        (_name_of(entry), fields)
        for entry in metadata.get("managedFields") or ()
        if (fields := _template_fields(entry, workload))
        and _is_of_pods(fields, workload)
        and not _is_ours(entry)
    ]


def _name_of(entry: Object) -> str:
    """Return the manager of an entry that is not ours."""
    name = entry.get("manager") or "unknown"
    return f"somebody as {name}" if name in OURS else name


def _fields_of(entry: Object, part: str) -> Object:
    """Return what an entry of managedFields says of a part of the object."""
    fields: Object = (entry.get("fieldsV1") or {}).get(part) or {}
    return fields


def _template_fields(entry: Object, workload: Workload) -> Object:
    """Return what an entry of managedFields says of the pod template."""
    fields: Object = _fields_of(entry, "f:spec").get(f"f:{workload.template}") or {}
    return fields


def _is_of_pods(fields: Object, workload: Workload) -> bool:
    """Tell whether fields of a template are of more than its labels and annotations."""
    if not workload.pods:
        return "f:spec" in fields
    parts = {name: fields.get(f"f:{name}") for name in workload.pods}
    beside = fields.keys() - {".", *(f"f:{name}" for name in parts)}
    return bool(beside) or any("f:spec" in part for part in parts.values() if part)


def _is_ours(entry: Object) -> bool:
    """Tell whether we wrote that: templates we only ever apply. Anybody can use our name."""
    return entry.get("manager") == MANAGER and entry.get("operation") == "Apply"


def _digest(template: object) -> str:
    return hashlib.sha256(_text(template).encode()).hexdigest()[:16]


def _problems(body: Object) -> list[tuple[str, str]]:
    bad = {"ReplicaFailure": "True", "Progressing": "False"}
    return [
        (condition["type"], message_of(condition, body))
        for condition in (body.get("status") or {}).get("conditions") or ()
        if bad.get(condition["type"]) == condition["status"]
    ]


def replica_set_view(body: Object) -> ReplicaSetView:
    metadata = body["metadata"]
    return ReplicaSetView(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        deployment_uid=controller_uid(metadata),
    )


def autoscaler_view(body: Object) -> AutoscalerView:
    metadata = body["metadata"]
    target = (body.get("spec") or {}).get("scaleTargetRef") or {}
    return AutoscalerView(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        target_kind=target.get("kind", ""),
        target_name=target.get("name", ""),
    )
