"""How the volumes of caches may be mounted: read from PersistentVolumeClaims, and kept a while."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from tonnage.api.objects import ModelDeployment
from tonnage.cluster.errors import WorldError
from tonnage.cluster.kube import CLAIMS, KubeApi

LOG = logging.getLogger("tonnage.claims")
AGE_S: Final = 300
"""A claim is read again after this time: its access modes never change, it may be made anew."""

Place = tuple[str, str]
"""(namespace, PersistentVolumeClaim)"""


@dataclass(slots=True, kw_only=True)
class Claims:
    """What was read, by place; what no object names any more is forgotten."""

    kube: KubeApi
    _read: dict[Place, tuple[float, tuple[str, ...] | None]] = field(default_factory=dict)
    """(time, access modes)."""

    def forget(self, models: Iterable[ModelDeployment]) -> None:
        """Keep nothing but what these objects name."""
        named = {claim_of(model) for model in models}
        self._read = {place: each for place, each in self._read.items() if place in named}

    def modes_of(self, model: ModelDeployment, now_s: float) -> tuple[str, ...] | None:
        """Return how the cache of a spec may be mounted; None: that is not known."""
        place = claim_of(model)
        if place is None:
            return None
        known = self._read.get(place)
        if known is None or not 0 <= now_s - known[0] < AGE_S:
            known = self._read[place] = (now_s, self._look(place))
        return known[1]

    def _look(self, place: Place) -> tuple[str, ...] | None:
        try:
            found = self.kube.get(CLAIMS.path(*place))
        except WorldError as error:
            LOG.warning("claim=%s/%s not read: %s", *place, error)
            return None
        modes = ((found or {}).get("spec") or {}).get("accessModes")
        return tuple(modes) if modes else None


def claim_of(model: ModelDeployment) -> Place | None:
    """Return the claim that the pods of a spec mount, if they mount one."""
    claim = model.spec.pods.model_cache_claim if model.spec.pods else None
    return (model.namespace, claim) if claim else None
