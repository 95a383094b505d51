"""What is late or waits because of the link between two roles, or of the other role.

Decode waits for caches over a link, which more replicas make no faster. Prefill keeps the blocks of
a prompt until decode has taken them, and a decode that is full takes none: where such blocks fill
half of a cache, more replicas of prefill only read more prompts that nobody takes.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

from tonnage.api.objects import ModelDeployment
from tonnage.api.status import Reason
from tonnage.control.input.state import Attainment, ModelState
from tonnage.estimate.metrics import FAST_SCRAPES
from tonnage.estimate.samples import EngineSamples
from tonnage.sizing.request import SizingRequest
from tonnage.units import format_s, significant

SLOW_SHARE = 0.5
"""Of what planned transfers leave of a limit. Transfers that in the mean take that much longer make
requests late, however many replicas there are."""
UNTAKEN_SHARE = 0.5
"""Of a cache, from which on it is full of prompts that are not on their way."""


def without_waiting_for_decode(state: ModelState) -> ModelState:
    """Return the state in which requests that wait for decode are none that wait for capacity."""
    model = state.model
    if not isinstance(model, ModelDeployment) or model.spec.role != "prefill":
        return state
    return replace(state, engines=tuple(_without_waiting(each) for each in state.engines))


def _without_waiting(each: EngineSamples) -> EngineSamples:
    share = _untaken_share(each)
    if share < UNTAKEN_SHARE or each.waiting is None:
        return each
    return replace(each, waiting=0.0, waiting_for_decode=each.waiting, untaken_share=share)


def _untaken_share(each: EngineSamples) -> float:
    """Return the share of an engine's cache that no request which runs there has; 0: not known."""
    rates, tokens, usage = each.over(FAST_SCRAPES), each.kv_tokens, each.kv_usage_fraction
    if not (tokens and usage and each.mean_running is not None):
        return 0.0
    if not (rates.started_prompt_tokens_per_s and rates.started_per_s):
        return 0.0
    prompt_tokens = rates.started_prompt_tokens_per_s / rates.started_per_s
    return usage - each.mean_running * prompt_tokens / tokens


def untaken_reasons(engines: Iterable[EngineSamples]) -> tuple[Reason, ...]:
    """Say what is not counted as waiting for prefill."""
    full = [each for each in engines if each.untaken_share]
    if not full:
        return ()
    waiting = sum(each.waiting_for_decode for each in full)
    message = f"{significant(waiting)} queued for decode, not for prefill: {_untaken(full)}"
    return (Reason(code="DecodeBacklogged", message=message),)


def _untaken(full: Iterable[EngineSamples]) -> str:
    share = max(each.untaken_share for each in full)
    return f"prompts that decode has not loaded fill {share:.0%} of a KV cache"


def with_late_caches(
    attainments: Iterable[Attainment], engines: Iterable[EngineSamples], request: SizingRequest
) -> Iterator[Attainment]:
    """Note what makes TTFT late and is no lack of replicas."""
    known = tuple(engines)
    full = [each for each in known if each.untaken_share]
    wait_s = _cache_wait_s(known) if request.role == "decode" else 0.0
    for each in attainments:
        remaining_s = each.limit_s - request.transfer_s
        late = ""
        if full:
            late = _untaken(full)
        elif wait_s - request.transfer_s > SLOW_SHARE * remaining_s:
            late = f"KV caches take {format_s(wait_s)} to arrive"
        message = f"{late}: more replicas do not help"
        yield replace(each, cause=Reason("CachesLate", message)) if late else each


def _cache_wait_s(engines: Iterable[EngineSamples]) -> float:
    """Return how long the mean request waits for its cache: those that do, over those that come."""
    known = [each for each in engines if each.mean_deferred is not None]
    started = sum(each.ttft_within.get(math.inf, 0.0) for each in known)
    return sum(each.mean_deferred or 0.0 for each in known) / started if started else 0.0
