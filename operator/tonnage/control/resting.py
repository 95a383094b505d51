"""Decisions that left nothing to do, and which of them stand as long as nothing is otherwise. Pure.

An object that was decided, wants what runs, waits for nothing and writes nothing would come to the
same in the next tick, and to nothing else, as long as what it was decided on is the same. It rests:
it is not decided anew, and what it was found to be stands. What its engines' pages say is noted
each minute (``looks``), its need when it wakes. Whatever is not sure is decided:

- anything but the very same of what the cluster says of it, or of what failed in Prometheus;
- any figure of any of its engines that differs (``alike``) from what was decided on, not from the
  last tick: nothing creeps;
- figures that are not fresh, or constants learned since that a plan would be asked with;
- what has come to a time of its own. Each minute what time alone moves is counted (``looks``), and
  where that comes to another need the object is decided; in any case after ``LONGEST_S``. Known
  events are looked at in every tick, children when it is time.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

from tonnage.control.alike import are_alike, say_the_same
from tonnage.control.decide.needed import as_needed_last
from tonnage.control.decide.retries import place_of
from tonnage.control.decide.rollout import stands_at_s
from tonnage.control.input.state import Assessment, Fleet, Memory, ModelState, ObjectMemory, Round
from tonnage.control.learn.believed import is_still_asked
from tonnage.control.learn.learning import Observation
from tonnage.control.level import has_events, is_at_rest, may_wait
from tonnage.control.looks import looked_at
from tonnage.control.observe.pages import held_s, page_now
from tonnage.control.observe.tracks import with_pages
from tonnage.control.write.carried import Carried
from tonnage.control.write.writes import Writes, check_of_children
from tonnage.estimate.calibration import Beliefs, memory_key
from tonnage.estimate.demand import is_of_late
from tonnage.estimate.metrics import WINDOWS
from tonnage.estimate.posterior import MemoryReport, SpeedPosterior
from tonnage.estimate.samples import EngineSamples
from tonnage.estimate.ways import NOTE_S
from tonnage.values import replace

LOOK_S: Final = NOTE_S
"""Between two times at which what time alone moves is counted."""
LONGEST_S: Final = 600.0
"""After which an object is decided whatever else: constants age, and gauges waver."""
MANY_WINDOWS: Final = 10
"""Of evidence, after which another one each ``LONGEST_S`` is enough; before, one each minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """What of the fleet an object without a fault of its own is decided on."""

    settings: object
    gpus: object
    load_tests: object
    has_pod_monitors: bool
    state_problem: object
    is_blind: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """A decision that left nothing to do, and what it stands on."""

    found: Assessment
    """With the memory of the object after it."""
    observation: Observation | None
    """What its engines taught."""
    state: ModelState
    """As it was observed."""
    around: Around
    speed: SpeedPosterior | None
    """Learned in its namespace, or by others."""
    cache_key: str | None
    cache: MemoryReport | None
    """Learned of the memory of its engines."""
    decided_at_s: float
    look_at_s: float
    """When what time alone moves is counted."""
    decide_at_s: float
    """When it is decided anew, whatever else."""
    waiting: tuple[Writes, ObjectMemory] | None = None
    """What there was no room to write, and what is remembered once it is written."""

    @property
    def uid(self) -> str:
        return self.state.view.uid


def undisturbed(fleet: Fleet, memory: Memory) -> Mapping[str, Rest]:
    """Return the decisions that stand, by UID."""
    if not memory.resting:
        return {}
    around, learned, failing = _around(fleet), _Learned(fleet), _failing(fleet)
    stand = dict[str, Rest]()
    for state in fleet.models:
        uid, rest = state.view.uid, memory.resting.get(state.view.uid)
        if (
            rest is not None
            and rest.decided_at_s <= fleet.now_s < rest.decide_at_s
            and rest.around == around
            and state.view.namespace not in failing
            and _is_as_it_was(state, rest, fleet)
            and (known := learned.standing(rest, fleet))
            and (looked := _looked_at(known, state, memory.objects[uid], fleet))
        ):
            stand[uid] = looked
    return stand


def _looked_at(rest: Rest, state: ModelState, memory: ObjectMemory, fleet: Fleet) -> Rest | None:
    """Return a decision that stands, with what a minute adds where one has passed."""
    if fleet.now_s < rest.look_at_s:
        return rest
    found = looked_at(rest.found, with_pages(memory, state, fleet), fleet)
    if found is None:
        return None
    next_s = fleet.now_s if has_events(found) else fleet.now_s + LOOK_S
    return replace(rest, found=found, look_at_s=next_s)


