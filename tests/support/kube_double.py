"""The API server as far as the operator writes to it: objects in memory, versions checked."""

import copy
import itertools
import json
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from tonnage.cluster.calls import ConflictError, KubernetesError, WriteFencedError
from tonnage.cluster.kube import LEADER_WORKER_SETS, Resource
from tonnage.cluster.pages import reduce_object
from tonnage.manifests.names import WORKLOADS

Object = dict[str, Any]
DEPLOYMENTS = "apps/v1/namespaces"
WRITES = frozenset({"apply", "merge_patch", "create", "replace", "delete"})


@dataclass(frozen=True, kw_only=True)
class Call:
    """One request that changes something."""

    verb: str
    path: str
    body: Object
    manager: str | None = None
    force: bool | None = None

    @property
    def short(self) -> str:
        """The verb and the last part of the path: `apply deployments/llama`."""
        parts = self.path.split("/")
        kinds = parts[parts.index("namespaces") + 2 :]
        return f"{self.verb} {'/'.join(kinds)}"


class KubeDouble:
    """Objects by path. ``fail`` may raise for a (verb, path) before anything happens."""

    def __init__(
        self,
        objects: Iterable[tuple[str, Object]] = (),
        *,
        fail: Callable[[str, str], None] = lambda verb, path: None,
    ) -> None:
        self.objects: dict[str, Object] = {}
        self.writes: list[Call] = []
        self.fail = fail
        self.read_only: set[str | None] = set()
        """Namespaces in which nothing may be written, as far as somebody asks; None: anywhere."""
        self.unserved = {LEADER_WORKER_SETS}
        self.unreadable: set[Resource] = set()
        """Kinds that we may neither list nor watch."""
        self._versions = itertools.count(1)
        self._lock = threading.Lock()
        for path, body in objects:
            self.put(path, body)

    def with_fence(self, fence: Callable[[], None]) -> "_Fenced":
        """The same objects, on which each write asks first."""
        return _Fenced(self, (fence,))

    def check(self) -> None:
        """Nothing is asked."""

    def hasty(self) -> "KubeDouble":
        """Nothing is waited for."""
        return self

    def put(self, path: str, body: Object) -> Object:
        """Somebody else creates or changes an object."""
        metadata = {"resourceVersion": str(next(self._versions))}
        stored = copy.deepcopy(body) | {"metadata": body.get("metadata", {}) | metadata}
        stored["metadata"].setdefault("uid", f"uid-of-{path}")
        self.objects[path] = stored
        return stored

    def get(self, path: str) -> Object | None:
        self.fail("get", path)
        with self._lock:
            if path.endswith("/scale"):
                return self._scale(path)
            return copy.deepcopy(self.objects.get(path))

    def list(
        self, path: str, *, label_selector: str = "", reduce=reduce_object
    ) -> Iterator[Object]:
        self.fail("list", path)
        kind = path.rsplit("/", 1)[1]
        name, _, value = label_selector.partition("=")
        for place, body in sorted(self.objects.items()):
            labels = body["metadata"].get("labels") or {}
            is_selected = not name or (name in labels and labels[name] == (value or labels[name]))
            if place.split("/")[-2] == kind and is_selected:
                yield json.loads(reduce(json.dumps(body).encode()))

    def serves(self, resource: Resource) -> bool:
        return resource not in self.unserved

    def may(self, verb: str, resource: Resource, namespace: str | None, *, sub: str = "") -> bool:
        if verb in {"list", "watch"}:
            return resource not in self.unreadable
        return namespace not in self.read_only

    def apply(self, path: str, body: Object, *, manager: str, force: bool) -> Object:
        with self._writing(Call(verb="apply", path=path, body=body, manager=manager, force=force)):
            if path.endswith("/status"):
                return self._apply_status(path, body)
            return self._apply(path, body, manager, force=force)

    def merge_patch(self, path: str, body: Object, *, manager: str) -> Object:
        with self._writing(Call(verb="patch", path=path, body=body, manager=manager)):
            live = self._existing(path.removesuffix("/scale"))
            self._check_version(live, body)
            spec = live.get("spec", {}) | (body.get("spec") or {})
            asked = body.get("metadata") or {}
            self._check_uid(live, {"metadata": asked})
            merged = {
                key: (live["metadata"].get(key) or {}) | (asked.get(key) or {})
                for key in ("labels", "annotations")
            }
            metadata = live["metadata"] | merged
            return self.put(
                path.removesuffix("/scale"), live | {"spec": spec, "metadata": metadata}
            )

    def create(self, path: str, body: Object) -> Object:
        with self._writing(Call(verb="create", path=path, body=body)):
            metadata = body["metadata"]
            name = metadata.get("name") or f"{metadata['generateName']}{next(self._versions)}"
            if f"{path}/{name}" in self.objects:
                raise ConflictError("it already exists", status=409)
            return self.put(f"{path}/{name}", body | {"metadata": metadata | {"name": name}})

    def replace(self, path: str, body: Object) -> Object:
        with self._writing(Call(verb="replace", path=path, body=body)):
            self._check_version(self._existing(path), body)
            return self.put(path, body)

    def delete(self, path: str, *, uid: str) -> None:
        with self._writing(Call(verb="delete", path=path, body={})):
            live = self._existing(path)
            self._check_uid(live, {"metadata": {"uid": uid}})
            del self.objects[path]

    def _writing(self, call: Call) -> "_Writing":
        self.fail(call.verb, call.path)
        self.writes.append(copy.deepcopy(call))
        return _Writing(self._lock)

    def _existing(self, path: str) -> Object:
        if path not in self.objects:
            raise KubernetesError("not found", status=404)
        return self.objects[path]

    def _check_version(self, live: Object, body: Object) -> None:
        asked = (body.get("metadata") or {}).get("resourceVersion")
        if asked is not None and asked != live["metadata"]["resourceVersion"]:
            raise ConflictError("the object has been modified", status=409)

    def _check_uid(self, live: Object | None, body: Object) -> None:
        asked = body["metadata"].get("uid")
        if asked is not None and (live is None or live["metadata"]["uid"] != asked):
            raise ConflictError("the uid is another", status=409)

    def _apply(self, path: str, body: Object, manager: str, *, force: bool) -> Object:
        live = self.objects.get(path)
        self._check_uid(live, body)
        if live is None:
            return self.put(path, _defaulted(_owned(body, body, manager)))
        if not force and manager not in live.get("managers", [manager]):
            raise ConflictError("somebody else owns these fields", status=409)
        if body.get("kind") not in WORKLOADS:
            return self.put(path, _applied(live, body, manager))
        metadata = live["metadata"] | body["metadata"]
        spec = live.get("spec", {}) | body.get("spec", {})
        made = live | body | {"metadata": metadata, "spec": spec}
        return self.put(path, _owned(made, body, manager))

    def _apply_status(self, path: str, body: Object) -> Object:
        place = path.removesuffix("/status")
        live = self._existing(place)
        self._check_uid(live, body)
        return self.put(place, live | {"status": body["status"]})

    def _scale(self, path: str) -> Object | None:
        live = self.objects.get(path.removesuffix("/scale"))
        if live is None:
            return None
        metadata = {key: live["metadata"].get(key) for key in ("name", "uid", "resourceVersion")}
        replicas = live["spec"].get("replicas", 1)
        return {
            "kind": "Scale",
            "metadata": metadata,
            "spec": {"replicas": replicas} if replicas else {},
        }


