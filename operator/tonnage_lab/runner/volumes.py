"""Volumes of a pod as folders on this machine, and where containers mount them."""

import base64
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tonnage_lab.runner.environment import (
    CONFIG_MAPS,
    SECRETS,
    NotStartableError,
    ObjectRef,
    Objects,
    PodFacts,
    field_value,
    object_data,
    object_ref,
)
from tonnage_lab.runner.mounts import Bind

Json = Mapping[str, Any]

RESOURCES: Final = {"configMap": CONFIG_MAPS, "secret": SECRETS}
TOKEN_LIFETIME_S: Final = 3600
"""Asked for when a volume does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRef:
    """A ServiceAccount token that a pod reads."""

    path: str
    audience: str | None
    lifetime_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeFolders:
    """Where volumes of one pod are kept."""

    pod: Path
    """The pod's own: gone with the pod."""
    claims: Path
    """Of its namespace's PersistentVolumeClaims: they stay."""

    def of(self, volume: Json) -> Path:
        """Return the folder of a volume.

        Raises:
            NotStartableError: it is of a kind that is not known here.
        """
        if claim := volume.get("persistentVolumeClaim"):
            return self.claims / str(claim["claimName"])
        if path := volume.get("hostPath"):
            return Path(path["path"])
        return self.pod / str(volume["name"])


def data_of(found: Json | None) -> Mapping[str, bytes] | None:
    """Return the files of a ConfigMap or Secret object; None when there is no object."""
    if found is None:
        return None
    plain = {} if found["kind"] == "Secret" else found.get("data") or {}
    encoded = found.get("data") if found["kind"] == "Secret" else found.get("binaryData")
    decoded = {key: base64.b64decode(value) for key, value in (encoded or {}).items()}
    return {key: value.encode() for key, value in plain.items()} | decoded


def _sources(volume: Json) -> list[tuple[str, Json]]:
    """Return the (kind, source) of a volume."""
    if projected := volume.get("projected"):
        return [pair for source in projected.get("sources") or [] for pair in source.items()]
    kinds = [key for key in volume if key != "name"]
    return [(kind, volume[kind] or {}) for kind in kinds] or [("emptyDir", {})]


def references(volumes: Sequence[Json]) -> Iterator[ObjectRef]:
    """Return the ConfigMaps and Secrets that volumes need."""
    for volume in volumes:
        for kind, source in _sources(volume):
            if kind in RESOURCES:
                yield object_ref(RESOURCES[kind], source)


def token_refs(volume: Json) -> list[TokenRef]:
    """Return the ServiceAccount tokens of a projected volume."""
    return [
        TokenRef(
            path=source["path"],
            audience=source.get("audience"),
            lifetime_s=source.get("expirationSeconds", TOKEN_LIFETIME_S),
        )
        for kind, source in _sources(volume)
        if kind == "serviceAccountToken"
    ]


def files(volume: Json, facts: PodFacts, objects: Objects) -> dict[str, bytes]:
    """Return the files of a volume by path; tokens are not among them.

    Raises:
        NotStartableError: an object or key is missing, or the kind is not known here.
    """
    found: dict[str, bytes] = {}
    for kind, source in _sources(volume):
        match kind:
            case "configMap" | "secret":
                data = object_data(object_ref(RESOURCES[kind], source), objects)
                found |= _items(data, source)
            case "downwardAPI":
                for item in source.get("items") or []:
                    found[item["path"]] = field_value(item["fieldRef"]["fieldPath"], facts).encode()
            case "emptyDir" | "persistentVolumeClaim" | "hostPath" | "serviceAccountToken":
                pass
            case _:
                raise NotStartableError(
                    "CreateContainerConfigError",
                    f"volume {volume['name']}: {kind} is not known here",
                )
    return found


def _items(data: Mapping[str, bytes], source: Json) -> dict[str, bytes]:
    items = source.get("items")
    if items is None:
        return dict(data)
    missing = [item["key"] for item in items if item["key"] not in data]
    if missing and not source.get("optional"):
        raise NotStartableError(
            "CreateContainerConfigError", f"references non-existent key: {missing[0]}"
        )
    return {item["path"]: data[item["key"]] for item in items if item["key"] in data}


def write(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write files into a volume's folder, each in one move: a reader sees the old or the new."""
    folder.mkdir(parents=True, exist_ok=True)
    for path, content in contents.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.with_name(f".{target.name}.new")
        draft.write_bytes(content)
        draft.replace(target)


def remove(folder: Path) -> None:
    """Remove a pod's own volumes."""
    shutil.rmtree(folder, ignore_errors=True)


def binds(container: Json, volumes: Sequence[Json], folders: VolumeFolders) -> list[Bind]:
    """Return what a container mounts where.

    Links such as ``/var/run`` are followed here: from outside the container's root they would
    lead out of it.

    Raises:
        NotStartableError: it mounts a volume that the pod does not have.
    """
    by_name = {volume["name"]: volume for volume in volumes}
    found = []
    for mount in container.get("volumeMounts") or []:
        if mount["name"] not in by_name:
            raise NotStartableError("CreateContainerConfigError", f"no volume {mount['name']}")
        source = folders.of(by_name[mount["name"]]) / mount.get("subPath", "")
        if mount.get("subPath") and not source.exists():
            source.mkdir(parents=True)
        found.append(
            Bind(
                source=str(source),
                target=os.path.realpath(mount["mountPath"]),
                is_file=source.is_file(),
                read_only=bool(mount.get("readOnly", False)),
            )
        )
    return found


def token_request(wanted: TokenRef, pod: Json) -> dict[str, Any]:
    """Return the body of a TokenRequest for a pod."""
    spec: dict[str, Any] = {
        "expirationSeconds": wanted.lifetime_s,
        "boundObjectRef": {
            "apiVersion": "v1",
            "kind": "Pod",
            "name": pod["metadata"]["name"],
            "uid": pod["metadata"]["uid"],
        },
    }
    if wanted.audience:
        spec["audiences"] = [wanted.audience]
    return {"spec": spec}
