"""What became of the writes for one object, and what is remembered where that was not all. Pure."""

from dataclasses import replace

from tonnage.control.decide.retries import failed_again, is_waiting
from tonnage.control.decide.writers import with_written
from tonnage.control.input.memory import ObjectMemory, ReportMemory, WriteMemory
from tonnage.control.input.results import Cause, Failure, Fate, Results, WriteKind
from tonnage.control.input.state import Assessment
from tonnage.control.input.writers import Scaled
from tonnage.control.write.writes import Writes

SCALE, TEMPLATE, CHILDREN = WriteKind.SCALE, WriteKind.TEMPLATE, WriteKind.CHILDREN
STATUS, EVENTS = WriteKind.STATUS, WriteKind.EVENTS


def with_object_results(
    memory: ObjectMemory, found: Assessment, writes: Writes, results: Results, *, now_s: float
) -> ObjectMemory:
    """Return the memory of what was really written: what is not done is due again."""
    if results.keys() & {SCALE, TEMPLATE}:
        memory = with_written(
            memory,
            found,
            scaled=Scaled(writes.scale.replicas, fate(results, SCALE)) if writes.scale else None,
            template=fate(results, TEMPLATE) if writes.template is not None else None,
            now_s=now_s,
        )
    return replace(
        memory,
        reported=_report_memory(memory.reported, found.memory.reported, results),
        written=_write_memory(memory.written, found, writes, results, now_s=now_s),
    )


def fate(results: Results, kind: WriteKind) -> Fate:
    """Return whether a write was carried out."""
    return results[kind].fate if kind in results else Fate.DONE


def _report_memory(known: ReportMemory, before: ReportMemory, results: Results) -> ReportMemory:
    """Return what status and Events said, as far as they were written.

    An Event says of a decision or a rollout when that is carried out, not before.
    """
    if EVENTS in results:
        known = replace(known, bad=before.bad, posted=before.posted)
    if STATUS in results:
        known = replace(known, gauges_written_at_s=before.gauges_written_at_s)
    if results.keys() & {SCALE, TEMPLATE, EVENTS}:
        decision, roll = before.posted_decision, before.posted_roll
        known = replace(known, posted_decision=decision, posted_roll=roll)
    return known


def _write_memory(
    known: WriteMemory, found: Assessment, writes: Writes, results: Results, *, now_s: float
) -> WriteMemory:
    """Remember what failed, by kind, until it is tried again and done."""
    failures = {
        kind: each
        for kind, each in known.failures.items()
        if kind in results or _is_left(kind, each, writes, now_s)
    }
    for kind, result in results.items():
        if result.cause is not Cause.LATER and kind is not EVENTS:
            before = failures.get(kind)
            failures[kind] = failed_again(before, result, found.state.view, now_s=now_s)
    known = replace(known, failures=failures)
    if CHILDREN not in results:
        return known
    generation = found.memory.written.children_generation
    return replace(known, children_checked_at_s=None, children_generation=generation)


def _is_left(kind: WriteKind, failure: Failure, writes: Writes, now_s: float) -> bool:
    """Tell whether what failed was not among what is done now, and still matters.

    What is not asked for again when its wait is over was done after all, or is not wanted any more.
    """
    if kind is WriteKind.EDITS:
        return True
    if kind is SCALE or kind in writes.kinds:
        return False
    return failure.cause is Cause.NO_PATH or is_waiting(failure, writes.generation, now_s=now_s)
