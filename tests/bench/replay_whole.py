"""Whole policies over many runs, in place of the best of the others in each."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

from replay_cases import TARGET
from replay_others.registry import KNOWS_TRUTH
from replay_runs import Draw, Run

from tonnage.replay.policy import STATIC_PEAK, TONNAGE

Found = Mapping[Draw, Mapping[str, Run]]
"""The runs of a draw, by policy."""
IN_HINDSIGHT = frozenset({STATIC_PEAK, KNOWS_TRUTH})
"""What is handed the traffic, or what a replica serves."""
WHOLE_MEANING = f"""\
- kept: runs in which {TARGET:.0%} of the requests met TTFT and TPOT. of what can be: of the runs
  that any policy of this table keeps which knows no more than Tonnage does.
- mean, worst: of the share of requests. worst hour: the least share in any 60 minutes of any run.
- over Tonnage's: GPU-hours of all runs that both have."""


def figures_of_policy(found: Found, policy: str) -> dict[Draw, Mapping[str, float]]:
    """Return the figures of a policy's runs that have any."""
    runs = ((draw, by_policy.get(policy)) for draw, by_policy in found.items())
    return {draw: run.figures for draw, run in runs if run and run.figures}


def over_all(found: Found, policies: Sequence[str]) -> str:
    """Return the table of how each policy fares in all runs that it has."""
    by_policy = {name: figures_of_policy(found, name) for name in policies}
    kept = {
        name: {draw for draw, each in figures.items() if each["attainment"] >= TARGET}
        for name, figures in by_policy.items()
    }
    can_be = set[Draw]().union(*(kept[name] for name in policies if name not in IN_HINDSIGHT))
    rows = [
        "| policy | runs | kept | of what can be | mean | worst | worst hour | over Tonnage's |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, figures in by_policy.items():
        if not figures:
            continue
        shares = [each["attainment"] for each in figures.values()]
        hours = [each["worst_hour"] for each in figures.values()]
        ratio = _gpu_hours_over(figures, by_policy.get(TONNAGE, {}))
        rows.append(
            f"| {name} | {len(shares)} | {len(kept[name])} "
            f"| {len(kept[name] & can_be)} of {len(figures.keys() & can_be)} "
            f"| {fmean(shares):.1%} | {min(shares):.1%} | {min(hours):.1%} | {ratio:.2f} |"
        )
    return "\n".join(rows)


def _gpu_hours_over(
    figures: Mapping[Draw, Mapping[str, float]], own: Mapping[Draw, Mapping[str, float]]
) -> float:
    both = figures.keys() & own.keys()
    hours, of_own = (sum(each[draw]["gpu_hours"] for draw in both) for each in (figures, own))
    return hours / of_own if of_own else math.nan
