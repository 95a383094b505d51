"""A tick of a fleet that goes on as it was: bounds on what it asks, searches and writes."""

import fleet_ticks
import pytest

from tonnage.sizing.serving.trial import requests

NUM_OBJECTS, NUM_QUESTIONS = 12, 2
WARM_TICKS = 92
"""Until other flags were searched for, once: ten minutes after constants were asked with last."""
CHECK_TICKS = 20
"""In which the children of each object are looked at once or twice: 5 minutes."""


def runs():
    found = requests.cache_info()
    return found.hits + found.misses


def writes(clocked, *, changing=0):
    """What a tick writes about objects: what was learned is kept in ConfigMaps of our own."""
    clocked.tick(100 * changing / NUM_OBJECTS)
    done = [call.short for call in clocked.world.kube.writes]
    return [each for each in done if "configmaps" not in each]


@pytest.fixture(scope="module")
def warm():
    clocked = fleet_ticks.Clocked(NUM_OBJECTS, NUM_QUESTIONS)
    for _ in range(WARM_TICKS):
        clocked.tick()
    return clocked


def test_a_fleet_at_rest_writes_and_searches_nothing_and_reads_its_children_alone(warm):
    kube, reads, before = warm.world.kube, [], runs()
    kube.fail = lambda verb, path: reads.append(path)

    written = [call for _ in range(CHECK_TICKS) for call in writes(warm)]

    assert written == []
    assert runs() == before
    # The object, four children; none is looked at more often than every four minutes.
    assert len(reads) <= 2 * 5 * NUM_OBJECTS
    assert not [path for path in reads if "/deployments/" in path or "/pods/" in path]


def test_what_one_object_of_many_does_costs_no_search_of_the_others(warm):
    before = runs()

    written = [call for _ in range(4) for call in writes(warm, changing=1)]

    assert runs() - before <= 4 * 12  # a search of a known neighbourhood takes about a dozen
    assert len(written) <= 4 * 3  # its status, its replicas, an Event
