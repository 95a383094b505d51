"""Workloads of a name that an object needs and that no watch shows, since they lack our label.

Somebody else's, or one of ours that lost it. A few are read in a tick, in turn by namespace:
anybody may put thousands in the way of objects of theirs.
"""

import json
import logging
import math
from collections.abc import Iterable, Set
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Final

from tonnage.cluster.calls import WorldError
from tonnage.cluster.kube import KubeApi
from tonnage.cluster.pages import MOST_OBJECT_BYTES
from tonnage.control.input.state import DeploymentView
from tonnage.control.size.fair_order import round_robin
from tonnage.fleet.children import RESOURCES
from tonnage.fleet.logs import Line
from tonnage.fleet.store import Key
from tonnage.fleet.views import workload_view
from tonnage.manifests.names import DEPLOYMENT, GROUPS, Workload

LOG = logging.getLogger("tonnage.taken")
MOST_READS: Final = 10
"""In a tick, each of which may be tried several times."""
ABSENT_S: Final = 300.0
"""After which a name is looked up again under which nothing stood."""
NEVER: Final = (-math.inf, None)


@dataclass(slots=True, kw_only=True)
class UnlabelledWorkloads:
    """What stood under the names when it was last read."""

    kube: KubeApi
    names: set[Key]
    """That something is known to stand under: whoever meets one adds it."""
    oversized: dict[Key, int] = field(default_factory=dict)
    """Of these the bytes of what is too large for more than its name to be kept."""
    _read: dict[Key, tuple[float, DeploymentView | None]] = field(default_factory=dict)

    def look(self, needed: Set[Key], now_s: float, *, has_groups: bool = False) -> None:
        """Read a few again; what no object needs that no watch shows is forgotten."""
        self.names &= needed
        self.oversized = {key: each for key, each in self.oversized.items() if key in needed}
        self._read = {key: each for key, each in self._read.items() if key in needed}
        for key in self._in_turn(needed, now_s)[:MOST_READS]:
            found = self.of(key)
            try:
                found = self._looked_up(key, (DEPLOYMENT, GROUPS) if has_groups else (DEPLOYMENT,))
            except WorldError as error:
                LOG.warning(Line("not read", object="/".join(key), message=str(error)))
                break  # the others fare no better, and each is tried for a while
            except Exception:  # anybody may make one: it must not stop the others
                LOG.exception(Line("its workload cannot be read", object="/".join(key)))
            finally:
                self._read[key] = (now_s, found)
            if found is None and key not in self.oversized:
                self.names.discard(key)
            else:
                self.names.add(key)

    def _looked_up(self, key: Key, workloads: Iterable[Workload]) -> DeploymentView | None:
        self.oversized.pop(key, None)
        found = ((each, self.kube.get(RESOURCES[each.kind].path(*key))) for each in workloads)
        workload, body = next((each for each in found if each[1] is not None), (DEPLOYMENT, None))
        if body is None:
            return None
        num_bytes = len(json.dumps(body, ensure_ascii=False).encode(errors="replace"))
        if num_bytes > MOST_OBJECT_BYTES:
            self.oversized[key] = num_bytes
            return None
        return workload_view(body, workload)

    def _in_turn(self, needed: Set[Key], now_s: float) -> list[Key]:
        """Return, of each namespace, what was read longest ago, then the next."""
        read_s = {key: self._read.get(key, NEVER)[0] for key in needed}
        due = (k for k in needed if k in self.names or not 0 <= now_s - read_s[k] < ABSENT_S)
        oldest = sorted(due, key=lambda key: (read_s[key], key))
        return round_robin(oldest, namespace=itemgetter(0))

    def of(self, key: Key) -> DeploymentView | None:
        return self._read.get(key, NEVER)[1]
