"""How the volumes of caches may be mounted: read from PersistentVolumeClaims, and kept a while."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from tonnage.api.objects import ModelDeployment
from tonnage.cluster.errors import WorldError
from tonnage.cluster.kube import CLAIMS, KubeApi
from tonnage.fleet.logs import Line
from tonnage.fleet.missing import Ages

LOG = logging.getLogger("tonnage.claims")

Place = tuple[str, str]
"""(namespace, PersistentVolumeClaim)"""


@dataclass(slots=True, kw_only=True)
class Claims:
    """What was read, by place; what no object names any more is forgotten."""

    kube: KubeApi
    ages: Ages
    _read: dict[Place, tuple[float, tuple[str, ...] | None]] = field(default_factory=dict)
    """(time, access modes): these never change, but a claim may be made anew."""

    def forget(self, models: Iterable[ModelDeployment]) -> None:
        """Keep nothing but what these objects name."""
        named = {claim_of(model) for model in models}
        self._read = {place: each for place, each in self._read.items() if place in named}
        self.ages.count(place[0] for place, (_, modes) in self._read.items() if modes is None)

    def modes_of(self, model: ModelDeployment, now_s: float) -> tuple[str, ...] | None:
        """Return how the cache of a spec may be mounted; None: that is not known."""
        place = claim_of(model)
        if place is None:
            return None
        known = self._read.get(place)
        if known is None or self.ages.is_due(
            place[0], now_s - known[0], is_missing=known[1] is None
        ):
            known = self._read[place] = (now_s, self._look(place, known[1] if known else None))
        return known[1]

    def _look(self, place: Place, known: tuple[str, ...] | None) -> tuple[str, ...] | None:
        try:
            found = self.kube.get(CLAIMS.path(*place))
        except WorldError as error:
            LOG.warning(Line("not read", claim="/".join(place), message=str(error)))
            return known  # what was read last holds until it can be read again
        modes = ((found or {}).get("spec") or {}).get("accessModes")
        return tuple(modes) if modes else None


def claim_of(model: ModelDeployment) -> Place | None:
    """Return the claim that the pods of a spec mount, if they mount one."""
    claim = model.spec.pods.model_cache_claim if model.spec.pods else None
    return (model.namespace, claim) if claim else None
