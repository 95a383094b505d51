"""Requests in time and late over the window of the SLO, and what is left of its error budget."""

from dataclasses import replace

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
    known = in_window(replace(known, limits=kept), _window_s(chosen), now_s=at_s)
    judged = {
        limit_key(each.name, each.limit_s): each.counted(judged_s) for each in observed.attainments
    }
    return with_judged(known, judged, at_s=at_s)


def budgets_of(memory: ObjectMemory, chosen: Chosen, *, now_s: float) -> tuple[ErrorBudget, ...]:
    """Return the error budgets of the targets of which enough requests were judged."""
    known = in_window(memory.goodput.ledger, _window_s(chosen), now_s=now_s)
    was_known = BUDGET_FIGURE in memory.reported.shown
    found = (
        error_budget(known, each, now_s=now_s, was_known=was_known) for each in objectives(chosen)
    )
    return tuple(each for each in found if each)


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
            found.append(
                Objective(
                    latency=latency,
                    quantile=each.quantile,
                    limit_s=each.limit_s,
                    allowed_share=1 - share,
                )
            )
    return tuple(found)


def _window_s(chosen: Chosen) -> float:
    slo = chosen.model.spec.slo
    return seconds(slo.attainment.window) if slo and slo.attainment else DEFAULT_WINDOW_S
