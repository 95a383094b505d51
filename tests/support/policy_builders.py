"""Situations to decide on: four replicas, needed, measured and watched for long."""

from dataclasses import replace

from tonnage.api.status import Reason
from tonnage.policy.situation import Metrics, Need, Situation

NOW_S = 1_000_000.0
WINDOW_S = 300.0
PACE_S = 60.0


def a_need(replicas=4, *, with_margin=None, floor=0):
    return Need(
        replicas=replicas,
        replicas_with_margin=replicas if with_margin is None else with_margin,
        reasons=(Reason(code="Demand", message=f"{replicas} are needed"),),
        floor=floor,
    )


def a_situation(*, current=4, need=4, recent=None, placed=None, **changes):
    """``recent``: needs with margin that were seen in the window; else what is needed now."""
    wanted = need if isinstance(need, Need) else a_need(need)
    seen = [wanted.replicas_with_margin] if recent is None else recent
    situation = Situation(
        now_s=NOW_S,
        current=current,
        given_up=0,
        placed=current if placed is None else placed,
        retry_at_s=None,
        minimum=1,
        maximum=20,
        need=wanted,
        metrics=Metrics.COMPLETE,
        recent_needs=tuple((NOW_S - 10, each) for each in seen),
        watching_since_s=0,
        lost_at_s=None,
        is_replacing=False,
        draining=None,
        awaited=None,
        stepped=None,
        window_base=None,
        gpus_per_replica=2,
        free_budget_gpus=None,
        scale_down_window_s=WINDOW_S,
        hold_s=WINDOW_S,
        max_scale_up_replicas=8,
        pace_s=PACE_S,
    )
    return replace(situation, **changes)
