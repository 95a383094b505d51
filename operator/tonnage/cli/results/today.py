"""What runs today beside what the demand takes, with the same flags and with others."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from tonnage.cli.results.demand_hours import Month, month_of
from tonnage.cli.results.planning import Planned, Refused, fewest_replicas
from tonnage.sizing.errors import SizingError
from tonnage.sizing.plan import OnSearch, Sizing
from tonnage.sizing.search import size
from tonnage.units import HOURS_PER_MONTH

if TYPE_CHECKING:  # slow to import
    from tonnage.control.input.state import DeploymentView

TODAY, SAME, OTHER = "running", "sameFlags", "otherFlags"
MEANINGS: Final = {TODAY: "today", SAME: "the same flags", OTHER: "other flags"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Replicas with some flags."""

    sizing: Sizing
    replicas: int
    gpus_per_replica: int

    @property
    def month(self) -> Month:
        gpu = self.sizing.request.gpu
        return month_of(gpu, self.gpus_per_replica, {self.replicas: HOURS_PER_MONTH})

    @property
    def sustained_requests_per_s(self) -> float:
        return self.sizing.sustained_requests_per_s(self.replicas) if self.replicas else 0.0

    def to_dict(self) -> dict[str, Any]:
        return {
            "replicas": self.replicas,
            "gpusPerReplica": self.gpus_per_replica,
            "maxNumSeqs": self.sizing.flags.max_num_seqs,
            "sustainedRequestsPerSecond": self.sustained_requests_per_s,
            "perMonth": self.month.to_dict(),
        }


def with_today(
    planned: Planned | Refused, view: "DeploymentView", on_search: OnSearch
) -> Planned | Refused:
    """Return a plan with the flags that run, beside what runs, and what other flags would take."""
    if isinstance(planned, Refused):
        return planned
    sizing, fewest = planned.sizing, fewest_replicas(planned.deployment)
    num_gpus = sizing.parallelism.num_gpus
    own = view.gpus_per_replica or num_gpus
    fleets = {
        TODAY: Fleet(sizing=sizing, replicas=view.replicas, gpus_per_replica=own),
        SAME: Fleet(sizing=sizing, replicas=planned.replicas, gpus_per_replica=num_gpus),
    }
    try:
        free = size(replace(sizing.request, flags=None), on_search=on_search)
    except SizingError:
        return replace(planned, fleets=fleets)
    replicas, num_gpus = max(fewest, free.replicas), free.parallelism.num_gpus
    other = Fleet(sizing=free, replicas=replicas, gpus_per_replica=num_gpus)
    return replace(planned, fleets=fleets | {OTHER: other})
