"""The pod template of a user: fields of before read into it, and one template merged onto another.

Objects are merged field by field. Containers, volumes, mounts, pull secrets and host aliases are
merged by their keys, as Kubernetes does it: those of one key are one, further ones come after.
Variables of a name replace each other whole, and tolerations are added. What else is a list, or no
object, is taken from the second.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from tonnage.api.pod_rules import ENGINE
from tonnage.api.pods import DEPRECATED, Pods

Template = dict[str, Any]
KEYS: Final = {
    "containers": "name",
    "hostAliases": "ip",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
"""Lists that are merged by the key of their elements."""
_NAMED: Final = frozenset({"annotations", "httpHeaders", "labels", "matchLabels", "nodeSelector"})
"""Objects in which an empty text is stored: fields of most are no fields of Kubernetes."""
AMOUNTS: Final = frozenset({"divisor", "limits", "requests", "sizeLimit"})
"""Fields whose values, or those below them, are stored in another form than they were given."""
_UNSTORED: Final = {
    *("readOnly", "initialDelaySeconds", "periodSeconds", "timeoutSeconds"),
    *("failureThreshold", "successThreshold"),
}
"""What means nothing where it is 0 or false: the API server leaves it out, or has its default."""


def merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> Template:
    """Return the first template with the second merged onto it.

    >>> merged({"a": {"b": 1}}, {"a": {"c": 2}})
    {'a': {'b': 1, 'c': 2}}
    """
    return {name: _both(name, first, second) for name in {**first, **second}}


def _both(name: str, first: Mapping[str, Any], second: Mapping[str, Any]) -> Any:
    if name not in first or name not in second:
        return second.get(name, first.get(name))
    ours, theirs = first[name], second[name]
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        return merged(ours, theirs)
    if name == "env":
        names = {each["name"] for each in theirs}
        return [*(each for each in ours if each["name"] not in names), *theirs]
    if name == "tolerations":
        return [*ours, *theirs]
    if key := KEYS.get(name):
        found = {each.get(key): each for each in ours}
        for each in theirs:
            found[each.get(key)] = merged(found.get(each.get(key), {}), each)
        return [*found.values()]
    return theirs


def given_template(pods: Pods | None) -> Template:
    """Return what a user says of the pod template, in old fields and in ``template``.

    The one reader of fields that are deprecated: both go in 0.3.
    """
    if pods is None:
        return {}
    return merged(_of_deprecated(pods), as_stored(pods.template or {}))


def containers_in(template: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield (path, container) of all containers of a template, the engine's among them."""
    for kind in ("containers", "initContainers"):
        for number, each in enumerate((template.get("spec") or {}).get(kind) or ()):
            yield f"spec.{kind}[{number}]", each


def variables_in(template: Mapping[str, Any]) -> set[str]:
    engines = [each for _, each in containers_in(template) if each["name"] == ENGINE]
    return {variable["name"] for each in engines for variable in each.get("env") or ()}


def deprecated_fields(pods: Pods | None) -> tuple[str, ...]:
    """Return the fields of ``pods`` that go in 0.3, as they are written."""
    names = [name for name in DEPRECATED if pods and getattr(pods, name)]
    return tuple(f"pods.{Pods.model_fields[name].alias}" for name in names)


def _of_deprecated(pods: Pods) -> Template:
    spreads = [each.to_dict() for each in pods.topology_spread_constraints]
    engine = {
        "env": [
            {"name": each.name, "valueFrom": {"secretKeyRef": each.secret_key_ref.to_dict()}}
            for each in pods.env
        ],
        "resources": _given(
            limits=_given(
                cpu=pods.cpu_limit,
                memory=pods.memory_limit,
                **{"ephemeral-storage": pods.ephemeral_storage_limit},
            ),
            requests=_given(
                cpu=pods.cpu, memory=pods.memory, **{"ephemeral-storage": pods.ephemeral_storage}
            ),
        ),
    }
    spec = _given(
        securityContext=_given(fsGroupChangePolicy=pods.fs_group_change_policy),
        tolerations=[each.to_dict() for each in pods.tolerations],
        containers=[{"name": ENGINE, **_given(**engine)}] if any(engine.values()) else None,
        nodeSelector=dict(pods.node_selector),
        priorityClassName=pods.priority_class_name,
        runtimeClassName=pods.runtime_class_name,
        topologySpreadConstraints=spreads,
        serviceAccountName=pods.service_account_name,
        imagePullSecrets=[each.to_dict() for each in pods.image_pull_secrets],
    )
    metadata = _given(labels=dict(pods.labels), annotations=dict(pods.annotations))
    return _given(metadata=metadata, spec=spec)


def _given(**fields: Any) -> Template:
    return {name: value for name, value in fields.items() if value}


def as_stored(node: Any, name: str = "") -> Any:
    """Return a part of a template as the API server stores it, without defaults: no edit is seen.

    >>> as_stored({"env": [{"name": "A", "value": ""}], "limits": {"cpu": 1}})
    {'env': [{'name': 'A'}], 'limits': {'cpu': '1'}}
    """
    match node:
        case list():
            return [as_stored(each, name) for each in node]
        case dict():
            above = name if name in AMOUNTS else ""
            below = {key: as_stored(each, above or key) for key, each in node.items()}
            if name in _NAMED:
                return below
            return {key: each for key, each in below.items() if _is_stored(key, each)}
        case None:
            return ""
        case int() | float() if name in AMOUNTS:
            return str(node)
    return node


def _is_stored(name: str, value: Any) -> bool:
    is_empty = value in ("", []) or (name in _NAMED | AMOUNTS and value == {})
    return not is_empty and not (name in _UNSTORED and value == 0)
