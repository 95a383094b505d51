"""Whether replicas that go may finish what they answer: decided with the template, told after."""

from tonnage.api.status import Reason
from tonnage.control.input.state import Assessment, Chosen, DeploymentView, ModelState
from tonnage.manifests.drain import (
    LEAST_DRAIN_S,
    MOST_DRAIN_S,
    MOST_GRACE_S,
    LongestAnswer,
    drain_allowed_s,
    drain_time_s,
    longest_answer,
)
from tonnage.units import format_s


def drain_to_write_s(state: ModelState, chosen: Chosen) -> int | None:
    """Return the time to finish that a template is to give its pods; None: it is chosen anew.

    What somebody edited is reapplied; for a new spec it stays as long as it is enough.
    """
    if state.deployment is None:
        return None
    running_s = recorded_drain_s(state.deployment)
    if not chosen.must_apply:
        return running_s
    return drain_time_s(longest_answer(chosen.model.spec, chosen.sizing), running_s=running_s)


def recorded_drain_s(deployment: DeploymentView) -> int:
    """Return what we wrote down; Deployments of before have the least, and no record of it."""
    recorded_s = deployment.drain_s
    if recorded_s is None or not LEAST_DRAIN_S <= recorded_s <= MOST_DRAIN_S:
        return LEAST_DRAIN_S
    return recorded_s


def drain_reasons(found: Assessment, chosen: Chosen) -> tuple[Reason, ...]:
    """Say that the longest answers are cut off where replicas go; a longer time is a rollout."""
    answer = longest_answer(chosen.model.spec, chosen.sizing)
    allowed_s, limit = _grace_period(found, chosen, answer)
    if allowed_s is None or not answer.outlasts(allowed_s):
        return ()
    source = "measured" if found.memory.traffic.asked_lengths else "expected"
    message = (
        f"the longest answers {source} have {answer.tokens:,.0f} tokens (p99), which take "
        f"{format_s(answer.seconds)} at the highest load within the SLO; {limit}: longer answers "
        "are cut off when a replica is removed"
    )
    return (Reason(code="DrainTooShort", message=message),)


def _grace_period(
    found: Assessment, chosen: Chosen, answer: LongestAnswer
) -> tuple[float | None, str]:
    """Return the time that pods have to finish, and what sets it."""
    target, deployment = chosen.model.spec.scale_target, found.state.deployment
    grace_s = deployment.grace_s if deployment else None
    if target:
        return grace_s, f"pods of {target.name} are killed after {grace_s} s"
    if found.template is not None or deployment is None:
        return MOST_DRAIN_S, _at_most()
    if grace_s is None:
        return None, ""
    allowed_s = drain_allowed_s(grace_s)
    if allowed_s >= MOST_DRAIN_S:
        return allowed_s, _at_most()
    more_s = drain_time_s(answer, running_s=None)
    return allowed_s, (
        f"the pods that run have {allowed_s} s; with the next change of the spec that makes new "
        f"ones they get {more_s} s"
    )


def _at_most() -> str:
    return f"pods get {MOST_DRAIN_S} s, since {MOST_GRACE_S} s of grace are the most"
