"""What applying a pod template changes of the one that stands: every such field rolls pods.

Compared is what server-side apply would do. A field that we set and that stands there with another
value is changed; one that we set before and set no more is taken away; what the API server adds by
default, and what others set, stays. What others add beside ours is told apart.

Of further children the question is whether the live object is what is wanted (``differs``). The API
server notes who applied which field. So what somebody added beside ours is no difference, what
somebody took over is one, and so is what we applied once and do not want any more: another apply
takes the second back and gives the third up.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tonnage.api import pod_template
from tonnage.manifests.arguments import argument_pairs
from tonnage.manifests.names import Manifest
from tonnage.redaction import REDACTED, SECRET_NAME
from tonnage.units import KB, quantity

Owned = Mapping[str, Any] | None
"""Fields of ours below a path, as ``fieldsV1`` has them. Empty: all of them. None: none."""

ALL: Final[Mapping[str, Any]] = {}
KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    **{name: (key,) for name, key in pod_template.KEYS.items()},
    "env": ("name",),
    "ports": ("containerPort", "protocol"),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
}
"""Lists that the API server merges by key; any other is one value."""
DEFAULT_KEYS: Final = {"protocol": "TCP"}
ARGUMENTS: Final = frozenset({"args", "command"})
LONGEST: Final = 120
"""Characters of a value that are shown."""
DEFAULTS: Final[Mapping[str, tuple[Any, ...]]] = {
    "apiVersion": ("v1",),
    "defaultMode": (420,),
    "divisor": ("0",),
    "dnsPolicy": ("ClusterFirst",),
    "emptyDir": ({},),
    "failureThreshold": (3,),
    "imagePullPolicy": ("Always", "IfNotPresent"),
    "path": ("/",),
    "periodSeconds": (10,),
    "procMount": ("Default",),
    "protocol": ("TCP",),
    "resources": ({},),
    "restartPolicy": ("Always",),
    "schedulerName": ("default-scheduler",),
    "scheme": ("HTTP",),
    "service": ("",),
    "successThreshold": (1,),
    "terminationMessagePath": ("/dev/termination-log",),
    "terminationMessagePolicy": ("File",),
    "timeoutSeconds": (1,),
}
"""What the API server fills in, by the name of the field: it belongs to whoever made the object."""
NEVER_DEFAULT: Final = frozenset(
    {
        "affinity",
        "args",
        "command",
        "containers",
        "dnsConfig",
        "dnsPolicy",
        "env",
        "envFrom",
        "ephemeralContainers",
        "hostAliases",
        "hostIPC",
        "hostNetwork",
        "hostPID",
        "hostUsers",
        "initContainers",
        "lifecycle",
        "nodeName",
        "nodeSelector",
        "priorityClassName",
        "runtimeClassName",
        "schedulerName",
        "securityContext",
        "serviceAccountName",
        "shareProcessNamespace",
        "tolerations",
        "volumeDevices",
        "volumeMounts",
        "volumes",
    }
)
"""What changes what runs, and is filled in as above or by nobody: somebody's, even of no name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One field of a pod template, or of a spec, before and after. None: absent; empty: unsaid."""

    field: str
    before: str | None
    after: str | None
    by: tuple[str, ...] = ()
    """Managers other than ours that own it as it stands."""
    is_added: bool = False
    """It stands beside ours, and applying ours leaves it."""

    def __str__(self) -> str:
        if self.before is None:
            return f"{self.field} {self.after} is new"
        if self.after is None:
            return f"{self.field} {self.before} goes"
        return f"{self.field} {self.before} -> {self.after}"


def template_changes(
    live: Mapping[str, Any], wanted: Mapping[str, Any], *, owned: Owned = ALL
) -> tuple[Change, ...]:
    """Return what applying a pod template changes; nothing: no pod rolls.

    ``owned``: what our field manager owns of the live one. By default all of it is ours.
    """
    found = _in_mapping("", live, wanted, FieldOwners(ours=owned))
    return tuple(each for each in found if not each.is_added)