def remembered_at_rest(rest: Rest, before: Memory) -> ObjectMemory:
    """Return what is remembered of an object that rests.

    ``before``: what was remembered before this tick, in which it may have been looked at.
    """
    if rest.waiting:
        return rest.waiting[1]
    is_looked_at = rest.found is not before.resting[rest.uid].found
    return rest.found.memory if is_looked_at else before.objects[rest.uid]


def woken(memory: Memory, stand: Mapping[str, Rest]) -> Mapping[str, ObjectMemory]:
    """Return what is remembered of all objects: who rested until now needed what it had."""
    if memory.ticked_at_s is None:
        return memory.objects
    awake = memory.resting.keys() - stand.keys()
    needed = {uid: as_needed_last(memory.objects[uid], memory.ticked_at_s) for uid in awake}
    return {**memory.objects, **needed}


def still_waiting(
    memory: Memory,
    carried: Mapping[str, Carried],
    may_wait: Mapping[str, Rest],
    *,
    now_s: float,
) -> Memory:
    """Return what rests after a tick of which not all was written; ``carried``: what was not.

    What there was no room for is offered again as it is; anything else is decided anew.
    """
    resting = dict(memory.resting)
    for uid, rest in memory.resting.items():
        fate = carried.get(uid)
        is_left = fate is not None and (not fate.is_held or rest.decided_at_s == now_s)
        if is_left or (fate is None and rest.waiting):
            del resting[uid]
    for uid in may_wait.keys() & carried.keys():
        if carried[uid].is_held:
            rest = may_wait[uid]
            found = replace(rest.found, memory=memory.objects[uid])
            resting[uid] = replace(rest, found=found)
    return replace(memory, resting=resting)


def still_unread(fleet: Fleet) -> tuple[Round, ...]:
    """Return the scrapes that an object which is looked at later may have yet to note."""
    return tuple(each for each in fleet.rounds if each.seen_at_s > fleet.now_s - LOOK_S)


def checks_at_rest(
    rests: Iterable[Rest], objects: Mapping[str, ObjectMemory], fleet: Fleet
) -> list[tuple[Writes, ObjectMemory]]:
    """Return the checks of children that are due, with what is then remembered; by UID before."""
    done = (each for each in rests if not each.waiting)
    found = (check_of_children(each.found, objects[each.uid], fleet) for each in done)
    return [each for each in found if each is not None]


def resting(
    found: Iterable[tuple[Assessment, Writes | None, Observation | None]],
    fleet: Fleet,
    after: Mapping[str, ObjectMemory],
    before: Memory,
) -> Iterator[Rest]:
    """Yield the decisions of a tick that left nothing to do, and those that may wait for room.

    These with what is ``waiting``, should there be none. ``after``: what is remembered after the
    tick; ``fleet``: as it was observed.
    """
    around, learned, failing = _around(fleet), _Learned(fleet), _failing(fleet)
    states = {state.view.uid: state for state in fleet.models}
    for each, writes, observation in found:
        view = each.state.view
        memory = after[view.uid]
        if view.namespace in failing or around.is_blind or writes is None:
            continue
        is_over = is_at_rest(each, writes, memory, fleet)
        waits = may_wait(each, writes, memory, fleet)
        if not is_over and not waits:
            continue
        share, cache_key = _share(view.uid, before, fleet.now_s), _cache_key(each)
        soon_s = fleet.now_s + share * LOOK_S
        rest = Rest(
            found=each,
            observation=observation,
            state=states[view.uid],
            around=around,
            speed=learned.speed(each),
            cache_key=cache_key,
            cache=learned.cache(view.namespace, cache_key),
            decided_at_s=fleet.now_s,
            look_at_s=soon_s,
            decide_at_s=soon_s,
        )
        if is_over:
            yield _for_long(rest, memory, fleet, share)
        if waits:
            yield replace(rest, waiting=(writes, memory))


def _for_long(rest: Rest, memory: ObjectMemory, fleet: Fleet, share: float) -> Rest:
    """Return a decision that left nothing to do, with what is remembered after it."""
    has_lasted = _has_lasted(rest, memory, fleet) and _is_known(rest.observation, rest.speed)
    longest_s = fleet.now_s + share * LONGEST_S if has_lasted else rest.decide_at_s
    return replace(
        rest,
        found=replace(rest.found, memory=memory),
        look_at_s=fleet.now_s if has_events(rest.found) else rest.look_at_s,  # in every tick
        decide_at_s=min(longest_s, stands_at_s(memory, fleet.now_s)),
    )


