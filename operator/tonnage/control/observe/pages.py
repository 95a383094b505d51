"""The newest scrapes of engines: kept for a while, so that who rests need not note each. Pure.

What an engine says of its scrape, as when that was and what ever came to it, is another thing each
time, while all else it says may stay as it is. So it is held apart, one for all engines a round.
"""

import math
from collections.abc import Iterator, Mapping

from tonnage.control.input.state import Fleet, Memory, ModelState, Round
from tonnage.estimate.samples import EngineId, EngineSamples, Page, at_page, page_of
from tonnage.estimate.track import Reading, Readings
from tonnage.values import replace


def with_rounds(fleet: Fleet, memory: Memory) -> Fleet:
    """Return the fleet with the scrapes that who rested has yet to note."""
    newest = fleet.rounds or (Round(seen_at_s=fleet.now_s, pages=_own_pages(fleet)),)
    before = (
        each
        for each in memory.rounds
        if each.seen_at_s < fleet.now_s and each.pages is not newest[0].pages
    )
    return replace(fleet, rounds=(*before, *newest))


def _own_pages(fleet: Fleet) -> Mapping[EngineId, Page]:
    return {_id_of(each, state): page_of(each) for state in fleet.models for each in state.engines}


def _id_of(each: EngineSamples, state: ModelState) -> EngineId:
    return state.view.namespace, each.pod, each.engine


def page_now(each: EngineSamples, state: ModelState, fleet: Fleet) -> Page:
    """Return the newest scrape of an engine: it may have said nothing else since it was read."""
    newest = fleet.rounds[-1].pages if fleet.rounds else {}
    return newest.get(_id_of(each, state)) or page_of(each)


def held_s(each: EngineSamples, fleet: Fleet) -> float:
    """Return for how long what Prometheus said of an engine has been held."""
    return max(each.held_s, fleet.rounds[-1].held_s if fleet.rounds else 0.0)


def as_of_now(each: EngineSamples, state: ModelState, fleet: Fleet) -> EngineSamples:
    """Return an engine with its newest scrape."""
    return at_page(each, page_now(each, state, fleet), held_s=held_s(each, fleet))


def unread(
    readings: Readings, each: EngineSamples, state: ModelState, fleet: Fleet
) -> Iterator[Reading]:
    """Yield what came to an engine by the scrapes after the last one, and by the newest of all.

    That is yielded whatever its time: a clock may have been set back.
    """
    since_s = readings.last.at_s if readings else -math.inf
    for missed in fleet.rounds[:-1]:
        page = missed.pages.get(_id_of(each, state))
        reading = _reading(page) if page else None
        if reading and reading.at_s > since_s:
            yield reading
    newest = _reading(page_now(each, state, fleet))
    if newest:
        yield newest


def _reading(page: Page) -> Reading | None:
    at_s, arrived, running = page.scraped_at_s, page.arrived, page.running
    if at_s is None or arrived is None or running is None or page.waiting is None:
        return None
    return Reading(at_s=at_s, arrived=arrived, running=running, waiting=page.waiting)
