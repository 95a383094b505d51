"""Choosing a GPU class: one request put to several, ranked by what its answer costs.

Every class is given the split that a plan for it takes: the one that costs least. maxReplicas is
left out, since what one class needs bounds no other; choices that exceed it say so.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from tonnage.catalog.gpu import CatalogError, Gpu
from tonnage.sizing.bill import Bill, bill
from tonnage.sizing.edge import check_worth
from tonnage.sizing.errors import SeveralNodesError, SizingError
from tonnage.sizing.plan import OnSearch, Sizing, keep_searching, requests_per_s_asked
from tonnage.sizing.request import SizingRequest, on_gpu
from tonnage.sizing.search import gpus_taken, size


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One GPU class that can serve the request: with which split and how many replicas."""

    sizing: Sizing
    fewest: int = 1
    """Replicas that run whatever the demand, beside minReplicas: so that nodes can be drained."""
    most: int | None = None
    """What maxReplicas allows."""

    @property
    def replicas(self) -> int:
        """For the demand, at least the fewest allowed."""
        return max(self.sizing.replicas, self.sizing.request.min_replicas, self.fewest)

    @property
    def gpu(self) -> Gpu:
        return self.sizing.request.gpu

    @property
    def num_gpus(self) -> int:
        return self.replicas * self.sizing.flags.parallelism.num_gpus

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """Output tokens of these replicas with every SLO target met."""
        sustained = self.sizing.sustained_requests_per_s(self.replicas)
        return sustained * self.sizing.request.workload.output_tokens / self.num_gpus

    @property
    def bill(self) -> Bill | None:
        return bill(self.sizing, replicas=self.replicas)

    @property
    def is_within_bounds(self) -> bool:
        """Does maxReplicas allow what the demand needs?"""
        return self.most is None or self.replicas <= self.most


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedClass:
    """One GPU class that cannot serve the request, with the reason as a condition has it."""

    gpu: Gpu
    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Every class that was asked: those that serve, cheapest first, and those that do not."""

    choices: tuple[Choice, ...]
    refused: tuple[RefusedClass, ...]
    over_nodes: tuple[Gpu, ...] = ()
    """Classes of which a replica takes several nodes; what it serves was not searched for."""


def select(
    request: SizingRequest,
    gpus: Iterable[Gpu],
    *,
    fewest: int = 1,
    is_within_node: bool = False,
    on_search: OnSearch = keep_searching,
) -> Selection:
    """Put the request to every class; split and flags are left open.

    So is ``max_replicas``: what needs more is marked (``Choice.is_within_bounds``).
    ``fewest``: replicas that run whatever the demand.
    ``is_within_node``: replicas over several nodes are searched only where no class has another.
    ``on_search``: called before each run of the engine model.

    The order is total: by USD per hour for the demand (``rank``), the refused last, by name.
    """
    open_request, choices = replace(request, max_replicas=None), list[Choice]()
    refused: list[RefusedClass] = []
    over_nodes: list[Gpu] = []
    for gpu in gpus:
        try:
            asked = on_gpu(open_request, gpu)
            sizing = size(asked, is_within_node=is_within_node, on_search=on_search)
            check_worth(sizing)
            choices.append(Choice(sizing=sizing, fewest=fewest, most=request.max_replicas))
        except SeveralNodesError:
            over_nodes.append(gpu)
        except (SizingError, CatalogError) as error:
            reason = type(error).__name__.removesuffix("Error")
            refused.append(RefusedClass(gpu=gpu, reason=reason, message=str(error)))
    if over_nodes and not choices:
        others = select(request, over_nodes, fewest=fewest, on_search=on_search)
        choices, over_nodes = list(others.choices), []
        refused += others.refused
    return Selection(
        choices=tuple(sorted(choices, key=rank)),
        refused=tuple(sorted(refused, key=lambda each: each.gpu.name)),
        over_nodes=tuple(sorted(over_nodes, key=lambda each: each.name)),
    )


def rank(choice: Choice) -> tuple[bool, float, float, float, int, str]:
    """Return what a choice is ranked by, the lowest first.

    1. classes with a price before those without one
    2. USD per hour for the demand; where none is known, USD per million output tokens
    3. the number of GPUs (where no demand is known: per token)
    4. USD per million output tokens at full use
    5. the number of GPUs of one replica
    6. the name, so that no order is left to chance
    """
    found = choice.bill
    has_demand = requests_per_s_asked(choice.sizing) is not None
    per_million = found.usd_per_million_tokens if found else math.inf
    return (
        found is None,
        found.usd_per_hour if found and has_demand else per_million,
        gpus_taken(choice.sizing),
        per_million,
        choice.sizing.flags.parallelism.num_gpus,
        choice.gpu.name,
    )
