"""Deployments of a name that we need which are not ours: no watch shows them, so they are read.

A few in a tick, in turn by namespace: anybody may put thousands in the way of objects of theirs.
"""

import logging
import math
from collections.abc import Set
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Final

from tonnage.cluster.errors import WorldError
from tonnage.cluster.kube import DEPLOYMENTS, KubeApi
from tonnage.control.state import DeploymentView
from tonnage.control.turns import by_turns
from tonnage.fleet.store import Key
from tonnage.fleet.views import deployment_view

LOG = logging.getLogger("tonnage.taken")
MOST_READS: Final = 10
"""In a tick, each of which may be tried several times."""
NEVER: Final = (-math.inf, None)


@dataclass(slots=True, kw_only=True)
class Taken:
    """What stood in the way when it was last read."""

    kube: KubeApi
    names: set[Key]
    """Of them: whoever finds one adds it."""
    _read: dict[Key, tuple[float, DeploymentView]] = field(default_factory=dict)

    def look(self, needed: Set[Key], now_s: float) -> None:
        """Read a few again; what is gone, or no object needs that no watch shows, is forgotten."""
        self.names &= needed
        self._read = {key: each for key, each in self._read.items() if key in self.names}
        for key in self._in_turn()[:MOST_READS]:
            try:
                found = self.kube.get(DEPLOYMENTS.path(*key))
            except WorldError as error:
                LOG.warning("object=%s/%s: %s", *key, error)
                continue
            if found is None:
                self.names.discard(key)
                self._read.pop(key, None)
            else:
                self._read[key] = (now_s, deployment_view(found))

    def _in_turn(self) -> list[Key]:
        """Return, of each namespace, what was read longest ago, then the next."""
        oldest = sorted(self.names, key=lambda key: (self._read.get(key, NEVER)[0], key))
        return by_turns(oldest, namespace=itemgetter(0))

    def of(self, key: Key) -> DeploymentView | None:
        return self._read.get(key, NEVER)[1]
