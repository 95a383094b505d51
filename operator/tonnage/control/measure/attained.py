"""Requests in time and late over the window of the SLO, and what is left of its error budget."""

from collections.abc import Mapping
from dataclasses import replace

from tonnage.api.spec import Slo
from tonnage.control.input.memory import ObjectMemory
from tonnage.control.input.state import Attainment, Chosen, Observed
from tonnage.estimate.budget import (
    DEFAULT_WINDOW_S,
    ErrorBudget,
    Ledger,
    error_budget,
    with_judged,
)
from tonnage.sizing.workload import PERCENT, Target
from tonnage.units import format_s, seconds


def ledger_after(
    known: Ledger, observed: Observed, chosen: Chosen, *, at_s: float, judged_s: float
) -> Ledger:
    """Return the ledger with the requests that were judged in the last ``judged_s``.

    What was late for a limit that the SLO does not have any more goes.
    """
    allowed = _allowed_shares(chosen)
    known = replace(
        known, targets={each: known.targets[each] for each in known.targets if each in allowed}
    )
    judged = {each.limit: _counted(each, judged_s) for each in observed.attainments}
    return with_judged(known, judged, at_s=at_s, window_s=_window_s(chosen.model.spec.slo))


def budget_of(memory: ObjectMemory, chosen: Chosen, *, now_s: float) -> ErrorBudget | None:
    """Return the error budget of the target that has least left; None: too little was judged."""
    known, slo = memory.goodput.ledger, chosen.model.spec.slo
    if known.window_s != _window_s(slo):
        return None  # it is counted anew with the next judgement
    return error_budget(known, _allowed_shares(chosen), now_s=now_s)


def _counted(each: Attainment, judged_s: float) -> tuple[float, float]:
    number = each.requests_per_s * judged_s
    return number, number * (1 - each.fraction)


def _window_s(slo: Slo | None) -> float:
    return seconds(slo.attainment.window) if slo and slo.attainment else DEFAULT_WINDOW_S


def _allowed_shares(chosen: Chosen) -> Mapping[str, float]:
    """Return {latency and limit: the share of requests that may exceed it}."""
    slo, given = chosen.sizing.request.slo, chosen.model.spec.slo
    percent = given.attainment.percent if given and given.attainment else None

    def allowed(target: Target) -> float:
        return 1 - (target.quantile if percent is None else float(percent) / PERCENT)

    targets = [("TTFT", each) for each in slo.ttft] + [("TPOT", each) for each in slo.tpot]
    return {f"{name} {format_s(each.limit_s)}": allowed(each) for name, each in targets}
