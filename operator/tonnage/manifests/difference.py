"""Whether a live object is what is wanted, by the fields in it that are ours and by their values.

The API server notes who applied which field. So what somebody added beside ours is no difference,
what somebody took over is one, and so is what we applied once and do not want any more: another
apply takes the second back and gives the third up. Defaults that the server adds are nobody's.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tonnage.manifests.names import Manifest

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


class Edit(NamedTuple):
    """A field that is not as we want it, and not as we left it."""

    field: str
    managers: frozenset[str]
    """Who else wrote it. None: it was taken away, or was never written."""


def edits(wanted: Manifest, live: Manifest, *, manager: str) -> Iterator[Edit]:
    """Yield the edits of others that an apply of the wanted manifest undoes."""
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
            yield Edit(".".join(path), frozenset(writers - {manager}))


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
