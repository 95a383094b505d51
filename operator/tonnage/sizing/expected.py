"""What a spec expects: the traffic, the SLO targets, and how the engine is to decode."""

from tonnage.api.spec import Demand as DemandSpec
from tonnage.api.spec import Percentiles, Spec
from tonnage.memoize import memoize
from tonnage.sizing.adapters import Adapters
from tonnage.sizing.speculation import Speculation
from tonnage.sizing.workload import Demand, Lengths, Slo, Target, Workload
from tonnage.units import DAY_S, seconds

PERCENT = 100
GUESSED_PROMPT_TOKENS = 2048
GUESSED_OUTPUT_TOKENS = 512
CLASS_PER_TARGET = 1.25
"""Length of a class of arrivals over the shortest TTFT target. At n times the capacity who comes
last of a class waits (1 - 1/n) of it: up to five times no longer than the target."""


@memoize
def slo_of(spec: Spec) -> Slo:
    """Return the SLO targets of a spec."""
    if spec.slo is None:
        return Slo()
    ttft, tpot = spec.slo.time_to_first_token, spec.slo.time_per_output_token
    return Slo(ttft=_targets(ttft), tpot=_targets(tpot))


def _targets(given: Percentiles | None) -> tuple[Target, ...]:
    limits = given.targets() if given else {}
    return tuple(Target(quantile=q, limit_s=limit_s) for q, limit_s in limits.items())


def newest_first_s(spec: Spec) -> float:
    """Return how long arrivals make a class, of which the newest is admitted first; 0: fcfs.

    Shorter classes serve less below capacity; in longer ones who comes last waits too long above
    it (decision 69).
    """
    if spec.engine is None or spec.engine.queue != "newestFirst":
        return 0.0
    return CLASS_PER_TARGET * min((each.limit_s for each in slo_of(spec).ttft), default=0.0)


def refuses_late(spec: Spec) -> bool:
    """Tell whether engines refuse who would get a first token too late."""
    return spec.engine is not None and spec.engine.admission == "inTime"


def expected_workload(spec: Spec) -> Workload:
    """Return the lengths that the spec expects, or a guess: of what engines of its role serve."""
    return _whole_requests(spec).of_role(spec.role)


def transfer_s_of(spec: Spec) -> float:
    """Return how long decode waits for the cache of a mean prompt; 0 for all others."""
    given = spec.demand.cache_transfer if spec.demand else None
    return seconds(given) if given and spec.role == "decode" else 0.0


def _whole_requests(spec: Spec) -> Workload:
    demand = spec.demand
    if demand is None:
        return Workload(
            prompt=Lengths(mean_tokens=min(GUESSED_PROMPT_TOKENS, spec.context_length / 2)),
            output_tokens=min(GUESSED_OUTPUT_TOKENS, spec.context_length / 4),
        )
    output, prompt = (
        Lengths(mean_tokens=given.mean, p99_tokens=given.p99, longest_tokens=spec.context_length)
        for given in (demand.output_tokens, demand.prompt_tokens)
    )
    return Workload(
        prompt=prompt,
        output_tokens=output.mean_tokens,
        cached_fraction=demand.cached_prompt_percent / PERCENT,
        output_second_moment=None if output.p99_tokens is None else output.second_moment,
    )


def expected_speculation(spec: Spec) -> Speculation | None:
    """Return how the engine drafts tokens, and how many are expected to be accepted."""
    given = spec.engine.speculative if spec.engine else None
    if given is None:
        return None
    return Speculation(
        method=given.method,
        num_draft_tokens=given.tokens,
        acceptance_rate=given.accepted_percent / PERCENT,
    )


def expected_adapters(spec: Spec) -> Adapters | None:
    """Return the slots for LoRA adapters; None: there are none."""
    given = spec.model.adapters
    return None if given is None else Adapters(number=given.number, rank=given.rank)


def expected_demand(demand: DemandSpec | None) -> Demand:
    """Return the traffic to plan for, as a rate or as requests in flight: its peak, if given."""
    if demand is None:
        return Demand()
    output, peak = demand.output_tokens.mean, (demand.peak_percent or PERCENT) / PERCENT
    if demand.requests_per_second is not None:
        return _at_peak(float(demand.requests_per_second), peak)
    if demand.tokens_per_second is not None:
        return _at_peak(float(demand.tokens_per_second) / output, peak)
    if demand.tokens_per_day is not None:
        return _at_peak(float(demand.tokens_per_day) / DAY_S / output, peak)
    if demand.concurrent_users is not None:
        duty_fraction = (demand.duty_cycle_percent or PERCENT) / PERCENT
        return Demand(
            concurrency=peak * demand.concurrent_users * duty_fraction,
            duty_fraction=duty_fraction,
            peak_ratio=peak,
        )
    return Demand()


def _at_peak(requests_per_s: float, peak: float) -> Demand:
    return Demand(requests_per_s=peak * requests_per_s, peak_ratio=peak)
