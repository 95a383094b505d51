"""When engines are restarted for other flags: at once where none starts, else rarely, for a gain.

A flag that changes restarts engines that take minutes to load. So it moves only for a gain by
measured constants that has stood for a while, one such rollout at a time in the whole fleet, never
while demand grows or replicas start, and not where no GPU is left for the pod that comes first.
"""

import math
from dataclasses import replace
from typing import NamedTuple

from tonnage.api.pods import Pods
from tonnage.api.status import ProposalStatus, Reason
from tonnage.control.decide.approval import Plan
from tonnage.control.decide.budget import RemainingBudget, replaced_gpus
from tonnage.control.decide.outlook import lead_s
from tonnage.control.decide.template import roll_changes, template_of
from tonnage.control.input.memory import ObjectMemory
from tonnage.control.input.state import APPROVE, Assessment, Chosen, Fleet
from tonnage.control.input.writers import WriteKind
from tonnage.control.size.chosen import moved_flags
from tonnage.manifests.changes import Change
from tonnage.manifests.names import Manifest
from tonnage.policy.situation import Metrics
from tonnage.sizing.plan import Sizing
from tonnage.units import HOUR_S, count_of, format_s

GAIN_WORTH_A_ROLLOUT = 0.1
"""Of a replica's goodput."""
STABLE_S = 1800.0
"""That another number has gained so much before it is taken."""
ROLLOUTS_APART_S = 6 * HOUR_S
"""Of one object, for this reason."""
STALLED_S, STALLED_LEADS = 1800.0, 3
"""Without progress for so long, in seconds and in slow starts, a rollout no longer counts."""
MOVED = "MaxNumSeqs"
EVERYWHERE = "*"
"""In place of a namespace, of which it cannot be the name."""


def is_rolling(each: Assessment, fleet: Fleet) -> bool:
    """Tell whether the pods of an object are being replaced, and not in vain.

    A rollout may never end where somebody paused it, where Kubernetes says that it makes no
    progress, or where it made none in three slow starts, half an hour at least. It keeps no other
    one waiting.
    """
    live, rolling = each.state.deployment, each.memory.pods.rolling
    if live is None or not live.is_rolling or live.is_rollout_held:
        return False
    if "Progressing" in dict(live.problems):
        return False
    patience_s = max(STALLED_S, STALLED_LEADS * lead_s(each.memory.posterior, fleet.settings))
    return rolling is None or fleet.now_s - rolling.at_s < patience_s


def reach(each: Assessment, fleet: Fleet) -> str:
    """Return where other rollouts wait for that of an object: its namespace, or everywhere.

    Everywhere for the one that we began for a gain. What a namespace does to its own pods, for as
    long as it likes, keeps nobody else waiting.
    """
    return EVERYWHERE if _has_moved_lately(each, fleet) else each.state.view.namespace


def _has_moved_lately(each: Assessment, fleet: Fleet) -> bool:
    moved_at_s = each.memory.posterior.slots_moved_at_s
    return moved_at_s is not None and fleet.now_s - moved_at_s < ROLLOUTS_APART_S


class Moved(NamedTuple):
    """What is done about better flags of a batch."""

    since_s: float | None = None
    """Since when they have gained enough; None: there are none."""
    note: Reason | None = None
    adopted: Chosen | None = None
    """The plan with them, which is carried out now."""
    template: Manifest | None = None
    changes: tuple[Change, ...] = ()
    proposal: ProposalStatus | None = None
    """It waits for somebody to agree."""


def other_flags(
    found: Assessment, chosen: Chosen, fleet: Fleet, remaining: RemainingBudget
) -> Moved:
    """Return what is done about other flags: at once about those without which no pod starts."""
    if chosen.cured is None:
        return _better_flags(found, chosen, fleet, remaining)
    if not _may_restart(found, chosen, fleet) or _holds_write(found, fleet):
        return Moved()
    return _carried_out(found, chosen, fleet, chosen.cured, Moved())


def _is_open(found: Assessment, chosen: Chosen, other: Sizing) -> bool:
    """Tell whether somebody has to agree to other flags first."""
    plan = Plan(chosen.model, other, chosen.sizing.flags)
    return found.mode == APPROVE and not plan.is_approved(found.state)


def _carried_out(
    found: Assessment, chosen: Chosen, fleet: Fleet, other: Sizing, moved: Moved
) -> Moved:
    """Return the template with other flags, or what waits for somebody to agree to it."""
    adopted = replace(chosen, sizing=other, needs_apply=True, better_asked=None, cured=None)
    template = template_of(found, fleet, adopted)
    changes = roll_changes(found.state.deployment, template)
    is_open = _is_open(found, chosen, other)
    if is_open and changes:
        plan = Plan(chosen.model, other, chosen.sizing.flags)
        return moved._replace(proposal=plan.proposal(found.state, changes))
    if is_open or template is None:
        return moved
    return Moved(note=moved.note, adopted=adopted, template=template, changes=changes)


