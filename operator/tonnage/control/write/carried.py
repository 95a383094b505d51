"""What became of the writes for one object, and what is remembered where that was not all. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from tonnage.control.decide.retries import next_retry
from tonnage.control.decide.rollout import without_rollout
from tonnage.control.decide.writers import with_written
from tonnage.control.input.memory import (
    Memory,
    ObjectMemory,
    ReportMemory,
    Retry,
    WriteMemory,
)
from tonnage.control.input.state import Assessment
from tonnage.control.input.writers import Fate, Scaled
from tonnage.control.write.writes import Writes

LASTING: Final = 3
"""Failures in a row of a template or a child, after which a person is called for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """What became of the writes for one object."""

    scale: Fate = Fate.DONE
    template: Fate = Fate.DONE
    status: Fate = Fate.DONE
    has_failed: bool = False
    """Something did, in whichever part: another number that stood there is no failure."""
    refused: str | None = None
    """What the API server said, if it will say so again."""
    fault: str | None = None
    """A bug of ours that one of them met."""
    no_path: str | None = None
    """Why no request comes to the replicas."""
    is_pointless: bool = False
    """Template or children failed for what they are: the next attempt can wait."""
    failed: str | None = None
    """What was said to that."""
    is_status_pointless: bool = False
    """The same of the status."""
    status_refused: str | None = None
    """What the API server said to that, if it will say so again."""
    is_template_refused: bool = False
    """Of template and children it was the template."""
    is_untold: bool = False
    """There was no time for its Events, or it changed meanwhile: they are due again."""
    is_held: bool = False
    """There was no room for it: replicas apart nothing was tried."""


def with_fates(
    memory: Memory,
    found: Mapping[str, Assessment],
    written: Mapping[str, tuple[Writes, Carried | None]],
    *,
    before: Memory,
    now_s: float,
) -> Memory:
    """Return the memory of what was really written; all by UID. No fate: all of it was.

    ``before``: what was remembered before this tick.
    """
    objects = dict(memory.objects)
    for uid, (writes, fate) in written.items():
        if fate is None:
            objects[uid] = _all_done(objects[uid], writes)
            continue
        known = carried_out(objects[uid], found[uid], writes, fate, now_s=now_s)
        is_applied = fate.template is not Fate.UNDONE
        objects[uid] = known if is_applied else without_rollout(known, before.objects.get(uid))
    return replace(memory, objects=objects)


def _all_done(memory: ObjectMemory, writes: Writes) -> ObjectMemory:
    """Forget what was refused, unless that was not tried again: it is not over yet."""
    known = memory.written
    if not known.has_failed:
        return memory
    if writes.status is not None:
        known = replace(known, status_retry=None)
    if not _is_left(known.retry, writes):
        no_path = None if writes.check_children else known.no_path
        known = replace(known, problem=None, fault=None, no_path=no_path, retry=None)
    return replace(memory, written=known)


def _is_left(retry: Retry | None, writes: Writes) -> bool:
    """Tell whether what was refused of template or children was not among what was written."""
    if retry is None or retry.generation != writes.generation:
        return False
    is_of_this = retry.is_of_template and (writes.template is not None or bool(writes.roles))
    return not (writes.check_children or is_of_this)


def carried_out(
    memory: ObjectMemory, found: Assessment, writes: Writes, carried: Carried, *, now_s: float
) -> ObjectMemory:
    """Return the memory of what was really written, where that was not all.

    What failed is due again. A server that is down for a moment is no reason to call for a person.
    """
    memory = with_written(
        memory,
        found,
        scaled=Scaled(writes.scale.replicas, carried.scale) if writes.scale else None,
        template=carried.template if writes.template is not None else None,
        now_s=now_s,
    )
    return replace(
        memory,
        reported=_report_memory(memory.reported, found.memory.reported, carried),
        written=_write_memory(memory, found, writes, carried, now_s=now_s),
    )


def _report_memory(known: ReportMemory, before: ReportMemory, carried: Carried) -> ReportMemory:
    """Return what status and Events said, as far as they were written.

    An Event says of a decision or a rollout when that is carried out, not before.
    """
    if carried.is_held or carried.is_untold:
        known = replace(known, bad=before.bad, posted=before.posted)
    if carried.is_held or carried.status is not Fate.DONE:
        known = replace(known, gauges_written_at_s=before.gauges_written_at_s)
    is_carried_out = {carried.scale, carried.template} == {Fate.DONE}
    if carried.is_held or carried.is_untold or not is_carried_out:
        decision, roll = before.posted_decision, before.posted_roll
        known = replace(known, posted_decision=decision, posted_roll=roll)
    return known


def _write_memory(
    memory: ObjectMemory, found: Assessment, writes: Writes, carried: Carried, *, now_s: float
) -> WriteMemory:
    known, before = memory.written, found.memory.written
    if carried.is_held:  # children were not looked at
        checked_at_s, generation = before.children_checked_at_s, before.children_generation
        return replace(known, children_checked_at_s=checked_at_s, children_generation=generation)
    known = _with_retries(known, found, writes, carried, now_s=now_s)
    is_past_template = carried.template is Fate.DONE
    is_looked_at = writes.check_children and is_past_template and not carried.has_failed
    if is_looked_at or carried.no_path:
        known = replace(known, no_path=carried.no_path)
    if not carried.has_failed:
        is_over = is_past_template and not _is_left(before.retry, writes)
        return replace(known, problem=None, fault=None) if is_over else known
    return replace(
        known,
        children_checked_at_s=None,
        children_generation=None,
        problem=carried.refused or _lasting(known, carried) or known.problem,
        fault=carried.fault or known.fault,
    )


def _with_retries(
    known: WriteMemory, found: Assessment, writes: Writes, carried: Carried, *, now_s: float
) -> WriteMemory:
    """Remember when to try again what failed for what it is: template and status each by itself."""
    before, view = found.memory.written, found.state.view
    again = partial(next_retry, generation=view.generation, uid=view.uid, now_s=now_s)
    if carried.is_pointless:
        retry = again(before.retry, is_of_template=carried.is_template_refused)
        known = replace(known, retry=retry, children_checked_at_s=None)
    if carried.is_status_pointless:
        retry = replace(again(before.status_retry), status_problem=carried.status_refused)
        return replace(known, status_retry=retry)
    is_said = writes.status is not None and carried.status is Fate.DONE
    return replace(known, status_retry=None) if is_said else known


def _lasting(known: WriteMemory, carried: Carried) -> str | None:
    """Return what was said to a write that failed again and again, though it was no refusal."""
    is_lasting = known.retry is not None and known.retry.times >= LASTING
    return carried.failed if is_lasting else None
