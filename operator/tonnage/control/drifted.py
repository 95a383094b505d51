"""What stands in a Deployment's pod template that we did not put there, and who did. Pure.

Compared is with what we would write for what runs. That tells of edits only where it is what we did
write: its digest stands on the Deployment. What another version of Tonnage wrote is not judged.
"""

from tonnage.control.contest import NOBODY
from tonnage.control.draining import drain_to_write_s
from tonnage.control.finding import Finding
from tonnage.control.state import Assessment, Chosen, Departed, Fleet, ModelState, ObjectMemory
from tonnage.control.template import MOST_NAMED, roll_changes
from tonnage.manifests.changes import Change
from tonnage.manifests.children import deployment, site_of, template_digest
from tonnage.values import replace


def with_departed(
    memory: ObjectMemory, state: ModelState, chosen: Chosen, fleet: Fleet
) -> ObjectMemory:
    """Remember how the template that stands departs from ours; found anew when it is another."""
    live = state.deployment
    if live is None or chosen.must_apply or chosen.model.spec.scale_target:
        return replace(memory, departed=None)
    seen = (live.uid, live.template_digest, live.rendered, live.digest, str(chosen.sizing.flags))
    if memory.departed is not None and memory.departed.seen == seen:
        return memory
    site = site_of(fleet.settings, has_pod_monitors=fleet.has_pod_monitors)
    drain_s = drain_to_write_s(state, chosen)
    ours = deployment(chosen.model, chosen.sizing, site, drain_s=drain_s)
    is_known = live.rendered == template_digest(ours)
    changes = roll_changes(live, ours) if is_known else ()
    return replace(memory, departed=Departed(seen=seen, is_known=is_known, changes=changes))


def drifted(found: Assessment) -> Finding:
    """Present while the template is ours to judge.

    As it was told while the plan that it is judged by waits for its search, as conditions of the
    plan are: a process that has just started would take it away, and bring it back.
    """
    kind, departed, live = "Drifted", found.memory.departed, found.state.deployment
    told = found.memory.conditions.get(kind)
    if departed is None and live is not None and found.pending and told is not None:
        return Finding(kind, told.status, told.reason, told.message)
    if departed is None or live is None:
        return Finding(kind, None, "", "")
    if not departed.is_known:
        why = "another version or other settings of Tonnage wrote the template: it is not judged"
        return Finding(kind, "Unknown", "WrittenOtherwise", why)
    if not departed.changes:
        return Finding(kind, "False", "AsWritten", "the pod template is as Tonnage wrote it")
    who = " and ".join(sorted(live.template_managers)) or NOBODY
    return Finding(kind, "True", "TemplateEdited", f"{who} wrote {_written(departed.changes)}")


def _written(changes: tuple[Change, ...]) -> str:
    named = "; ".join(
        f"{each.field} {each.before or 'away'}, ours: {each.after or 'none'}"
        for each in changes[:MOST_NAMED]
    )
    more = f"; and {len(changes) - MOST_NAMED} more" if len(changes) > MOST_NAMED else ""
    return f"{named}{more}"
