"""One tick as a function of values, in six steps.

1. Recall what is known of each object, at first sight from its status and what was stored.
2. Measure the traffic of each object and size it, in turn by namespace.
3. Look for blackouts: objects that lost their metrics at once.
4. Decide replicas and template, in turn by priority, within the GPU budget.
5. Learn from what engines report.
6. Report status, conditions and Events, and say what is to be written.

The operator runs it in a cluster, a replay in a model of one.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType

from tonnage.control.assess import decide_object, size_object
from tonnage.control.decide.blackout import blackouts, loss_of
from tonnage.control.decide.budget import (
    RemainingBudget,
    by_priority,
    free_gpus,
    growth_gpus,
    uncounted_by,
    uncounted_gpus,
)
from tonnage.control.decide.rollout import EVERYWHERE, is_rolling, reach, without_rollout
from tonnage.control.input.finding import Fault, assessment_with_bug, bug_message, of_each
from tonnage.control.input.memory import (
    DecisionMemory,
    DemandMemory,
    GoodputMemory,
    Memory,
    ObjectMemory,
)
from tonnage.control.input.sizing_cache import SizingCache
from tonnage.control.input.state import Assessment, Fleet, ModelState
from tonnage.control.input.writers import Fate, Results, WriteKind
from tonnage.control.learn.believed import Lesson, learn_from, observation
from tonnage.control.observe.ownership import may_act, own_only, with_own_record
from tonnage.control.report.status import memory_from_status, report
from tonnage.control.size.fair_order import changed_before_others, search_in_fair_order
from tonnage.control.write.writes import Writes, fate, with_object_results, writes_for
from tonnage.estimate.budget import Ledger, with_past
from tonnage.estimate.forecast import NOTHING_KEPT, History
from tonnage.estimate.posterior import ObjectPosterior, not_to_come
from tonnage.sizing.plan import OnSearch, keep_searching


@dataclass(frozen=True, slots=True, kw_only=True)
class TickResult:
    """What a tick found, what it wants written, and what the next one is to remember."""

    found: tuple[Assessment, ...]
    writes: tuple[Writes, ...]
    memory: Memory
    faults: tuple[Fault, ...]
    is_searching: bool
    """Searches were begun, and some did not end: another tick goes on with them."""


def tick(
    fleet: Fleet,
    memory: Memory,
    *,
    settled: Mapping[str, Assessment] = MappingProxyType({}),
    on_search: OnSearch = keep_searching,
    on_changed: OnSearch | None = None,
) -> TickResult:
    """Return the outcome of a tick. A bug in one object's part must not stop the others.

    ``settled``: what the last tick found, by UID, where engines have said nothing since: an object
    about which nothing changed is as it was. ``on_search``: called before each run of the engine
    model, and before each search; ``on_changed``: instead, for changed specs while others wait, as
    what comes first must leave time. Where one raises SearchAbandonedError, the object keeps what
    runs until the search ends in a later tick.
    """
    asker = SizingCache(memory.answers, on_search)
    if fleet.now_s < memory.at_s:
        settled, memory = {}, replace(memory, learned_at_s={})
    found = assess_fleet(fleet, memory, asker, settled, on_changed)
    decided = [each for each in found if settled.get(each.state.view.uid) is not each]
    is_whole = len(decided) == len(found)
    bugs = [
        Fault(key=each.state.view.key, consequence="internal error", error=error)
        for each in decided
        if (error := each.state.bug)
    ]
    lesson, unlearned = _learn(found, fleet, memory)
    faults = {each.key: bug_message(each.error) for each in unlearned}
    decided = [
        replace(each, fault=faults[key]) if (key := each.state.view.key) in faults else each
        for each in decided
    ]
    written, unwritten = _write(decided, replace(fleet, calibrations=lesson.known))
    remembered = {uid: after for uid, (_, after) in written.items()}
    return TickResult(
        found=found,
        writes=tuple(writes for writes, _ in written.values()),
        memory=Memory(
            objects={each.state.view.uid: each.memory for each in found} | remembered,
            calibrations=lesson.known,
            learned_at_s=lesson.asked_at_s,
            at_s=fleet.now_s,
            answers=asker.all_answers if is_whole else {**memory.answers, **asker.answers},
        ),
        faults=(*bugs, *unlearned, *unwritten),
        is_searching=asker.num_searched > 0
        and any(each.memory.sizing.waiting_since_s is not None for each in found),
    )


def assess_fleet(
    fleet: Fleet,
    memory: Memory,
    asker: SizingCache | None = None,
    settled: Mapping[str, Assessment] = MappingProxyType({}),
    on_changed: OnSearch | None = None,
) -> tuple[Assessment, ...]:
    """Take every object through the steps up to a decision."""
    asker = asker or SizingCache()
    on_search = asker.on_search
    may_adopt = fleet.settings.mode == "full"
    owned = (own_only(each, may_adopt=may_adopt) for each in fleet.models)
    whole = (with_own_record(each, memory.objects.get(each.view.uid)) for each in owned)
    fleet, known = _recall(replace(fleet, models=tuple(whole)), memory)
    states = {state.view.uid: state for state in fleet.models}
    same = {
        uid: each
        for uid, each in settled.items()
        if each.state == states.get(uid) and uid not in fleet.pasts
    }

    bounded = changed_before_others(fleet.models, known) if on_changed else frozenset()

    def sized(state: ModelState) -> Assessment:
        own = known[state.view.uid]
        asker.on_search = on_changed if on_changed and own.uid in bounded else on_search
        if state.bug:
            return assessment_with_bug(state, own, state.bug)
        return _or_bug(partial(size_object, state, fleet, own, asker), state, own)

    sizings = {
        uid: same.get(uid) or sized(state)
        for state in search_in_fair_order(fleet.models, known)
        if (uid := state.view.uid)
    }
    asker.on_search = on_search
    return _decided_in_turn(_with_blackouts(sizings, fleet) | same, fleet, known, asker, same)


def _recall(fleet: Fleet, memory: Memory) -> tuple[Fleet, Mapping[str, ObjectMemory]]:
    """Return what is remembered of each object; of one that cannot be recalled the bug is noted.

    Where the clock was set back all are watched anew, beside the same writers.
    """
    known, models = dict[str, ObjectMemory](), list[ModelState]()
    for state in fleet.models:
        uid = state.view.uid
        try:
            before = memory.objects.get(uid)
            seen = before or _first_sight(state, fleet)
            if before and fleet.now_s < memory.at_s:
                seen = replace(_first_sight(state, fleet), writers=seen.writers)
            if past := fleet.pasts.get(uid):
                ledger = with_past(seen.goodput.ledger, past.ledger, now_s=fleet.windows_end_s)
                goodput = replace(seen.goodput, ledger=ledger)
                seen = replace(seen, goodput=goodput, demand=replace(seen.demand, past=past))
            known[uid] = seen
        except Exception as error:
            known[uid] = ObjectMemory(uid=uid, decided=DecisionMemory(since_s=fleet.now_s))
            models.append(replace(state, bug=error))
        else:
            models.append(state)
    return replace(fleet, models=tuple(models)), known


def _first_sight(state: ModelState, fleet: Fleet) -> ObjectMemory:
    stored = fleet.calibrations.objects.get(state.view.uid, ObjectPosterior())
    learned = not_to_come(stored, fleet.now_s)
    since_s = fleet.windows_end_s if state.view.uid in fleet.past_awaited else 0.0
    return replace(
        memory_from_status(state.view, now_s=fleet.now_s),
        posterior=learned,
        demand=DemandMemory(history=History(kept=learned.demand or NOTHING_KEPT)),
        # What waits may be of an overload, or of a start, that nobody remembers.
        goodput=GoodputMemory(ledger=Ledger(since_s=since_s), drained_by_s=math.inf),
    )


def _learn(found: Sequence[Assessment], fleet: Fleet, memory: Memory) -> tuple[Lesson, list[Fault]]:
    """Return what engines taught, with what is known of each object, and the faults met."""
    outcomes, faults = of_each(found, observation, "nothing learned")
    lesson = learn_from(
        [each for each in outcomes.values() if each], fleet.calibrations, memory.learned_at_s, fleet
    )
    learned = {each.state.view.uid: each.memory.posterior for each in found}
    known = {uid: each for uid, each in learned.items() if each != ObjectPosterior()}
    objects = {**lesson.known.objects, **known}
    lesson = lesson._replace(known=replace(lesson.known, objects=objects))
    for each in found:
        heard = outcomes.get(each.state.view.uid)
        scopes = (heard.speed, heard.memory) if heard else ()
        if error := next(filter(None, map(lesson.errors.get, scopes)), None):
            key = each.state.view.key
            faults.append(Fault(key=key, consequence="nothing learned", error=error))
    return lesson, faults


def _write(
    found: Iterable[Assessment], fleet: Fleet
) -> tuple[dict[str, tuple[Writes, ObjectMemory]], list[Fault]]:
    """Return {UID: (writes, memory)}, and the faults met: of an object with one, its status tells.

    Where not even that status can be made, nothing is written for it.
    """

    def object_writes(each: Assessment) -> tuple[Writes, ObjectMemory]:
        return writes_for(each, report(each, fleet), fleet)

    known = list(found)
    written, faults = of_each(known, object_writes, "nothing written")
    errors = {fault.key: fault.error for fault in faults}
    frozen = [
        assessment_with_bug(each.state, each.memory, errors[each.state.view.key])
        for each in known
        if each.state.view.key in errors
    ]
    return written | of_each(frozen, object_writes, "no status written")[0], faults


def with_results(
    outcome: TickResult, results: Mapping[str, Results], *, before: Memory, now_s: float
) -> Memory:
    """Return what is to be remembered where not all was written; ``results``: by UID.

    ``before``: what was remembered before this tick.
    """
    found = {each.state.view.uid: each for each in outcome.found}
    objects = dict(outcome.memory.objects)
    for writes in outcome.writes:
        uid, outcomes = writes.uid, results.get(writes.uid, {})
        if outcomes or objects[uid].written.failures:
            known = with_object_results(objects[uid], found[uid], writes, outcomes, now_s=now_s)
            is_left = fate(outcomes, WriteKind.TEMPLATE) is Fate.NOT_APPLIED
            objects[uid] = without_rollout(known, before.objects.get(uid)) if is_left else known
    return replace(outcome.memory, objects=objects)


def settled_in(
    outcome: TickResult, results: Mapping[str, Results], memory: Memory
) -> dict[str, Assessment]:
    """Return by UID what stays as it was found while nothing changes: all it asked for is done.

    Not what waits for a search or for GPUs, which others may free. ``memory``: as the tick left it.
    """
    faulty = {fault.key for fault in outcome.faults}
    return {
        uid: replace(each, memory=known)
        for each in outcome.found
        if (uid := each.state.view.uid) not in results
        and (known := memory.objects[uid]).decided.short_since_s is None
        and each.refusal is None
        and each.pending is None
        and each.state.view.key not in faulty
    }


def _with_blackouts(sizings: Mapping[str, Assessment], fleet: Fleet) -> dict[str, Assessment]:
    """Say what was lost at once around each object; a bug in that is noted on the object."""
    losses, faults = of_each(
        sizings.values(), lambda each: loss_of(each, fleet.now_s), "not watched"
    )
    dark = blackouts(losses.values())
    errors = {fault.key: fault.error for fault in faults}

    def seen(each: Assessment) -> Assessment:
        if error := errors.get(each.state.view.key):
            return assessment_with_bug(each.state, each.memory, error)
        blackout = dark.get(each.state.view.namespace)
        return replace(each, blackout=blackout) if blackout else each

    return {uid: seen(each) for uid, each in sizings.items()}


def _decided_in_turn(
    sizings: Mapping[str, Assessment],
    fleet: Fleet,
    known: Mapping[str, ObjectMemory],
    asker: SizingCache,
    same: Mapping[str, Assessment],
) -> tuple[Assessment, ...]:
    """Decide each object but the ``same``; what one grows by, the next in turn cannot have."""
    found = dict[str, Assessment]()
    free, uncounted = free_gpus(fleet), uncounted_gpus(fleet)
    rolling = {reach(each, fleet) for each in sizings.values() if is_rolling(each, fleet)}
    for state in by_priority(fleet.models, known):
        uid = state.view.uid
        not_counted = uncounted or uncounted_by(state, fleet)
        has_to_wait = not rolling.isdisjoint({EVERYWHERE, state.view.namespace})
        remaining = RemainingBudget(gpus=free, uncounted=not_counted, is_rolling=has_to_wait)
        each = sizings[uid]
        if uid not in same:
            decide = partial(decide_object, each, fleet, asker, remaining)
            each = _or_bug(decide, each.state, each.memory)
        if each.changes and may_act(each, fleet) and not each.memory.written.problem:
            rolling.add(reach(each, fleet))
        if free is not None:
            free -= growth_gpus(each, fleet)
        found[uid] = each
    return tuple(found[state.view.uid] for state in fleet.models)


def _or_bug(step: Callable[[], Assessment], state: ModelState, known: ObjectMemory) -> Assessment:
    """Take a step for one object; a bug in that must not stop the others."""
    try:
        return step()
    except Exception as error:
        return assessment_with_bug(state, known, error)
