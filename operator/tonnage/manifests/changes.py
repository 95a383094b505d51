"""What applying a pod template changes of the one that stands: every such field rolls pods.

Compared is what server-side apply would do. A field that we set and that stands there with another
value is changed; one that we set before and set no more is taken away; what the API server adds by
default, and what others set, stays.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tonnage.manifests.arguments import REDACTED, SECRET_FLAG, argument_pairs
from tonnage.units import quantity

Owned = Mapping[str, Any] | None
"""Fields of ours below a path, as ``fieldsV1`` has them. Empty: all of them. None: none."""

ALL: Final[Mapping[str, Any]] = {}
KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "containers": ("name",),
    "env": ("name",),
    "hostAliases": ("ip",),
    "imagePullSecrets": ("name",),
    "initContainers": ("name",),
    "ports": ("containerPort", "protocol"),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
    "volumeMounts": ("mountPath",),
    "volumes": ("name",),
}
"""Lists that the API server merges by key; any other is one value."""
DEFAULT_KEYS: Final = {"protocol": "TCP"}
ARGUMENTS: Final = frozenset({"args", "command"})
QUANTITIES: Final = frozenset({"limits", "requests", "sizeLimit"})
"""Fields whose values, or those below them, are written in another form than they were given."""
LONGEST: Final = 120
"""Characters of a value that are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One field of a pod template, or of a spec, before and after. None: absent."""

    field: str
    before: str | None
    after: str | None

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
    return tuple(_in_mapping("", live, wanted, owned))


def _changes(path: str, live: Any, wanted: Any, owned: Owned) -> Iterator[Change]:
    name = path.rpartition(".")[2]
    match live, wanted:
        case Mapping(), Mapping():
            yield from _in_mapping(path, live, wanted, owned)
        case list(), list() if name in KEYS:
            yield from _in_list(path, live, wanted, owned)
        case list(), list() if name in ARGUMENTS:
            yield from _in_arguments(path, live, wanted)
        case _ if not _is_same(path, live, wanted):
            yield Change(field=path, before=_written(live), after=_written(wanted))


def _in_mapping(
    path: str, live: Mapping[str, Any], wanted: Mapping[str, Any], owned: Owned
) -> Iterator[Change]:
    for key in sorted(wanted.keys() | live.keys()):
        below = f"{path}.{key}" if path else key
        if key not in wanted:
            if _below(owned, f"f:{key}") is not None:
                yield Change(field=below, before=_written(live[key]), after=None)
        elif key not in live:
            yield Change(field=below, before=None, after=_written(wanted[key]))
        else:
            yield from _changes(below, live[key], wanted[key], _below(owned, f"f:{key}"))


def _in_list(path: str, live: list[Any], wanted: list[Any], owned: Owned) -> Iterator[Change]:
    name = path.rpartition(".")[2]
    before, after = _by_key(name, live), _by_key(name, wanted)
    for key in sorted(before.keys() | after.keys()):
        below = f"{path}[{'/'.join(map(str, json.loads(key).values()))}]"
        mine = _below(owned, f"k:{key}")
        if key not in after:
            if mine is not None:
                yield Change(field=below, before="there", after=None)
        elif key not in before:
            yield Change(field=below, before=None, after=_written(after[key]))
        else:
            yield from _changes(below, before[key], after[key], mine)


def _by_key(name: str, elements: Sequence[Any]) -> dict[str, Any]:
    """Return the elements by key, written as ``fieldsV1`` does."""
    found = {}
    for element in elements:
        key = {part: element.get(part, DEFAULT_KEYS.get(part)) for part in KEYS[name]}
        found[json.dumps(key, sort_keys=True, separators=(",", ":"))] = element
    return found


def _in_arguments(path: str, live: list[Any], wanted: list[Any]) -> Iterator[Change]:
    """Tell flag by flag what differs; where only the order does, that rolls pods as well."""
    before, after = (_by_flag([str(each) for each in words]) for words in (live, wanted))
    for flag in sorted(before.keys() | after.keys()):
        if before.get(flag) != after.get(flag):
            was, becomes = (_shown(flag, each.get(flag)) for each in (before, after))
            yield Change(field=f"{path} {flag}", before=was, after=becomes)
    if live != wanted and before == after:
        yield Change(field=path, before=_written(live), after=_written(wanted))


def _shown(flag: str, value: str | None) -> str | None:
    return REDACTED if value and SECRET_FLAG.match(flag) else value


def _by_flag(words: Sequence[str]) -> dict[str, str]:
    first = {"MODEL": words[0]} if words and not words[0].startswith("-") else {}
    pairs = (
        (flag, "" if value.startswith("--") else value) for flag, value in argument_pairs(words)
    )
    return first | {flag: _written(value) for flag, value in pairs}


def _below(owned: Owned, step: str) -> Owned:
    return owned if not owned else owned.get(step)


def _is_same(path: str, live: Any, wanted: Any) -> bool:
    if live == wanted:
        return True
    is_amount = isinstance(live, str) and isinstance(wanted, str)
    if not is_amount or not QUANTITIES.intersection(path.split(".")):
        return False
    try:
        return quantity(live) == quantity(wanted)
    except ValueError:
        return False


def _written(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
