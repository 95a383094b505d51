"""Plans that wait for a person: what they are called, and whether somebody agreed to them.

In mode Approve what replaces pods, or costs more than the spec states, waits for an annotation with
the plan's digest. That is computed anew in every tick, from what a person agrees to. So one that is
stale, malformed or absent agrees to nothing: what runs stays, and is scaled as before. Flags of a
batch are no part of it: they follow what is measured, and an approval would go stale by itself.
Where other flags are all that a plan changes, the digest has those that it replaces.
"""

import hashlib
import json
import math
import re
from dataclasses import dataclass, replace
from typing import Final

from tonnage.api.objects import ModelDeployment
from tonnage.api.status import MESSAGE_LENGTH, ProposalStatus, Reason
from tonnage.control.decide.outlook import needs_in_replicas_of_now
from tonnage.control.decide.template import roll_changes, roll_written, template_of
from tonnage.control.input.finding import Finding
from tonnage.control.input.sizing_cache import SizingCache
from tonnage.control.input.state import APPROVE, Assessment, Chosen, Fleet, ModelState
from tonnage.control.size.chosen import choose_running
from tonnage.control.size.question import as_it_runs
from tonnage.explain.report import usd_per_hour
from tonnage.manifests.changes import Change
from tonnage.manifests.children import spec_digest, write_flags
from tonnage.manifests.names import APPROVE_ANNOTATION
from tonnage.manifests.protection import evictable
from tonnage.manifests.target import RefusedError
from tonnage.policy.situation import Decision
from tonnage.sizing.plan import Sizing
from tonnage.sizing.request import Flags
from tonnage.units import count_of

DIGEST_LENGTH: Final = 16
_DIGEST: Final = re.compile(f"[0-9a-f]{{{DIGEST_LENGTH}}}(?:-([1-9][0-9]{{0,5}}))?")
"""With the replicas that are agreed to where they pass the stated cost, which it covers, too."""
ROLLS: Final = "RolloutNeedsApproval"
COSTS: Final = "CostExceeded"
NEEDED: Final = "ApprovalNeeded"
"""Code of the limit that a stated cost sets."""
HALF_CENT: Final = 0.005
"""Amounts are shown in cents: a stated cost pays for what is shown as that much."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Pods that somebody may have to agree to."""

    model: ModelDeployment
    """With the spec of the pods."""
    sizing: Sizing
    replaced: Flags | None = None
    """Flags of the same spec that run, where the plan is to run others."""

    def digest(self, replicas: int) -> str:
        """Return the annotation that approves it, ``<digest>`` or ``<digest>-<replicas>``.

        ``replicas``: that pass the stated cost; 0: it is within it, and the annotation has none.
        """
        model, request, leaves = self.model, self.sizing.request, None
        if self.replaced:
            leaves = write_flags(self.replaced)
        given, split = model.spec.model.kv_offload, str(self.sizing.flags.parallelism)
        undecided = [request.has_host_cache] if given and given.is_auto else []
        named = [model.uid, model.generation, spec_digest(model), split, leaves, replicas]
        text = hashlib.sha256(json.dumps([*named, *undecided]).encode()).hexdigest()[:DIGEST_LENGTH]
        return f"{text}-{replicas}" if replicas else text

    def approved_replicas(self, state: ModelState) -> int | None:
        """Return up to how many replicas it is agreed to; 0: within the stated cost. None: not."""
        form = _DIGEST.fullmatch(state.view.approve or "")
        if form is None:
            return None
        replicas = int(form[1] or 0)
        return replicas if self.digest(replicas) == state.view.approve else None

    def is_approved(self, state: ModelState) -> bool:
        """Tell whether somebody agreed to it, for the replicas that there are."""
        agreed = self.approved_replicas(state)
        return agreed is not None and agreed >= self._beyond(state)

    def proposal(self, state: ModelState, changes: tuple[Change, ...]) -> ProposalStatus:
        """Return it as it waits, with the fields for which it would replace pods."""
        beyond = self._beyond(state)
        cost = f", at {_cost_written(self.sizing, beyond)}" if beyond else ""
        message = f"{roll_written(state.deployment, changes)}{cost}"[:MESSAGE_LENGTH]
        return ProposalStatus(digest=self.digest(beyond), reason=ROLLS, message=message)

    def _beyond(self, state: ModelState) -> int:
        """Return the replicas that there are, where with these flags they pass the stated cost."""
        within = replicas_within(self.model, self.sizing)
        return 0 if within is None or state.replicas <= within else state.replicas


def until_approved(
    chosen: Chosen, found: Assessment, fleet: Fleet, asker: SizingCache
) -> tuple[Chosen, ProposalStatus | None]:
    """Return the plan that may be carried out: what runs, until a plan that replaces it is agreed.

    Raises:
        RefusedError: nobody wrote down what runs, so that it cannot be sized.
        CatalogError, SizingError, SearchAbandonedError: as choosing does.
    """
    if chosen.model.spec.scaling.mode != APPROVE or not chosen.needs_apply:
        return chosen, None
    changes = roll_changes(found.state.deployment, template_of(found, fleet, chosen))
    proposal = unapproved_roll(found.state, chosen, changes)
    if proposal is None:
        return chosen, None
    running = as_it_runs(found.state)
    if running is None:
        raise RefusedError(
            "RunningSpecUnknown",
            "the spec that the running replicas were made from is not recorded, or not valid with "
            "today's SLO and limits: they stay as they are until the plan is approved: "
            f"{how_to_approve(proposal, None).message}",
        )
    return choose_running(replace(found, state=running), fleet, asker), proposal


