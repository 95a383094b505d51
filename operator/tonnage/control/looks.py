"""What a minute adds to a decision that stands: what came, and what is needed for it. Pure.

Its engines say what they did, so nothing is measured, sized or reported. What time alone moves is
taken in as a decision takes it in, by the same functions: arrivals, promises, notes of demand, and
with these the forecast, the reserve and known events. Where that comes to another need, or to
something else to ask of sizing, the decision stands no more.
"""

from tonnage.control.assess import weighed
from tonnage.control.input.state import Assessment, Fleet, ObjectMemory
from tonnage.control.measure.remembered import with_observed
from tonnage.policy.situation import Need
from tonnage.values import replace


def looked_at(stood: Assessment, memory: ObjectMemory, fleet: Fleet) -> Assessment | None:
    """Return what was found with what time has brought since; None: it is to be decided anew."""
    chosen, observed = stood.chosen, stood.observed
    if chosen is None or observed is None:
        return None
    found = replace(stood, memory=with_observed(memory, stood.state, fleet, stood.traffics))
    try:
        found, need = weighed(found, chosen, observed, fleet)
    except Exception:  # it is met again, and told, where the object is decided
        return None
    has_turned = _is_other(need, stood.need) or _asks_other(found.memory, memory)
    return None if has_turned else replace(found, need=need)


def _is_other(now: Need, then: Need | None) -> bool:
    return then is None or _numbers(now) != _numbers(then)


def _numbers(need: Need) -> tuple[int, int, tuple[str, ...]]:
    """Return what is decided by, and what the status shows at once."""
    codes = tuple(reason.code for reason in need.reasons)
    return need.replicas, need.replicas_with_margin, codes


def _asks_other(now: ObjectMemory, then: ObjectMemory) -> bool:
    """Tell whether sizing is asked something else with what is remembered now."""
    learned = replace(now.posterior, demand=then.posterior.demand)
    return (
        learned != then.posterior
        or now.arrival_scv != then.arrival_scv
        or now.asked_lengths != then.asked_lengths
    )