def _share(uid: str, before: Memory, now_s: float) -> float:
    """Return for what part of its time to rest: for less at first, so that objects come apart."""
    last = before.resting.get(uid)
    has_come = last is not None and now_s >= last.decide_at_s
    return 1.0 if has_come else place_of(uid)


def _is_known(said: Observation | None, speed: SpeedPosterior | None) -> bool:
    """Tell whether engines say nothing to learn from, or what they say was heard often."""
    return said is None or (speed is not None and speed.num_windows >= MANY_WINDOWS)


def _has_lasted(rest: Rest, memory: ObjectMemory, fleet: Fleet) -> bool:
    """Tell whether no window holds what will leave it: a pod that went, or an odd page."""
    longest_s = WINDOWS[-1] * fleet.settings.scrape_interval_s
    are_sound = all(map(say_the_same, rest.found.state.engines, rest.state.engines))
    return are_sound and fleet.windows_end_s - memory.vanished_at_s > longest_s


def _around(fleet: Fleet) -> Around:
    return Around(
        settings=fleet.settings,
        gpus=fleet.gpus,
        load_tests=fleet.calibration_files,
        has_pod_monitors=fleet.has_pod_monitors,
        state_problem=fleet.state_problem,
        is_blind=fleet.metrics_problem is not None,
    )


class _Everywhere(frozenset[str]):
    """All namespaces."""

    def __contains__(self, _: object) -> bool:
        return True


def _failing(fleet: Fleet) -> frozenset[str]:
    """Return the namespaces of which something could not be read, or not all of it."""
    keys = {*fleet.problems, *fleet.partial}
    if any("@" not in key for key in keys):
        return _Everywhere()
    return frozenset({*fleet.unlisted, *(key.partition("@")[2] for key in keys)})


class _Learned:
    """What a tick begins with of what was learned, by namespace and key."""

    def __init__(self, fleet: Fleet) -> None:
        corroborating = fleet.settings.calibration_namespaces

        @cache
        def beliefs(namespace: str) -> Beliefs:
            return Beliefs(
                calibrations=fleet.calibrations, namespace=namespace, corroborating=corroborating
            )

        self._speed = cache(lambda namespace, key: beliefs(namespace).speed(key))
        self._cache = cache(lambda namespace, key: beliefs(namespace).memory(key))

    def speed(self, found: Assessment) -> SpeedPosterior | None:
        """Return what is learned of the engines that an object's plan is about."""
        chosen, namespace = found.chosen, found.state.view.namespace
        return self._speed(namespace, chosen.belief.asked.key) if chosen else None

    def cache(self, namespace: str, key: str | None) -> MemoryReport | None:
        """Return what is learned of the memory of engines."""
        return self._cache(namespace, key) if key else None

    def standing(self, rest: Rest, fleet: Fleet) -> Rest | None:
        """Return a decision if a plan would be asked with what it was asked with."""
        speed, chosen = self.speed(rest.found), rest.found.chosen
        if self.cache(rest.state.view.namespace, rest.cache_key) != rest.cache or chosen is None:
            return None
        if speed is rest.speed:
            return rest
        share = fleet.settings.speed_range
        is_same = is_still_asked(chosen.belief, speed, share=share, now_s=fleet.now_s)
        return replace(rest, speed=speed) if is_same else None


def _cache_key(found: Assessment) -> str | None:
    """Return the key that what is learned of the memory of an object's engines has."""
    sizing = found.chosen.sizing if found.chosen else None
    return memory_key(sizing.request, sizing.flags) if sizing else None


def _is_as_it_was(state: ModelState, rest: Rest, fleet: Fleet) -> bool:
    """Tell whether an object and its engines are as they were when it was decided."""
    is_same = state is rest.state or (
        len(state.engines) == len(rest.state.engines)
        and replace(state, engines=()) == replace(rest.state, engines=())
        and all(map(are_alike, state.engines, rest.state.engines))
    )
    return is_same and all(_is_fresh(each, state, fleet) for each in state.engines)


def _is_fresh(each: EngineSamples, state: ModelState, fleet: Fleet) -> bool:
    return is_of_late(
        page_now(each, state, fleet).age_s,
        held_s(each, fleet),
        scrape_interval_s=fleet.settings.scrape_interval_s,
    )
