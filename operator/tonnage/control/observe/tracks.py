"""The engines of an object without the pages that were none of theirs.

A window that holds such a page, or a new beginning, is counted by the track of what came to the
engine. What else it was to tell is missing, never what a bad page makes of it.
"""

from collections import defaultdict
from dataclasses import replace

from tonnage.control.input.memory import ObjectMemory, PodMemory, Tracks
from tonnage.control.input.state import Fleet, ModelState
from tonnage.estimate.metrics import ATTAINMENT_SCRAPES, BUSY_SCRAPES, FRESH_SCRAPES, WINDOWS
from tonnage.estimate.samples import MAX_ENGINES, ArrivalWindow, EngineSamples
from tonnage.estimate.track import (
    NOTHING_READ,
    EngineKey,
    Reading,
    Readings,
    Track,
    add_reading,
    is_plain,
    track_of,
)

LEAST_SHARE = 0.5
"""Of a window, that a track must cover to tell its rate."""

CUT_OFF_SCRAPES = 8
"""Within which what a lost pod had in flight comes again: the 40 s until its node counts as lost,
and the shortest window."""


def with_tracks(tracks: Tracks, state: ModelState, fleet: Fleet) -> tuple[Tracks, ModelState]:
    """Note what every engine's page says, and return the engines without what cannot be."""
    interval_s = fleet.settings.scrape_interval_s
    tracks = _add_readings(tracks, state, fleet)
    engines = tuple(
        _sound(each, readings, interval_s)
        if (readings := tracks.get((each.pod, each.engine)))
        else each
        for each in state.engines
    )
    return tracks, state if engines == state.engines else replace(state, engines=engines)


def _add_readings(before: Tracks, state: ModelState, fleet: Fleet) -> Tracks:
    """Note what the pages of every engine say of the requests that came since they were noted."""
    interval_s = fleet.settings.scrape_interval_s
    present = {pod.name for pod in state.pods}
    tracks = {key: kept for key, kept in before.items() if key[0] in present}
    for each in state.engines:
        key = each.pod, each.engine
        if reading := _reading(each):
            readings = tracks.get(key, NOTHING_READ)
            tracks[key] = add_reading(readings, reading, interval_s=interval_s)
    return _limit_engines(tracks)


def _reading(each: EngineSamples) -> Reading | None:
    at_s, arrived, running = each.scraped_at_s, each.arrived, each.running
    if at_s is None or arrived is None or running is None or each.waiting is None:
        return None
    return Reading(at_s=at_s, arrived=arrived, running=running, waiting=each.waiting)


def _limit_engines(tracks: Tracks) -> Tracks:
    """Keep as many engines of a pod as one may have: a page can name others in every scrape."""
    if len(tracks) <= MAX_ENGINES:
        return tracks
    of_pods = defaultdict[str, list[EngineKey]](list)
    for key in sorted(tracks, key=lambda key: tracks[key].last.at_s, reverse=True):
        of_pods[key[0]].append(key)
    return {key: tracks[key] for keys in of_pods.values() for key in keys[:MAX_ENGINES]}


def _sound(each: EngineSamples, readings: Readings, interval_s: float) -> EngineSamples:
    """Return what an engine says without the scrapes that were none of it."""
    last_s = readings.last.at_s
    # Where the last scrape failed, rates pass over it.
    at_s = last_s if each.scraped_at_s is None else each.scraped_at_s
    if at_s == last_s and not each.num_falls and is_plain(readings, interval_s=interval_s):
        return each
    track = track_of(readings, interval_s=interval_s)
    odd_s = track.odd_s if last_s == at_s else (*track.odd_s, at_s)

    def is_spoiled(scrapes: int) -> bool:
        since_s = at_s - scrapes * interval_s  # the one before the window too: it may fall from it
        fell_before = bool(each.num_falls) and readings.first.at_s > since_s
        return fell_before or any(odd >= since_s for odd in odd_s)

    spoiled = {scrapes for scrapes in WINDOWS if is_spoiled(scrapes)}
    if not spoiled:
        return each
    arrivals = {
        scrapes: _by_track(track, each, scrapes, at_s, interval_s) if scrapes in spoiled else window
        for scrapes, window in each.arrivals.items()
    }
    each = replace(_as_of(track, each, at_s, interval_s), arrivals=arrivals)
    if is_spoiled(ATTAINMENT_SCRAPES):
        each = replace(each, ttft_within={}, tpot_within={}, refused_per_s=0.0)
    if is_spoiled(BUSY_SCRAPES):
        each = replace(each, preemptions_per_s=None, num_resets=max(1.0, each.num_resets or 0.0))
    return each


def _by_track(
    track: Track, each: EngineSamples, scrapes: int, at_s: float, interval_s: float
) -> ArrivalWindow:
    until_s = at_s + (interval_s if each.scraped_at_s is None else each.age_s or 0.0)
    watched_scrapes = min(scrapes, max(2.0, each.num_scrapes or scrapes))
    per_s = track.per_s(
        since_s=until_s - scrapes * interval_s,
        least_s=LEAST_SHARE * (watched_scrapes - 1) * interval_s,
    )
    if per_s is None:
        return ArrivalWindow()
    return ArrivalWindow(completions_per_s=per_s, backlog_growth_per_s=0.0, is_by_track=True)


def _as_of(track: Track, each: EngineSamples, at_s: float, interval_s: float) -> EngineSamples:
    """Return an engine with the gauges of its newest sound page; an old one tells nothing."""
    last = track.sound[-1]
    if at_s - last.at_s > FRESH_SCRAPES * interval_s:
        return replace(each, running=None, waiting=None)
    return replace(each, running=last.running, waiting=last.waiting)


def cut_off(state: ModelState, fleet: Fleet, memory: ObjectMemory) -> float:
    """Return the requests that pods had in flight when they were last heard, and lost of late.

    Clients send them again, to the others. A pod that leaves by our own hand answers what it has,
    and so does one that is heard after it was seen not to be Ready.
    """
    lost = {pod.name for pod in state.pods if not (pod.is_ready or pod.is_deleting)}
    since_s = fleet.windows_end_s - CUT_OFF_SCRAPES * fleet.settings.scrape_interval_s
    last = (
        readings.last
        for (pod, _), readings in memory.tracks.items()
        if pod in lost and (pod in memory.pods.ready or _is_silent(readings, memory.pods))
    )
    return sum(each.running + each.waiting for each in last if each.at_s >= since_s)


def _is_silent(readings: Readings, pods: PodMemory) -> bool:
    return pods.lost_at_s is not None and readings.last.at_s <= pods.lost_at_s
