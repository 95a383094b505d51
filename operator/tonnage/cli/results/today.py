"""What runs today beside what the demand takes, with the same flags and with others."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from tonnage.cli.results.demand_hours import month_figures
from tonnage.cli.results.planning import Planned, Refused, fewest_replicas
from tonnage.sizing.errors import SizingError
from tonnage.sizing.plan import OnSearch, Sizing
from tonnage.sizing.search import size
from tonnage.units import HOURS_PER_MONTH

if TYPE_CHECKING:  # slow to import
    from tonnage.control.input.state import DeploymentView

FLEETS: Final = "fleets"


def with_today(
    answer: Planned | Refused, view: "DeploymentView", on_search: OnSearch
) -> Planned | Refused:
    """Return a plan with the flags that run, beside what runs, and what other flags would take."""
    if isinstance(answer, Refused):
        return answer
    sizing = answer.sizing
    fleets = {
        "running": _fleet(sizing, view.replicas, view.gpus_per_replica),
        "sameFlags": _fleet(sizing, answer.replicas),
    }
    try:
        free = size(replace(sizing.request, flags=None), on_search=on_search)
        fewest = fewest_replicas(answer.deployment)
        fleets["otherFlags"] = _fleet(free, max(fewest, free.replicas))
    except SizingError:
        pass  # those that run are all that will do
    return replace(answer, beside={**answer.beside, FLEETS: fleets})


def _fleet(sizing: Sizing, replicas: int, num_gpus: int = 0) -> dict[str, Any]:
    """Return the figures of replicas; ``num_gpus``: of each, where its split does not say it."""
    each = num_gpus or sizing.parallelism.num_gpus
    return {
        "parallelism": str(sizing.parallelism),
        "replicas": replicas,
        "gpus": replicas * each,
        "maxNumSeqs": sizing.flags.max_num_seqs,
        "sustainedRequestsPerSecond": replicas and sizing.sustained_requests_per_s(replicas),
        "perMonth": month_figures(sizing.request.gpu, each, {replicas: HOURS_PER_MONTH}),
    }