def list_differences(
    live: Mapping[str, Any], wanted: Mapping[str, Any], hands: "FieldOwners"
) -> tuple[Change, ...]:
    """Return how the pods' spec that stands departs from ours, with what others added beside it.

    Labels and annotations are no matter of it: ``kubectl rollout restart`` writes one.
    """
    found = _in_mapping("", live, wanted, hands)
    return tuple(
        each for each in found if not (each.is_added and "metadata" in each.field.split(".")[:2])
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldOwners:
    """Who owns what below a path."""

    ours: Owned
    others: tuple[tuple[str, Owned], ...] = ()
    """(manager, what it owns there), for those that own something."""

    def below(self, step: str) -> "FieldOwners":
        """Return who owns what one step further down."""
        below = ((name, _below(owned, step)) for name, owned in self.others)
        others = tuple((name, owned) for name, owned in below if owned is not None)
        return FieldOwners(ours=_below(self.ours, step), others=others)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted({name for name, _ in self.others}))


def _changes(path: str, live: Any, wanted: Any, hands: FieldOwners) -> Iterator[Change]:
    name = path.rpartition(".")[2]
    match live, wanted:
        case Mapping(), Mapping():
            yield from _in_mapping(path, live, wanted, hands)
        case list(), list() if name in KEYS:
            yield from _in_list(path, live, wanted, hands)
        case list(), list() if name in ARGUMENTS:
            yield from _in_arguments(path, live, wanted, hands.names)
        case _ if not _is_same(path, live, wanted):
            hides = name == "value" and SECRET_NAME.search(path.lower())
            before, after = (REDACTED if hides else _format_value(each) for each in (live, wanted))
            yield Change(field=path, before=before, after=after, by=hands.names)


def _in_mapping(
    path: str, live: Mapping[str, Any], wanted: Mapping[str, Any], hands: FieldOwners
) -> Iterator[Change]:
    for key in sorted(wanted.keys() | live.keys()):
        below, there = f"{path}.{key}" if path else key, hands.below(f"f:{key}")
        if key in wanted and key in live:
            yield from _changes(below, live[key], wanted[key], there)
        elif key in wanted:
            yield Change(field=below, before=None, after=_format_value(wanted[key]))
        elif there.ours is not None and not (hands.ours == ALL and _is_default(key, live[key])):
            # Of one value, all of which is ours, defaults are no change.
            yield Change(field=below, before=_format_value(live[key]), after=None, by=there.names)
        elif not _is_default(key, live[key]):
            yield from _additions(below, live[key], there)


def _in_list(path: str, live: list[Any], wanted: list[Any], hands: FieldOwners) -> Iterator[Change]:
    name = path.rpartition(".")[2]
    before, after = _by_key(name, live), _by_key(name, wanted)
    for key in sorted(before.keys() | after.keys()):
        below = f"{path}[{'/'.join(map(str, json.loads(key).values()))}]"
        there = hands.below(f"k:{key}")
        if key in after and key in before:
            yield from _changes(below, before[key], after[key], there)
        elif key in after:
            yield Change(field=below, before=None, after=_format_value(after[key]))
        elif there.ours is not None:
            yield Change(field=below, before="there", after=None, by=there.names)
        else:
            yield from _additions(below, None, there)


def _additions(path: str, value: Any, hands: FieldOwners) -> Iterator[Change]:
    """Yield what others wrote beside ours. Of a value only what can hold no secret is told."""
    *above, last = (each.partition("[")[0] for each in path.split("."))
    if hands.names or NEVER_DEFAULT & ({last, *above} - ({"containers"} - {last})):
        before = _format_value(value) if isinstance(value, bool | int) else "there"
        yield Change(field=path, before=before, after=None, by=hands.names, is_added=True)


def _by_key(name: str, elements: Sequence[Any]) -> dict[str, Any]:
    """Return the elements by key, written as ``fieldsV1`` does."""
    found = {}
    for element in elements:
        key = {part: element.get(part, DEFAULT_KEYS.get(part)) for part in KEYS[name]}
        found[json.dumps(key, sort_keys=True, separators=(",", ":"))] = element
    return found


def _in_arguments(
    path: str, live: list[Any], wanted: list[Any], by: tuple[str, ...]
) -> Iterator[Change]:
    """Tell flag by flag what differs; where only the order does, that rolls pods as well."""
    before, after = (_by_flag([str(each) for each in words]) for words in (live, wanted))
    for flag in sorted(before.keys() | after.keys()):
        if before.get(flag) != after.get(flag):
            found, hides = (before.get(flag), after.get(flag)), SECRET_NAME.search(flag.lower())
            was, becomes = (REDACTED if each and hides else each for each in found)
            yield Change(field=f"{path} {flag}", before=was, after=becomes, by=by)
    if live != wanted and before == after:
        yield Change(field=path, before=_format_value(live), after=_format_value(wanted), by=by)


