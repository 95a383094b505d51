"""Whether a target is asked for at any price: a little more time costs a small part of it.

Replicas that are hardly used keep such a target, and how many there are hangs on the last digit of
a constant: that is no plan.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Final

from tonnage.sizing.bill import bill
from tonnage.sizing.errors import SizingError, SLOInfeasibleError
from tonnage.sizing.plan import (
    OnSearch,
    Sizing,
    as_answer,
    keep_searching,
    latencies_alone,
    requests_per_s_asked,
)
from tonnage.sizing.request import SizingRequest
from tonnage.sizing.search import cheaper_splits, cost_of, search
from tonnage.sizing.serving.load_line import top_requests_per_s
from tonnage.sizing.workload import Slo, Target
from tonnage.units import count_of

LOOSER: Final = 1.25
"""Times a target: how far one request alone has to be from it, and what is tried next."""
WORTH: Final = 0.25
"""Share of the cost that this may leave at most."""
HARDLY_USED: Final = 0.125
"""Share of what a replica serves at most, however late, that keeps the targets."""
FEW_REPLICAS: Final = 4
"""As many, or a quarter of more, are nobody's mistake."""
STEPS: Final = 12


def nearest_sane(sizing: Sizing, *, on_search: OnSearch = keep_searching) -> Sizing | None:
    """Return the plan for the nearest targets that are worth their price; None: they are."""
    found = sizing
    for _ in range(STEPS):
        request = looser(found)
        if request is None:
            break
        has_no_price, amount = cost_of(found)
        try:
            other = cheaper_splits(request, (has_no_price, WORTH * amount), on_search=on_search)
            if other is None and is_hardly_used(found):
                other = search(request, has_several_nodes=True, on_search=on_search)
        except SizingError:
            break
        if other is None:
            break
        found = other
    if found is sizing:
        return None
    return as_answer(_without_gifts(found, sizing.request.slo, on_search), on_search)


def nearest_served(
    request: SizingRequest, refusal: SLOInfeasibleError, *, on_search: OnSearch = keep_searching
) -> Sizing | None:
    """Return the plan for the nearest targets that are served, where these are refused."""
    for _ in range(STEPS):
        slo, ratio = request.slo, LOOSER * refusal.excess
        name = "ttft" if refusal.is_ttft else "tpot"
        later = [replace(each, limit_s=ratio * each.limit_s) for each in getattr(slo, name)]
        changed = Slo(**{"ttft": slo.ttft, "tpot": slo.tpot, name: tuple(later)})
        request = replace(request, slo=changed)
        try:
            found = search(request, has_several_nodes=True, on_search=on_search)
        except SLOInfeasibleError as still:
            refusal = still
        except SizingError:
            break
        else:
            return nearest_sane(found, on_search=on_search) or as_answer(found, on_search)
    return None


def slo_changes(before: Slo, after: Slo) -> Iterator[tuple[str, str, str]]:
    """Yield (field, targets before, targets after) of what differs, as a person writes them."""
    for field, old, new in (
        ("timeToFirstToken", before.ttft, after.ttft),
        ("timePerOutputToken", before.tpot, after.tpot),
    ):
        if old != new:
            yield field, ", ".join(map(str, old)), ", ".join(map(str, new))


def why_no_plan(sizing: Sizing, sane: Sizing) -> str:
    """Say what targets cost that are not worth it, and what the nearest do that are."""
    changes = list(slo_changes(sizing.request.slo, sane.request.slo))
    asked = " and ".join(f"{field} {old}" for field, old, _ in changes)
    instead = " and ".join(new for *_, new in changes)
    share = f"{_used_share(sizing):.0%} used"
    return f"{asked} takes {_fleet(sizing)}, each {share}; {instead} takes {_fleet(sane)}"


def _fleet(sizing: Sizing) -> str:
    found = bill(sizing, replicas=sizing.replicas)
    price = f", {found.usd_per_hour:,.2f} {found.currency} per hour" if found else ""
    gpus = count_of(sizing.parallelism.num_gpus, "GPU")
    return f"{count_of(sizing.replicas, 'replica')} of {gpus}{price}"


def _without_gifts(found: Sizing, asked: Slo, on_search: OnSearch) -> Sizing:
    """Return the plan with each kind of target as asked whose change saves nothing."""
    for name in ("ttft", "tpot"):
        slo = replace(found.request.slo, **{name: getattr(asked, name)})
        if slo == found.request.slo:
            continue
        has_no_price, amount = cost_of(found)
        with suppress(SizingError):
            limit, request = (has_no_price, LOOSER * amount), replace(found.request, slo=slo)
            found = cheaper_splits(request, limit, on_search=on_search) or found
    return found


def looser(sizing: Sizing) -> SizingRequest | None:
    """Return the request with more time where one request alone takes most of it; None: nowhere.

    Of replicas that are hardly used everywhere.
    """
    request = sizing.request
    is_asked = requests_per_s_asked(sizing) is not None and not request.slo.is_offline
    if not is_asked or request.flags is not None or sizing.replicas < FEW_REPLICAS:
        return None
    alone = latencies_alone(request, sizing.replica, sizing.idle)
    near = [target for _, target, alone_s in alone if LOOSER * alone_s >= target.limit_s]
    if not near and not is_hardly_used(sizing):
        return None

    def changed(targets: tuple[Target, ...]) -> tuple[Target, ...]:
        return tuple(
            replace(each, limit_s=LOOSER * each.limit_s) if each in near or not near else each
            for each in targets
        )

    return replace(request, slo=Slo(ttft=changed(request.slo.ttft), tpot=changed(request.slo.tpot)))


def is_hardly_used(sizing: Sizing) -> bool:
    """Tell whether the targets leave each of several replicas little of what it serves at most."""
    is_several = sizing.replicas >= FEW_REPLICAS and not sizing.request.slo.is_offline
    return is_several and _used_share(sizing) < HARDLY_USED


def check_worth(sizing: Sizing) -> None:
    """Raise SLOInfeasibleError for replicas that are hardly used, without a further search."""
    if is_hardly_used(sizing):
        raise SLOInfeasibleError(
            f"the SLO takes {_fleet(sizing)}, each {_used_share(sizing):.0%} used"
        )


def _used_share(sizing: Sizing) -> float:
    """Return what the targets leave of the most that a replica serves, however late."""
    replica = replace(sizing.replica, max_num_seqs=None)
    most = top_requests_per_s(replica, sizing.request.workload)
    return sizing.goodput_requests_per_s / most
