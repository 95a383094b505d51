"""Requests in time and late over the window of the SLO, and what is left of its error budget."""

from dataclasses import replace

from tonnage.api.objects import ModelDeployment
from tonnage.api.spec import AttainmentTarget
from tonnage.control.input.memory import ObjectMemory
from tonnage.control.input.state import Chosen, Observed
from tonnage.estimate.budget import (
    DEFAULT_WINDOW_S,
    ErrorBudget,
    Ledger,
    Objective,
    error_budget,
    in_window,
    limit_key,
    with_judged,
)
from tonnage.memoize import memoize
from tonnage.sizing.plan import Sizing
from tonnage.sizing.workload import PERCENT
from tonnage.units import seconds

BUDGET_FIGURE = "errorBudgetLeft"
"""Name of the figure in the status."""


def ledger_after(
    known: Ledger, observed: Observed, chosen: Chosen, *, at_s: float, judged_s: float
) -> Ledger:
    """Return the ledger with the requests that were judged in the last ``judged_s``.

    What was late for a limit that the SLO does not have any more goes.
    """
    limits = {each.limit for each in objectives(chosen)}
    kept = {limit: bins for limit, bins in known.limits.items() if limit in limits}
    known = _in_window(replace(known, limits=kept), chosen.model, now_s=at_s)
    judged = {  # requests, late requests
        limit_key(each.name, each.limit_s): (
            number := each.requests_per_s * judged_s,
            number * (1 - each.fraction),
        )
        for each in observed.attainments
    }
    return with_judged(known, judged, at_s=at_s)


def budgets_of(memory: ObjectMemory, chosen: Chosen, *, now_s: float) -> tuple[ErrorBudget, ...]:
    """Return the error budgets of the targets of which enough requests were judged.

    One that was not counted for the whole window never looks full: it is told where it is burnt.
    """
    known = _in_window(memory.goodput.ledger, chosen.model, now_s=now_s)
    was_known = BUDGET_FIGURE in memory.reported.shown
    found = (
        error_budget(known, each, now_s=now_s, was_known=was_known) for each in objectives(chosen)
    )
    is_whole = known.is_whole(now_s)
    return tuple(each for each in found if each and (is_whole or each.is_burnt))


def objectives(chosen: Chosen) -> tuple[Objective, ...]:
    """Return the shares of requests that may be late."""
    given = chosen.model.spec.slo
    return _objectives(chosen.sizing, given.attainment if given else None)


@memoize
def _objectives(sizing: Sizing, given: AttainmentTarget | None) -> tuple[Objective, ...]:
    """Return one of each target; ``slo.attainment.percent`` is of the highest percentile.

    Of a lower one it would ask what nobody promised.
    """
    found, slo = list[Objective](), sizing.request.slo
    percent = given.percent if given else None
    for latency, targets in (("TTFT", slo.ttft), ("TPOT", slo.tpot)):
        highest = max((each.quantile for each in targets), default=None)
        for each in targets:
            share = each.quantile
            if percent is not None and each.quantile == highest:
                share = float(percent) / PERCENT
            found.append(Objective(latency, each.quantile, each.limit_s, allowed_share=1 - share))
    return tuple(found)


def _in_window(known: Ledger, model: ModelDeployment, *, now_s: float) -> Ledger:
    """Return the ledger in the window of the SLO; of a longer one only a part was counted."""
    window_s = window_s_of(model)
    if known.limits and window_s > known.window_s:
        known = replace(known, since_s=max(known.since_s, now_s - known.window_s))
    return in_window(known, window_s, now_s=now_s)


def window_s_of(model: ModelDeployment) -> float:
    slo = model.spec.slo
    return seconds(slo.attainment.window) if slo and slo.attainment else DEFAULT_WINDOW_S