def _by_flag(words: Sequence[str]) -> dict[str, str]:
    first = {"MODEL": words[0]} if words and not words[0].startswith("-") else {}
    pairs = (
        (flag, "" if value.startswith("--") else value) for flag, value in argument_pairs(words)
    )
    return first | {flag: _format_value(value) for flag, value in pairs}


def _below(owned: Owned, step: str) -> Owned:
    return owned if not owned else owned.get(step)


def _is_default(name: str, value: Any) -> bool:
    return value in DEFAULTS.get(name, ())


def _is_same(path: str, live: Any, wanted: Any) -> bool:
    """Tell whether a value is as wanted, but for defaults in it and how amounts are written."""
    match live, wanted:
        case Mapping(), Mapping():
            return wanted.keys() <= live.keys() and all(
                _is_same(f"{path}.{key}", value, wanted[key])
                if key in wanted
                else _is_default(key, value)
                for key, value in live.items()
            )
        case list(), list():
            return len(live) == len(wanted) and all(
                _is_same(path, *both) for both in zip(live, wanted, strict=True)
            )
    if live == wanted:
        return True
    is_amount = isinstance(live, str) and isinstance(wanted, str)
    if not is_amount or not pod_template.AMOUNTS.intersection(path.split(".")):
        return False
    try:
        # The API server rounds amounts up to thousandths.
        return math.ceil(quantity(live) * KB) == math.ceil(quantity(wanted) * KB)
    except ValueError:
        return False


