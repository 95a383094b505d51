"""The Deployment to apply, if one is: what makes its pods roll, and how long these may finish."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from tonnage.api.status import Reason
from tonnage.control.input.state import Assessment, Chosen, DeploymentView, Fleet, ModelState
from tonnage.control.input.writers import Drift
from tonnage.control.observe.ownership import is_adopted
from tonnage.manifests.changes import Change, template_changes
from tonnage.manifests.children import NotServableError, Site, deployment
from tonnage.manifests.names import GROUPS, Manifest, template_in
from tonnage.manifests.pod import (
    LEAST_DRAIN_S,
    MOST_DRAIN_S,
    drain_allowed_s,
    drain_time_s,
    longest_answer,
)
from tonnage.units import count_of, format_s

MOST_NAMED = 8
"""Fields that are named in one message."""


def template_of(found: Assessment, fleet: Fleet, chosen: Chosen) -> Manifest | None:
    """Return the workload to apply; None: the live one stays.

    Raises:
        NotServableError: it cannot be written, or one of the other kind runs.
    """
    state, writers = found.state, found.memory.writers
    if writers.template.in_backoff or chosen.model.spec.scale_target:
        return None
    is_due = writers.template.edit or chosen.needs_apply
    if not (is_due or is_adopted(state, state.deployment)):
        return None
    live, site = state.deployment, fleet.site
    if live and live.workload.is_group:
        site = replace(site, has_groups=True)
    drain_s = drain_to_write_s(state, chosen)
    make = partial(deployment, chosen.model, chosen.sizing, drain_s=drain_s)
    made = make(_site_of_pods(live, writers.drift, site, make))
    if live and live.kind != made["kind"]:  # pods of one label: one of the two has to go first
        raise NotServableError(
            f"the plan needs a {made['kind']}, and {live.kind} {live.name} runs: it stays as it is "
            f"until you delete it (kubectl delete {live.kind.lower()} -n {live.namespace} "
            f"{live.name})"
        )
    if live is None and made["kind"] == GROUPS.kind:
        _check_services(state, chosen.model.spec.scaling.max_replicas)
    return made


def _site_of_pods(
    live: DeploymentView | None, drift: Drift | None, site: Site, make: Callable[[Site], Manifest]
) -> Site:
    """Return what a template is made for: that PodMonitors came or went alone replaces no pods.

    Those that are replaced anyway lose or get the annotations by which they are scraped.
    """
    had = drift.has_pod_monitors if drift else None
    if had is None or had == site.has_pod_monitors:
        return site
    before = replace(site, has_pod_monitors=had)
    return site if roll_changes(live, make(before)) else before


def _check_services(state: ModelState, max_replicas: int) -> None:
    """Refuse a LeaderWorkerSet of which a group would get no headless Service.

    Raises:
        NotServableError: another ModelDeployment has a Service of that name.
    """
    groups = {f"{state.view.name}-{number}" for number in range(max_replicas)}
    if overlapping := sorted(groups.intersection(state.numbered)):
        raise NotServableError(
            f"a {GROUPS.kind} creates a Service for each group, and that of ModelDeployment "
            f"{overlapping[0]} has the same name: rename one of the two"
        )


def roll_changes(live: DeploymentView | None, template: Manifest | None) -> tuple[Change, ...]:
    """Return what applying a Deployment changes of the pods that run; nothing: none rolls."""
    if live is None or template is None:
        return ()
    owned = json.loads(live.template_fields)
    return template_changes(json.loads(live.template), template_in(template), owned=owned)


def roll_written(live: DeploymentView | None, changes: tuple[Change, ...]) -> str:
    """Say how many pods roll, and for which fields."""
    named = "; ".join(str(each) for each in changes[:MOST_NAMED])
    more = f"; and {len(changes) - MOST_NAMED} more" if len(changes) > MOST_NAMED else ""
    words = ("group is", "groups are") if live and live.num_nodes > 1 else ("pod is", "pods are")
    pods = count_of(live.replicas if live else 0, *words)
    return f"{pods} replaced for {named}{more}"


def drain_to_write_s(state: ModelState, chosen: Chosen) -> int | None:
    """Return the time to finish that a template is to give its pods; None: it is chosen anew.

    What somebody edited is reapplied; for a new spec it stays as long as it is enough.
    """
    if state.deployment is None:
        return None
    running_s = recorded_drain_s(state.deployment)
    if not chosen.needs_apply:
        return running_s
    return drain_time_s(longest_answer(chosen.model.spec, chosen.sizing), running_s=running_s)


def recorded_drain_s(deployment: DeploymentView) -> int:
    """Return what we wrote down, else what the pods that run have: no lost record replaces them."""
    recorded_s = deployment.drain_s
    if recorded_s is None or not LEAST_DRAIN_S <= recorded_s <= MOST_DRAIN_S:
        recorded_s = drain_allowed_s(deployment.grace_s or 0)
    return min(MOST_DRAIN_S, max(LEAST_DRAIN_S, recorded_s))


def drain_reasons(found: Assessment, chosen: Chosen) -> tuple[Reason, ...]:
    """Say that the longest answers are cut off where replicas go; a longer time is a rollout."""
    answer, allowed_s = longest_answer(chosen.model.spec, chosen.sizing), _allowed_s(found, chosen)
    if allowed_s is None or not answer.outlasts(allowed_s):
        return ()
    source = "measured" if found.memory.traffic.asked_lengths else "expected"
    new_s = drain_time_s(answer, running_s=None)
    more = "" if chosen.model.spec.scale_target else f", those of a new template {new_s} s"
    message = (
        f"the longest outputs {source} have {answer.tokens:,.0f} tokens (p99), which take "
        f"{format_s(answer.seconds)} at the highest load within the SLO; pods have {allowed_s} s "
        f"to finish{more}: longer outputs are cut off when a replica is removed"
    )
    return (Reason(code="GracePeriodTooShort", message=message),)


def _allowed_s(found: Assessment, chosen: Chosen) -> int | None:
    """Return the time that pods have to finish; None: nobody knows."""
    live = found.state.deployment
    if chosen.model.spec.scale_target:
        return live.grace_s if live else None
    if found.template is not None or live is None:
        return MOST_DRAIN_S
    return None if live.grace_s is None else drain_allowed_s(live.grace_s)
