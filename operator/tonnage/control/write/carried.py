"""What became of the writes for one object, and what is remembered where that was not all. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tonnage.control.decide.retries import next_retry
from tonnage.control.decide.rollout import without_rollout
from tonnage.control.input.contest import Fate, Scaled
from tonnage.control.input.state import Assessment, Memory, ObjectMemory, Retry
from tonnage.control.observe.rivals import with_corrections
from tonnage.control.write.writes import Writes
from tonnage.values import replace

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
    is_template_refused: bool = False
    """Of template and children it was the template."""
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
    if writes.status is not None:
        memory = replace(memory, status_retry=None)
    if _is_left(memory.retry, writes):
        return memory
    no_path = None if writes.check_children else memory.no_path
    return replace(memory, write_problem=None, write_fault=None, no_path=no_path, retry=None)


def _is_left(retry: Retry | None, writes: Writes) -> bool:
    """Tell whether what was refused of template or children was not among what was written."""
    if retry is None or retry.generation != writes.generation:
        return False
    is_of_this = retry.is_of_template and writes.template is not None
    return not (writes.check_children or is_of_this)


def carried_out(
    memory: ObjectMemory, found: Assessment, writes: Writes, carried: Carried, *, now_s: float
) -> ObjectMemory:
    """Return the memory of what was really written, where that was not all.

    What failed is due again. A server that is down for a moment is no reason to call for a person.
    """
    memory = with_corrections(
        memory,
        found,
        scaled=Scaled(writes.scale.replicas, carried.scale) if writes.scale else None,
        template=carried.template if writes.template is not None else None,
        now_s=now_s,
    )
    if carried.is_held:
        return _as_before(memory, found.memory)
    if carried.status is not Fate.DONE:
        memory = replace(memory, gauges_written_at_s=found.memory.gauges_written_at_s)
    if {carried.scale, carried.template} != {Fate.DONE}:
        memory = _untold(memory, found.memory)
    memory = _retried(memory, found, writes, carried, now_s=now_s)
    is_past_template = carried.template is Fate.DONE
    is_looked_at = writes.check_children and is_past_template and not carried.has_failed
    if is_looked_at or carried.no_path:
        memory = replace(memory, no_path=carried.no_path)
    if not carried.has_failed:
        is_over = is_past_template and not _is_left(found.memory.retry, writes)
        return replace(memory, write_problem=None, write_fault=None) if is_over else memory
    return replace(
        memory,
        children_checked_at_s=None,
        children_generation=None,
        write_problem=carried.refused or _lasting(memory, carried) or memory.write_problem,
        write_fault=carried.fault or memory.write_fault,
    )


def _retried(
    memory: ObjectMemory, found: Assessment, writes: Writes, carried: Carried, *, now_s: float
) -> ObjectMemory:
    """Remember when to try again what failed for what it is: template and status each by itself."""
    before, generation = found.memory, found.state.view.generation
    if carried.is_pointless:
        retry = next_retry(
            before.retry,
            generation,
            uid=memory.uid,
            is_of_template=carried.is_template_refused,
            now_s=now_s,
        )
        memory = replace(memory, retry=retry, children_checked_at_s=None)
    if carried.is_status_pointless:
        retry = next_retry(before.status_retry, generation, uid=memory.uid, now_s=now_s)
        return replace(memory, status_retry=retry)
    is_told = writes.status is not None and carried.status is Fate.DONE
    return replace(memory, status_retry=None) if is_told else memory


def _lasting(memory: ObjectMemory, carried: Carried) -> str | None:
    """Return what was said to a write that failed again and again, though it was no refusal."""
    is_lasting = memory.retry is not None and memory.retry.times >= LASTING
    return carried.failed if is_lasting else None


def _as_before(memory: ObjectMemory, before: ObjectMemory) -> ObjectMemory:
    """Remember neither status, Events nor children as written, where there was no room for them."""
    return replace(
        _untold(memory, before),
        told=before.told,
        posted=before.posted,
        children_checked_at_s=before.children_checked_at_s,
        children_generation=before.children_generation,
        gauges_written_at_s=before.gauges_written_at_s,
    )


def _untold(memory: ObjectMemory, before: ObjectMemory) -> ObjectMemory:
    """Tell of a decision or a rollout when it is carried out, not now."""
    return replace(memory, told_decision=before.told_decision, told_roll=before.told_roll)