def _format_value(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(_hide(value), sort_keys=True)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def _hide(value: Any) -> Any:
    """Return a value without the text of variables whose names say that it is secret."""
    match value:
        case {"name": str(name), "value": _} if SECRET_NAME.search(name.lower()):
            return {**value, "value": REDACTED}
        case dict():
            return {key: _hide(each) for key, each in value.items()}
        case list():
            return [_hide(each) for each in value]
    return value


Fields = Mapping[str, Any]
"""``fieldsV1``: ``f:name`` for a field, ``k:{...}`` for an element by its keys; a leaf is empty."""
IDENTITY = frozenset({"apiVersion", "kind"})
NAMED_BY = frozenset({"name", "namespace"})
BOUNDS = ("minAvailable", "maxUnavailable")
"""Of a PodDisruptionBudget."""
ASTRAY = ("externalName", "externalIPs", "publishNotReadyAddresses")
"""Of a Service that is to lead to Ready replicas, from within the cluster."""


def differs(wanted: Manifest, live: Manifest, *, manager: str) -> bool:
    """Tell whether ``live`` is not what applying ``wanted`` as ``manager`` makes, and no more."""
    metadata = {key: value for key, value in wanted["metadata"].items() if key not in NAMED_BY}
    fields = {key: value for key, value in wanted.items() if key not in IDENTITY}
    owned = _owned_fields(live, manager)
    is_unchanged = owned is not None and _is_owned_unchanged(
        fields | {"metadata": metadata}, live, owned
    )
    return not is_unchanged or removal_patch(wanted, live) is not None


def removal_patch(wanted: Manifest, live: Manifest) -> dict[str, Any] | None:
    """Return a merge patch that removes fields of others which conflict with ours; None: none do.

    An apply leaves them: what others wrote is theirs. Of a Service, what leads requests elsewhere
    or lets others in, and ports of ours that have another number: two of one name are refused. Of
    a PodDisruptionBudget, the bound that is not wanted: only one may be set.
    """
    match wanted["kind"]:
        case "Service":
            return _alone(wanted["spec"], live["spec"])
        case "PodDisruptionBudget":
            bounds = {name: wanted["spec"].get(name) for name in BOUNDS}
            is_other = any(name in live["spec"] and bounds[name] is None for name in BOUNDS)
            return bounds if is_other else None
        case _:
            return None


def _alone(wanted: dict[str, Any], live: dict[str, Any]) -> dict[str, Any] | None:
    patch: dict[str, Any] = {name: None for name in ASTRAY if live.get(name)}
    places = set(map(_place, wanted["ports"]))
    if any(_place(each) not in places for each in live.get("ports") or ()):
        patch["ports"] = wanted["ports"]
    if "externalName" in patch:
        patch["type"] = wanted["type"]  # the one is asked for by the other
    return patch or None


def _place(port: Mapping[str, Any]) -> tuple[Any, Any]:
    return port["port"], port.get("protocol", "TCP")


def edits(
    wanted: Manifest, live: Manifest, *, manager: str
) -> Iterator[tuple[str, frozenset[str]]]:
    """Yield (field, who else wrote it) of the edits of others that an apply of ``wanted`` undoes.

    Nobody: it was taken away, or was never written.
    """
    conflicts = removal_patch(wanted, live) or {}
    labels, spec = wanted["metadata"]["labels"], wanted["spec"]
    paths: list[tuple[str, ...]] = [("metadata", "labels", name) for name in labels]
    paths += [("spec", name) for name in spec | conflicts]
    for path in paths:
        steps = tuple(f"f:{name}" for name in path)
        writers = {
            entry.get("manager") or "unknown"
            for entry in live["metadata"].get("managedFields") or ()
            if _at(entry.get("fieldsV1"), steps) is not None
        }
        is_wanted = path[-1] not in conflicts and _stands(_at(live, path), _at(wanted, path))
        if not is_wanted and writers != {manager}:
            yield ".".join(path), frozenset(writers - {manager})


def _stands(live: Any, wanted: Any) -> bool:
    """Tell whether a value is as wanted: a map without more, a list but for defaults in it."""
    if not (isinstance(live, dict) and isinstance(wanted, dict)):
        return _contains(live, wanted)
    return live.keys() == wanted.keys() and all(_stands(live[k], wanted[k]) for k in wanted)


def _at(node: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        node = node.get(name) if isinstance(node, Mapping) else None
    return node


def _owned_fields(live: Manifest, manager: str) -> Fields | None:
    """Return what ``manager`` applied last; None: it never did."""
    for entry in live["metadata"].get("managedFields") or ():
        is_applied = entry.get("operation") == "Apply" and not entry.get("subresource")
        if is_applied and entry.get("manager") == manager:
            fields: Fields = entry.get("fieldsV1") or {}
            return fields
    return None


def _is_owned_unchanged(wanted: Any, live: Any, owned: Fields) -> bool:
    """Tell whether a value stands in the live object, and is owned to the last part of it."""
    parts = {name: part for name, part in owned.items() if name != "."}
    if not parts:
        return _contains(live, wanted)
    if isinstance(wanted, dict) and isinstance(live, dict):
        return {f"f:{name}" for name in wanted} == set(parts) and all(
            name in live and _is_owned_unchanged(value, live[name], parts[f"f:{name}"])
            for name, value in wanted.items()
        )
    if isinstance(wanted, list) and isinstance(live, list):
        return len(parts) == len(wanted) and all(
            _is_element_held(each, live, parts) for each in wanted
        )
    return False


def _is_element_held(wanted: Any, live: list[Any], parts: Fields) -> bool:
    """Tell the same of one element of a list that is merged by keys."""
    by_keys = ((name[2:], part) for name, part in parts.items() if name.startswith("k:"))
    for name, part in by_keys if isinstance(wanted, dict) else ():
        keys = json.loads(name)
        # A key that the element leaves out has a default.
        if any(wanted[key] != value for key, value in keys.items() if key in wanted):
            continue
        found = [each for each in live if isinstance(each, dict) and keys.items() <= each.items()]
        asked = {f"f:{name}" for name in wanted}
        of_keys = {f"f:{name}" for name in keys}
        known = {name: each for name, each in part.items() if name in asked | {"."}}
        is_whole = set(part) <= asked | of_keys | {"."}
        return len(found) == 1 and is_whole and _is_owned_unchanged(wanted, found[0], known)
    return False


def _contains(live: Any, wanted: Any) -> bool:
    """Tell whether a value that is owned as a whole stands there, but for defaults added to it."""
    if isinstance(wanted, dict) and isinstance(live, dict):
        return all(name in live and _contains(live[name], each) for name, each in wanted.items())
    if isinstance(wanted, list) and isinstance(live, list):
        return len(live) == len(wanted) and all(map(_contains, live, wanted))
    return bool(live == wanted)
