"""Manifests of ModelDeployments, each version parsed once, as long as it stands in the cluster."""

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final
from weakref import WeakValueDictionary

from tonnage.api.objects import InvalidSpecError, ModelDeployment, parse_model_deployment
from tonnage.api.spec import Spec
from tonnage.control.input.state import ModelView
from tonnage.redaction import redacted
from tonnage.units import MIB

MOST_CHARACTERS: Final = 8 * MIB
"""Of manifests that are kept parsed, some ten times as much memory: 10,000 of the usual size."""
TOO_LARGE: Final = (
    "metadata: the ModelDeployment has more than 256 KiB as JSON and is not read: take finalizers, "
    "ownerReferences, annotations, labels, managedFields or parts of the spec out of it"
)
Parsed = ModelDeployment | InvalidSpecError


@dataclass(slots=True, kw_only=True)
class ManifestCache:
    """What the manifests of the last tick said.

    A version that was replaced is forgotten at once: who edits a spec every second fills nothing.
    """

    most_characters: int = MOST_CHARACTERS
    _specs: WeakValueDictionary[str, Spec] = field(default_factory=WeakValueDictionary)
    """By their JSON: objects that ask for the same have one, and what is kept with it."""
    _known: dict[str, Parsed] = field(default_factory=dict)

    def parse(self, views: Iterable[ModelView]) -> Mapping[str, Parsed]:
        """Return what each object's manifest says, by UID."""
        found, kept = dict[str, Parsed](), dict[str, Parsed]()
        room = self.most_characters
        for view in views:
            if view.is_oversized:
                found[view.uid] = InvalidSpecError(TOO_LARGE)
                continue
            known = self._known.get(view.manifest)
            found[view.uid] = each = self._parse(view.manifest) if known is None else known
            room -= len(view.manifest)
            if room >= 0:
                kept[view.manifest] = each
        self._known = kept
        return found

    def _parse(self, manifest: str) -> Parsed:
        model = parse_manifest(manifest)
        if isinstance(model, InvalidSpecError):
            return model
        spec = self._specs.setdefault(model.spec.model_dump_json(), model.spec)
        return replace(model, spec=spec)


def parse_manifest(manifest: str) -> Parsed:
    """Return what a manifest says, or why it is none: without frames, and what may be a secret.

    Where the pod template is the only mistake, the rest is read: replicas that run are scaled on.
    """
    read = json.loads(manifest)
    try:
        return parse_model_deployment(read, tolerate_unknown=True)
    except InvalidSpecError as error:
        why = redacted(str(error))
    match read:
        case {"spec": {"pods": {"template": _, **pods}, **spec}}:
            rest = read | {"spec": spec | {"pods": pods}}
            with suppress(InvalidSpecError):
                return replace(parse_model_deployment(rest, tolerate_unknown=True), problem=why)
    return InvalidSpecError(why)
