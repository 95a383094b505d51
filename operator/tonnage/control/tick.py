"""One tick as a function of values, in six steps.

1. Recall what is known of each object, at first sight from its status and what was stored.
2. Measure the traffic of each object and size it, in turn by namespace.
3. Look for blackouts: objects that lost their metrics at once.
4. Decide replicas and template, in turn by priority, within the GPU budget.
5. Learn from what engines report.
6. Report status, conditions and Events, and say what is to be written.

The operator runs it in a cluster, a replay in a model of one.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

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
from tonnage.control.decide.outlook import recalled_demand
from tonnage.control.decide.rollout import (
    EVERYWHERE,
    is_rolling,
    reach,
    without_rollout,
)
from tonnage.control.input.finding import Fault, assessment_with_bug, of_each, with_faults
from tonnage.control.input.memory import DecisionMemory, GoodputMemory, Memory, ObjectMemory
from tonnage.control.input.results import Fate, Results, WriteKind
from tonnage.control.input.sizing_cache import SizingCache
from tonnage.control.input.state import Assessment, Fleet, ModelState
from tonnage.control.learn.learning import Lesson, Observation, learn_from, observation
from tonnage.control.observe.ownership import as_owned, may_act
from tonnage.control.observe.queue import with_settled_queue
from tonnage.control.report.status import memory_from_status, report
from tonnage.control.size.fair_order import search_in_fair_order
from tonnage.control.write.results import fate, with_object_results
from tonnage.control.write.writes import Writes, writes_for
from tonnage.estimate.budget import Ledger, with_past
from tonnage.estimate.past import Past
from tonnage.estimate.posterior import ObjectPosterior, not_to_come
from tonnage.sizing.plan import OnSearch, keep_searching


@dataclass(frozen=True, slots=True, kw_only=True)
class TickResult:
    """What a tick found, what it wants written, and what the next one is to remember."""

    found: tuple[Assessment, ...]
    writes: tuple[Writes, ...]
    memory: Memory
    faults: tuple[Fault, ...]
    num_asked: int
    """Questions to sizing."""
    num_searched: int
    """Those of them that the last tick had not answered."""


def tick(
    fleet: Fleet,
    memory: Memory,
    *,
    on_search: OnSearch = keep_searching,
    begin: OnSearch = keep_searching,
) -> TickResult:
    """Return the outcome of a tick. A bug in one object's part must not stop the others.

    ``on_search``: called before each run of the engine model, and before each search; ``begin``:
    before each search alone. Where one raises SearchAbandonedError, the object keeps what runs
    until the search ends in a later tick.
    """
    asker = SizingCache(memory.answers, on_search, begin)
    found = assess_fleet(fleet, memory.objects, asker)
    lesson, unlearned = _learn(found, fleet, memory)
    written, unwritten = _write(
        with_faults(found, unlearned), replace(fleet, calibrations=lesson.known)
    )
    remembered = {uid: after for uid, (_, after) in written.items()}
    return TickResult(
        found=found,
        writes=tuple(writes for writes, _ in written.values()),
        memory=Memory(
            objects={each.state.view.uid: each.memory for each in found} | remembered,
            calibrations=lesson.known,
            learned_at_s=lesson.asked_at_s,
            answers=asker.all_answers,
        ),
        faults=(*_decision_faults(found), *unlearned, *unwritten),
        num_asked=asker.num_asked,
        num_searched=asker.num_searched,
    )


def assess_fleet(
    fleet: Fleet, objects: Mapping[str, ObjectMemory], asker: SizingCache | None = None
) -> tuple[Assessment, ...]:
    """Take every object through the steps up to a decision; ``objects``: remembered, by UID."""
    asker = asker or SizingCache()
    owned = as_owned(fleet)
    settled = (with_settled_queue(each, objects.get(each.view.uid)) for each in owned.models)
    owned = replace(owned, models=tuple(settled))
    fleet, known = _recall(owned, objects)
    sizings = {
        state.view.uid: _size(state, fleet, known[state.view.uid], asker)
        for state in search_in_fair_order(fleet.models, known)
    }
    sizings = _with_blackouts(sizings, fleet)
    return _decided_in_turn(sizings, fleet, known, asker)


def _recall(
    fleet: Fleet, objects: Mapping[str, ObjectMemory]
) -> tuple[Fleet, Mapping[str, ObjectMemory]]:
    """Return what is remembered of each object; of one that cannot be recalled the bug is noted.

    Where the clock was set back an object is watched anew, as after a restart, beside the same
    writers.
    """
    known, models = dict[str, ObjectMemory](), list[ModelState]()
    for state in fleet.models:
        uid = state.view.uid
        try:
            before = objects.get(uid)
            seen = before or _first_sight(state, fleet)
            if seen.is_ahead(fleet.now_s):
                seen = replace(_first_sight(state, fleet), writers=seen.writers)
            known[uid] = _with_past(seen, fleet.pasts.get(uid), fleet)
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
        demand=recalled_demand(learned),
        goodput=GoodputMemory(ledger=Ledger(since_s=since_s)),
    )


def _with_past(memory: ObjectMemory, past: Past | None, fleet: Fleet) -> ObjectMemory:
    """Take over what Prometheus says of before this process."""
    if past is None:
        return memory
    ledger = with_past(memory.goodput.ledger, past.ledger, now_s=fleet.windows_end_s)
    return replace(
        memory,
        goodput=replace(memory.goodput, ledger=ledger),
        demand=replace(memory.demand, past=past),
    )


def _decision_faults(found: Iterable[Assessment]) -> Iterator[Fault]:
    """Yield the faults of the objects that a bug kept from being decided."""
    for each in found:
        if error := each.state.bug:
            yield Fault(key=each.state.view.key, consequence="internal error", error=error)


def _learn(found: Sequence[Assessment], fleet: Fleet, memory: Memory) -> tuple[Lesson, list[Fault]]:
    """Return what engines taught, with what is known of each object, and the faults met."""
    outcomes, faults = of_each(found, observation, "nothing learned")
    lesson = learn_from(
        [each for each in outcomes.values() if each], fleet.calibrations, memory.learned_at_s, fleet
    )
    objects = {**lesson.known.objects, **_of_objects(found)}
    lesson = lesson._replace(known=replace(lesson.known, objects=objects))
    return lesson, [*faults, *_learning_faults(found, outcomes, lesson)]


def _learning_faults(
    found: Iterable[Assessment], outcomes: Mapping[str, Observation | None], lesson: Lesson
) -> list[Fault]:
    """Return the faults of the objects from whose engines nothing could be learned."""
    faults = list[Fault]()
    for each in found:
        heard = outcomes.get(each.state.view.uid)
        scopes = (heard.speed, heard.memory) if heard else ()
        if error := next(filter(None, map(lesson.errors.get, scopes)), None):
            key = each.state.view.key
            faults.append(Fault(key=key, consequence="nothing learned", error=error))
    return faults


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


def _of_objects(found: Iterable[Assessment]) -> dict[str, ObjectPosterior]:
    """Return {UID: posterior} of the objects about which anything was learned."""
    known = {each.state.view.uid: each.memory.posterior for each in found}
    nothing = ObjectPosterior()
    return {uid: posterior for uid, posterior in known.items() if posterior != nothing}


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
) -> tuple[Assessment, ...]:
    """Decide each object; what one grows by, the next in turn cannot have."""
    found = dict[str, Assessment]()
    free, uncounted = free_gpus(fleet), uncounted_gpus(fleet)
    rolling = {reach(each, fleet) for each in sizings.values() if is_rolling(each, fleet)}
    for state in by_priority(fleet.models, known):
        uid = state.view.uid
        not_counted = uncounted or uncounted_by(state, fleet)
        has_to_wait = not rolling.isdisjoint({EVERYWHERE, state.view.namespace})
        remaining = RemainingBudget(gpus=free, uncounted=not_counted, is_rolling=has_to_wait)
        each = _decide(sizings[uid], fleet, asker, remaining)
        if _begins_to_roll(each, fleet):
            rolling.add(reach(each, fleet))
        if free is not None:
            free -= growth_gpus(each, fleet)
        found[uid] = each
    return tuple(found[state.view.uid] for state in fleet.models)


def _begins_to_roll(found: Assessment, fleet: Fleet) -> bool:
    """Tell whether pods are about to be replaced: not where nothing is written, or was refused."""
    return bool(found.changes) and may_act(found, fleet) and not found.memory.written.problem


def _size(state: ModelState, fleet: Fleet, known: ObjectMemory, asker: SizingCache) -> Assessment:
    """Size one object; a bug in that must not stop the others."""
    if state.bug:
        return assessment_with_bug(state, known, state.bug)
    try:
        return size_object(state, fleet, known, asker)
    except Exception as error:
        return assessment_with_bug(state, known, error)


def _decide(
    found: Assessment, fleet: Fleet, asker: SizingCache, remaining: RemainingBudget
) -> Assessment:
    """Decide one object; a bug in that must not stop the others."""
    try:
        return decide_object(found, fleet, asker, remaining)
    except Exception as error:
        return assessment_with_bug(found.state, found.memory, error)
