"""The environment and the command line of a container. Pure: what it needs is handed in."""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

Json = Mapping[str, Any]

_REFERENCE: Final = re.compile(r"\$(\$|\(([-._a-zA-Z][-._a-zA-Z0-9]*)\))")
_SUBSCRIPT: Final = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")
CONFIG_MAPS: Final = "configmaps"
SECRETS: Final = "secrets"


class NotStartableError(Exception):
    """A container cannot be started as it is; a later try may succeed."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectRef:
    """A ConfigMap or Secret that a pod reads."""

    resource: str
    name: str
    optional: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PodFacts:
    """What a pod may learn about itself that its own object does not say yet."""

    pod: Json
    pod_ip: str
    host_ip: str


Objects = Mapping[tuple[str, str], Mapping[str, bytes] | None]
"""(resource, name) -> its data; None when it does not exist."""


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replace ``$(NAME)`` as Kubernetes does: unknown names stay, ``$$`` escapes.

    >>> expand("$(HOST):$(PORT) $$(HOST) $(NO)", {"HOST": "a", "PORT": "1"})
    'a:1 $(HOST) $(NO)'
    """

    def value(match: re.Match[str]) -> str:
        if match[1] == "$":
            return "$"
        return variables.get(match[2], match[0])

    return _REFERENCE.sub(value, text)


def command_line(
    container: Json,
    variables: Mapping[str, str],
    *,
    entrypoint: Sequence[str],
    programs: Mapping[str, Sequence[str]],
) -> list[str]:
    """Return what to run: the container's command or the image's, and the args.

    A program of the image may follow another, which becomes it.
    """
    args = [expand(each, variables) for each in container.get("args") or []]
    command = [expand(each, variables) for each in container.get("command") or []]
    if not command:
        return [*entrypoint, *args]
    return [*itertools.chain(*(programs.get(each, [each]) for each in command)), *args]


def references(container: Json) -> Iterator[ObjectRef]:
    """Return the ConfigMaps and Secrets that a container's environment needs."""
    for source in container.get("envFrom") or []:
        for field, resource in (("configMapRef", CONFIG_MAPS), ("secretRef", SECRETS)):
            if field in source:
                yield object_ref(resource, source[field])
    for variable in container.get("env") or []:
        source = variable.get("valueFrom") or {}
        for field, resource in (("configMapKeyRef", CONFIG_MAPS), ("secretKeyRef", SECRETS)):
            if field in source:
                yield object_ref(resource, source[field])


def object_ref(resource: str, source: Json) -> ObjectRef:
    """Return what a source names; a volume has its Secret under a field of its own."""
    return ObjectRef(
        resource=resource,
        name=source.get("name") or source["secretName"],
        optional=bool(source.get("optional", False)),
    )


def environment(
    container: Json, facts: PodFacts, objects: Objects, base: Mapping[str, str]
) -> dict[str, str]:
    """Return all variables of a container: the base, then envFrom, then env in its order.

    Raises:
        NotStartableError: a ConfigMap, Secret or key is missing, or a source is not known here.
    """
    variables = dict(base)
    for source in container.get("envFrom") or []:
        variables |= _all_of(source, objects)
    for variable in container.get("env") or []:
        value = _value(variable, facts, objects, variables)
        if value is not None:
            variables[variable["name"]] = value
    return variables


def _all_of(source: Json, objects: Objects) -> dict[str, str]:
    prefix = source.get("prefix", "")
    field, resource = (
        ("configMapRef", CONFIG_MAPS) if "configMapRef" in source else ("secretRef", SECRETS)
    )
    data = object_data(object_ref(resource, source[field]), objects)
    return {prefix + key: value.decode() for key, value in data.items()}


def object_data(wanted: ObjectRef, objects: Objects) -> Mapping[str, bytes]:
    """Return the data of an object; an optional one that is missing has none.

    Raises:
        NotStartableError: it is missing and needed.
    """
    data = objects.get((wanted.resource, wanted.name))
    if data is not None:
        return data
    if wanted.optional:
        return {}
    raise NotStartableError(
        "CreateContainerConfigError", f'{wanted.resource[:-1]} "{wanted.name}" not found'
    )


def _value(
    variable: Json, facts: PodFacts, objects: Objects, variables: Mapping[str, str]
) -> str | None:
    source = variable.get("valueFrom")
    if not source:
        return expand(variable.get("value") or "", variables)
    if "fieldRef" in source:
        return field_value(source["fieldRef"]["fieldPath"], facts)
    for field, resource in (("configMapKeyRef", CONFIG_MAPS), ("secretKeyRef", SECRETS)):
        if field in source:
            return _key_of(object_ref(resource, source[field]), source[field]["key"], objects)
    raise NotStartableError(
        "CreateContainerConfigError", f"env {variable['name']}: {sorted(source)} is not known here"
    )


def _key_of(wanted: ObjectRef, key: str, objects: Objects) -> str | None:
    data = object_data(wanted, objects)
    if key in data:
        return data[key].decode()
    if wanted.optional:
        return None
    raise NotStartableError(
        "CreateContainerConfigError",
        f"couldn't find key {key} in {wanted.resource[:-1]} {wanted.name}",
    )


def field_value(path: str, facts: PodFacts) -> str:
    """Return what the downward API says for a field path.

    Raises:
        NotStartableError: there is no such field.
    """
    metadata, spec = facts.pod["metadata"], facts.pod["spec"]
    if match := _SUBSCRIPT.fullmatch(path):
        return str((metadata.get(match[1]) or {}).get(match[2], ""))
    known = {
        "metadata.name": metadata["name"],
        "metadata.namespace": metadata["namespace"],
        "metadata.uid": metadata["uid"],
        "metadata.labels": _lines(metadata.get("labels")),
        "metadata.annotations": _lines(metadata.get("annotations")),
        "spec.nodeName": spec.get("nodeName", ""),
        "spec.serviceAccountName": spec.get("serviceAccountName", ""),
        "status.podIP": facts.pod_ip,
        "status.podIPs": facts.pod_ip,
        "status.hostIP": facts.host_ip,
        "status.hostIPs": facts.host_ip,
    }
    if path not in known:
        raise NotStartableError("CreateContainerConfigError", f"field {path} is not known here")
    return str(known[path])


def _lines(pairs: Mapping[str, str] | None) -> str:
    return "\n".join(f'{key}="{value}"' for key, value in sorted((pairs or {}).items()))