def _better_flags(
    found: Assessment, chosen: Chosen, fleet: Fleet, remaining: RemainingBudget
) -> Moved:
    """Return what is done about better flags: nothing until it is time for it."""
    better, since_s = chosen.better_max_num_seqs, found.memory.decided.better_since_s
    if better is None or (chosen.problem is None and chosen.gain_of(better) < GAIN_WORTH_A_ROLLOUT):
        return Moved()
    since_s = fleet.now_s if since_s is None else since_s
    if not _may_restart(found, chosen, fleet):
        return Moved(since_s)
    stood_s, is_open = fleet.now_s - since_s, _is_open(found, chosen, better)
    waits = "it waits for approval" if is_open else _waits_for(found, fleet, remaining, stood_s)
    running = chosen.sizing.flags
    message = (
        f"at the measured speed, {moved_flags(running, better.flags)} serves "
        f"{chosen.gain_of(better):.0%} more per replica than "
        f"the {moved_flags(better.flags, running)} that run; "
    )
    message += f"not yet: {waits}" if waits else "engines are replaced one by one"
    moved = Moved(since_s, Reason(code=MOVED, message=message))
    if waits and not (is_open and stood_s >= STABLE_S and not found.proposals):
        return moved
    return _carried_out(found, chosen, fleet, better, moved)


def _may_restart(found: Assessment, chosen: Chosen, fleet: Fleet) -> bool:
    is_ours = chosen.model.spec.scale_target is None and fleet.settings.mode == "full"
    return is_ours and found.is_acting and found.template is None


def _waits_for(
    found: Assessment, fleet: Fleet, remaining: RemainingBudget, stood_s: float
) -> str | None:
    if stood_s < STABLE_S:
        return f"the gain must last {format_s(STABLE_S)} first"
    if _has_moved_lately(found, fleet):
        return f"the last such rollout was less than {format_s(ROLLOUTS_APART_S)} ago"
    if held := _holds_write(found, fleet):
        return held
    if remaining.is_rolling:
        return "another rollout is in progress, in this namespace or of this kind"
    if lacks := _lacks(found, math.inf if remaining.gpus is None else remaining.gpus):
        return lacks
    return None if _is_calm(found, fleet) else "demand grows, or not all replicas are Ready"


def _holds_write(found: Assessment, fleet: Fleet) -> str | None:
    """Return why a template would not be written now, or not to last; None: it would."""
    writers = found.memory.writers
    # The status says what is done before the template does it.
    if found.waiting_kinds(fleet.now_s) & {WriteKind.TEMPLATE, WriteKind.STATUS}:
        return "the last write of the object failed, and is tried again later"
    if writers.drift and writers.drift.is_known and writers.acknowledged:
        return "a webhook or another controller changes Tonnage's template at each write"
    return None


def _lacks(found: Assessment, free_gpus: float) -> str | None:
    """Return what there is no room for while a pod is replaced; None: there is."""
    num_gpus = found.sizing.flags.parallelism.num_gpus if found.sizing else 0
    live, chosen = found.state.deployment, found.chosen
    grown = replaced_gpus(live, chosen) if live and chosen else 0
    if free_gpus < grown:
        return f"the plan's pods need {count_of(grown, 'GPU')} more than the GPU budget has free"
    pods = (chosen and chosen.model.spec.pods) or Pods()
    if pods.max_surge > 0:  # a new pod comes before the one that it replaces goes
        if free_gpus >= num_gpus:
            return None
        adopted = count_of(num_gpus, "GPU")
        return f"the first new pod needs {adopted}, the GPU budget has {max(0, free_gpus)} free"
    if live and live.replicas <= 1:
        return "pods.maxSurge 0 would remove the only replica before the new one starts"
    return None


def _is_calm(found: Assessment, fleet: Fleet) -> bool:
    deployment, memory = found.state.deployment, found.memory
    if deployment is None or found.decision is None:
        return False
    window_s = fleet.settings.scale_down_window_s
    overloaded_s = memory.goodput.overloaded_at_s
    was_overloaded = overloaded_s is not None and fleet.now_s - overloaded_s < window_s
    is_seen = found.traffics.metrics is Metrics.COMPLETE and found.blackout is None
    is_whole = is_seen and deployment.ready == deployment.total
    is_enough = found.decision.replicas == deployment.replicas and memory.writers.left is None
    return is_whole and is_enough and not was_overloaded


def without_rollout(memory: ObjectMemory, before: ObjectMemory | None) -> ObjectMemory:
    """Return the memory where the template was not written: a rollout did not begin.

    ``before``: as it was before this tick; None: a gain has not stood for long then.
    """
    if before is None or memory.posterior.slots_moved_at_s == before.posterior.slots_moved_at_s:
        return memory
    posterior = replace(memory.posterior, slots_moved_at_s=before.posterior.slots_moved_at_s)
    decided = replace(memory.decided, better_since_s=before.decided.better_since_s)
    return replace(memory, posterior=posterior, decided=decided)
