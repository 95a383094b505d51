"""The config.json files that specs refer to: read from ConfigMaps, kept as the shapes they say.

A ConfigMap holds a MiB and any number of objects may name it. So one is read once for all of them,
and nothing is kept of its text.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from tonnage.api.objects import ModelDeployment
from tonnage.catalog.gpu import CatalogError
from tonnage.catalog.models import read_model_config
from tonnage.catalog.shape import ModelShape
from tonnage.cluster.errors import WorldError
from tonnage.cluster.kube import CONFIG_MAPS, KubeApi
from tonnage.control.input.state import BadConfig, ModelView
from tonnage.fleet.missing import Ages
from tonnage.units import KIB

MOST_BYTES: Final = 64 * KIB
"""Of a config.json: those of published models have 1 to 40 KiB."""

Place = tuple[str, str, str, str]
"""(namespace, ConfigMap, key, name of the model)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """What stood in a ConfigMap."""

    at_s: float
    shape: ModelShape | BadConfig | None = None
    problem: str | None = None

    @property
    def is_missing(self) -> bool:
        """Tell whether somebody has yet to bring it, or to mend it."""
        return not isinstance(self.shape, ModelShape)


@dataclass(slots=True, kw_only=True)
class ModelConfigs:
    """What was read, by place; what no object names any more is forgotten."""

    kube: KubeApi
    ages: Ages
    _read: dict[Place, Read] = field(default_factory=dict)
    _asked_for: dict[str, int] = field(default_factory=dict)
    """By UID, the generation of the spec that it was last read for."""

    def forget(self, uids: Iterable[str], places: Iterable[Place]) -> None:
        """Keep nothing but what these objects name."""
        known, named = set(uids), set(places)
        self._asked_for = {uid: each for uid, each in self._asked_for.items() if uid in known}
        self._read = {place: each for place, each in self._read.items() if place in named}
        self.ages.count(place[0] for place, each in self._read.items() if each.is_missing)

    def of(
        self, view: ModelView, model: ModelDeployment, now_s: float
    ) -> tuple[ModelShape | BadConfig | None, str | None]:
        """Return (shape, problem) for a spec that refers to a ConfigMap; else nothing of both."""
        place = place_of(model)
        if place is None:
            return None, None
        known = self._read.get(place)
        is_news = self._asked_for.get(view.uid) != view.generation
        if known is None or (
            known.at_s != now_s
            if is_news
            else self.ages.is_due(place[0], now_s - known.at_s, is_missing=known.is_missing)
        ):
            known = self._read[place] = self._look(place, known, now_s)
        self._asked_for[view.uid] = view.generation
        return known.shape, known.problem

    def _look(self, place: Place, known: Read | None, now_s: float) -> Read:
        namespace, name, key, model_id = place
        try:
            found = self.kube.get(CONFIG_MAPS.path(namespace, name))
        except WorldError as error:
            if known is not None and not known.is_missing:
                return known  # what was read last holds until it can be read again
            return Read(at_s=now_s, problem=f"ConfigMap {name}: {error}")
        text = ((found or {}).get("data") or {}).get(key)
        if text is None:
            problem = f"ConfigMap {name} has no key {key} in {namespace}"
            return Read(at_s=now_s, problem=problem)
        num_bytes = len(text.encode("utf-8", "surrogatepass"))
        if num_bytes > MOST_BYTES:
            problem = (
                f"{key} of ConfigMap {name} in {namespace} has {num_bytes} bytes; at most "
                f"{MOST_BYTES} are read"
            )
            return Read(at_s=now_s, problem=problem)
        return Read(at_s=now_s, shape=shape_of(text, model_id))


def place_of(model: ModelDeployment) -> Place | None:
    """Return where the config.json of a spec stands, if it refers to one."""
    source = model.spec.model.config
    if source is None:
        return None
    reference = source.config_map_key_ref
    return model.namespace, reference.name, reference.key, model.spec.model.id


def shape_of(text: str, model_id: str) -> ModelShape | BadConfig:
    """Return the shape that a config.json says, or why it says none."""
    try:
        return read_model_config(text, name=model_id)
    except CatalogError as error:
        return BadConfig(kind=type(error), message=str(error))