def replicas_within(model: ModelDeployment, sizing: Sizing) -> int | None:
    """Return the replicas that the stated cost pays for; None: none is stated.

    A class without a price pays for none: what cannot be told is not agreed to.
    """
    stated, each = model.spec.scaling.approval_above_usd_per_hour, usd_per_hour(sizing, 1)
    if stated is None:
        return None
    return 0 if each is None else math.floor((float(stated) + HALF_CENT) / each)


def _cost_written(sizing: Sizing, replicas: int) -> str:
    cost = usd_per_hour(sizing, replicas)
    return "an unknown cost" if cost is None else f"{cost:.2f} USD per hour"


def approved_by_cost(found: Assessment, chosen: Chosen) -> tuple[int, str] | None:
    """Return (replicas that are paid for, what more would cost); None: nobody has to agree."""
    model, sizing, stated = chosen.model, chosen.sizing, chosen.model.spec.scaling
    within = replicas_within(model, sizing) if stated.mode == APPROVE else None
    if within is None:
        return None
    most = max(within, Plan(model, sizing).approved_replicas(found.state) or 0)
    asked = _replicas_to_approve(found, chosen)
    return most, (
        f"{count_of(asked, 'replica costs', 'replicas cost')} {_cost_written(sizing, asked)}, "
        f"above approvalAboveUsdPerHour {stated.approval_above_usd_per_hour}: "
        f"{max(most, found.state.replicas)} run until more are approved"
    )


def cost_proposal(found: Assessment, chosen: Chosen, decision: Decision) -> ProposalStatus | None:
    """Return the plan that waits since it passes the stated cost; None: it does not."""
    message = next((each.message for each in decision.reasons if each.code == NEEDED), None)
    if message is None:
        return None
    asked = _replicas_to_approve(found, chosen)
    digest = Plan(chosen.model, chosen.sizing).digest(asked)
    return ProposalStatus(digest=digest, reason=COSTS, message=message)


def _replicas_to_approve(found: Assessment, chosen: Chosen) -> int:
    """Return up to how many replicas are asked for: the most of the last window.

    What one agrees to is not the need of a moment, which is another at the next.
    """
    needs = needs_in_replicas_of_now(found.memory.decided.recent_needs, chosen.replica_goodput)
    scaling, least = chosen.model.spec.scaling, evictable(chosen.model)
    recent = max((need for _, need in needs), default=0)
    return max(scaling.min_replicas, least[0] if least else 0, min(recent, scaling.max_replicas))


def unapproved_roll(
    state: ModelState, chosen: Chosen, changes: tuple[Change, ...]
) -> ProposalStatus | None:
    """Return what waits of a template that would replace pods; None: it may be applied.

    What somebody else edited is reapplied where the plan that it departs from was approved.
    """
    plan = Plan(chosen.model, chosen.sizing)
    if plan.model.spec.scaling.mode != APPROVE or not changes or plan.is_approved(state):
        return None
    return plan.proposal(state, changes)


def how_to_approve(proposal: ProposalStatus, given: str | None) -> Reason:
    """Return what is said of a plan that waits; ``given``: the annotation as somebody wrote it."""
    message = f"{proposal.message}; to approve: annotate {APPROVE_ANNOTATION}={proposal.digest}"
    if given is None:
        return Reason(proposal.reason, message)
    if not _DIGEST.fullmatch(given):
        stray = f"{APPROVE_ANNOTATION} is not the digest of a plan"
        return Reason("ApprovalMalformed", f"{stray}; {message}")
    return Reason("ApprovalStale", f"{APPROVE_ANNOTATION} {given} is of another plan; {message}")


def approval(found: Assessment, _: Fleet) -> Finding | None:
    """Present in mode Approve only: whether something waits for the annotation, and for which."""
    given = found.state.view.approve
    if found.mode != APPROVE:
        return None
    if found.refusal and not (found.uses_previous_spec and found.proposals):
        return Finding("Unknown", "PlanInvalid", found.refusal.message)
    if found.proposals:
        lines = [how_to_approve(each, given) for each in found.proposals]
        return Finding("False", lines[0].code, "; also: ".join(each.message for each in lines))
    if chosen := found.chosen:  # the annotation is of what runs, or of other flags for it
        runs = chosen.model, chosen.sizing
        plans = (Plan(*runs), Plan(*runs, chosen.sizing.flags))
        if any(each.approved_replicas(found.state) is not None for each in plans):
            return Finding("True", "PlanApproved", f"plan {given} is approved")
    return Finding("True", "NothingToApprove", "no plan waits for approval")
