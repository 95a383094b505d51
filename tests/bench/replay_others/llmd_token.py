"""llm-d's token-aware law: seconds of prefill that wait, and caches' worth of KV in use.

Follows llm-d/llm-d guides/workload-autoscaling/keda-epp-token-aware/README.md (560d420e) and
optimized-baseline/base/scaledobject.yaml (04c0115b). Its router knows the tokens of every prompt
that is not yet prefilled; here they are the requests waiting times the mean of a minute's prompts.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

from replay_others.inside import prefill_tokens_per_s
from replay_others.keda import DOWN_BY_ONE, UP_BY_ONE, total_of
from tonnage.estimate.metrics import Query
from tonnage.replay.rivals.hpa import Hpa
from tonnage.replay.rivals.keda import Keda
from tonnage.replay.rivals.rule import Signals, gauges, scrapes_in

WINDOW_S: Final = 60.0
KV_THRESHOLD: Final = 0.8


def token_law(
    backlog_s: float,
    scrape_interval_s: float,
    prefill: Callable[[Signals], float] = prefill_tokens_per_s,
) -> Keda:
    """Return both triggers, with so many seconds of prefill to wait for on each replica."""
    scrapes = scrapes_in(WINDOW_S, scrape_interval_s)
    table = {
        **gauges("kv_usage", "waiting"),
        "prompt_tokens": Query(
            metric="vllm:prompt_tokens_by_source_total",
            function="rate",
            scrapes=scrapes,
            matchers='source="local_compute"',
        ),
        "prompts": Query(
            metric="vllm:time_to_first_token_seconds_count", function="rate", scrapes=scrapes
        ),
    }
    return Keda(
        triggers=(
            (partial(_backlog_s, prefill=prefill), backlog_s),
            (total_of("kv_usage"), KV_THRESHOLD),
        ),
        table=table,
        hpa=Hpa(up=UP_BY_ONE, down=DOWN_BY_ONE),
    )


def _backlog_s(signals: Signals, *, prefill: Callable[[Signals], float]) -> float:
    """Return the seconds that one replica would take; none where nothing was measured."""
    waiting = (signals.total("waiting") or 0.0) + signals.waiting_at_router
    prompts, tokens = signals.total("prompts"), signals.total("prompt_tokens")
    if not prompts or tokens is None:
        return 0.0
    return waiting * tokens / prompts / prefill(signals)