def _applied(live: Object, body: Object, manager: str) -> Object:
    """Merge what is applied, and drop what the manager applied before and does not any more."""
    managers = live["metadata"].get("managedFields") or ()
    before = next((each["fieldsV1"] for each in managers if each["manager"] == manager), {})
    kept = _without(live, body, before)
    return _owned(_merged(kept, body), body, manager)


def _owned(made: Object, body: Object, manager: str) -> Object:
    """Note which fields a manager applied; lists count as a whole."""
    metadata = {k: v for k, v in body["metadata"].items() if k not in ("name", "namespace", "uid")}
    others = made["metadata"].get("managedFields") or ()
    others = [each for each in others if each["manager"] != manager]
    fields = {k: v for k, v in body.items() if k not in ("apiVersion", "kind")}
    if body.get("kind") in WORKLOADS:
        fields = {}
    entry = {
        "manager": manager,
        "operation": "Apply",
        "fieldsV1": _fields(fields | {"metadata": metadata}),
    }
    return made | {"metadata": made["metadata"] | {"managedFields": [*others, entry]}}


def _fields(value: Any) -> Object:
    return {f"f:{k}": _fields(v) for k, v in value.items()} if isinstance(value, dict) else {}


def _merged(live: Any, body: Any) -> Any:
    if not isinstance(live, dict) or not isinstance(body, dict):
        return copy.deepcopy(body)
    return live | {key: _merged(live.get(key), each) for key, each in body.items()}


def _without(live: Any, body: Any, before: Object) -> Any:
    if not isinstance(live, dict):
        return live
    gone = {key for key in live if f"f:{key}" in before and key not in (body or {})}
    return {
        key: _without(each, (body or {}).get(key), before.get(f"f:{key}", {}))
        for key, each in live.items()
        if key not in gone
    }


def _defaulted(body: Object) -> Object:
    """What the API server adds to a new Deployment."""
    if body.get("kind") not in WORKLOADS:
        return body
    return body | {"spec": {"replicas": 1} | body["spec"]}


def led(kube: KubeDouble, leads: Callable[[], bool] = lambda: True) -> "_Fenced":
    """The same objects, written to only while we lead."""

    def check() -> None:
        if not leads():
            raise WriteFencedError("the Lease was lost: nothing is written")

    return kube.with_fence(check)


class _Fenced:
    def __init__(self, kube: KubeDouble, fences: tuple[Callable[[], None], ...]) -> None:
        self._kube, self._fences = kube, fences

    def with_fence(self, fence: Callable[[], None]) -> "_Fenced":
        return _Fenced(self._kube, (*self._fences, fence))

    def hasty(self) -> "_Fenced":
        return self

    def check(self) -> None:
        for fence in (*self._fences, self._fences[0]):
            fence()

    def __getattr__(self, name: str) -> Any:
        if name in WRITES:
            self.check()
        return getattr(self._kube, name)


class _Writing:
    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
