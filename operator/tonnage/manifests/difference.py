"""Whether a live object is what is wanted, by the fields in it that are ours and by their values.

The API server notes who applied which field. So what somebody added beside ours is no difference,
what somebody took over is one, and so is what we applied once and do not want any more: another
apply takes the second back and gives the third up. Defaults that the server adds are nobody's.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tonnage.manifests.names import Manifest

Fields = Mapping[str, Any]
"""``fieldsV1``: ``f:name`` for a field, ``k:{...}`` for an element by its keys; a leaf is empty."""
IDENTITY = frozenset({"apiVersion", "kind"})
NAMED_BY = frozenset({"name", "namespace"})
BOUNDS = ("minAvailable", "maxUnavailable")
"""Of a PodDisruptionBudget."""


def differs(wanted: Manifest, live: Manifest, *, manager: str) -> bool:
    """Tell whether applying ``wanted`` as ``manager`` would change ``live``."""
    metadata = {key: value for key, value in wanted["metadata"].items() if key not in NAMED_BY}
    fields = {key: value for key, value in wanted.items() if key not in IDENTITY}
    owned = _owned(live, manager)
    return owned is None or not _is_held(fields | {"metadata": metadata}, live, owned)


def without_rivals(wanted: Manifest, live: Manifest) -> dict[str, Any] | None:
    """Return the part of a spec, as a merge patch, beside which what is wanted is valid.

    Of a Service, ports of ours that somebody gave another number: two of one name are refused. Of
    a PodDisruptionBudget, the bound that is not wanted: only one may be set. None: nothing of that
    kind stands there.
    """
    match wanted["kind"]:
        case "Service":
            return _ports_without_rivals(wanted["spec"]["ports"], live["spec"].get("ports") or [])
        case "PodDisruptionBudget":
            bounds = {name: wanted["spec"].get(name) for name in BOUNDS}
            is_other = any(name in live["spec"] and bounds[name] is None for name in BOUNDS)
            return bounds if is_other else None
        case _:
            return None


def _ports_without_rivals(
    wanted: list[dict[str, Any]], live: list[dict[str, Any]]
) -> dict[str, Any] | None:
    names, numbers = ({each[key] for each in wanted} for key in ("name", "port"))
    kept = [each for each in live if each.get("name") not in names and each["port"] not in numbers]
    is_edited = any(each.get("name") in names and each["port"] not in numbers for each in live)
    return {"ports": [*wanted, *kept]} if is_edited else None


def _owned(live: Manifest, manager: str) -> Fields | None:
    """Return what ``manager`` applied last; None: it never did."""
    for entry in live["metadata"].get("managedFields") or ():
        is_applied = entry.get("operation") == "Apply" and not entry.get("subresource")
        if is_applied and entry.get("manager") == manager:
            fields: Fields = entry.get("fieldsV1") or {}
            return fields
    return None


def _is_held(wanted: Any, live: Any, owned: Fields) -> bool:
    """Tell whether a value stands in the live object, and is owned to the last part of it."""
    parts = {name: part for name, part in owned.items() if name != "."}
    if not parts:
        return _contains(live, wanted)
    if isinstance(wanted, dict) and isinstance(live, dict):
        return {f"f:{name}" for name in wanted} == set(parts) and all(
            name in live and _is_held(value, live[name], parts[f"f:{name}"])
            for name, value in wanted.items()
        )
    if isinstance(wanted, list) and isinstance(live, list):
        return len(parts) == len(wanted) and all(
            _is_element_held(each, live, parts) for each in wanted
        )
    return False


def _is_element_held(wanted: Any, live: list[Any], parts: Fields) -> bool:
    """Tell the same of one element of a list that is merged by keys."""
    for keys, part in _by_keys(parts):
        if not isinstance(wanted, dict) or not _agree(wanted, keys):
            continue
        found = [each for each in live if isinstance(each, dict) and keys.items() <= each.items()]
        asked = {f"f:{name}" for name in wanted}
        of_keys = {f"f:{name}" for name in keys}
        known = {name: each for name, each in part.items() if name in asked | {"."}}
        is_whole = set(part) <= asked | of_keys | {"."}
        return len(found) == 1 and is_whole and _is_held(wanted, found[0], known)
    return False


def _by_keys(parts: Fields) -> Iterator[tuple[dict[str, Any], Fields]]:
    for name, part in parts.items():
        if name.startswith("k:"):
            yield json.loads(name.removeprefix("k:")), part


def _agree(wanted: Mapping[str, Any], keys: Mapping[str, Any]) -> bool:
    """Tell whether an element is the one of these keys; a key that it leaves out has a default."""
    return all(wanted[key] == value for key, value in keys.items() if key in wanted)


def _contains(live: Any, wanted: Any) -> bool:
    """Tell whether a value that is owned as a whole stands there, but for defaults added to it."""
    if isinstance(wanted, dict) and isinstance(live, dict):
        return all(name in live and _contains(live[name], each) for name, each in wanted.items())
    if isinstance(wanted, list) and isinstance(live, list):
        return len(live) == len(wanted) and all(map(_contains, live, wanted))
    return bool(live == wanted)
