"""A tick of a fleet that goes on as it was: bounds on what it asks, searches and writes."""

import pytest

from fleet_builders import a_manifest
from loop_builders import served, tick
from tonnage.sizing.serving.trial import requests

NUM_OBJECTS = 12
PROMPTS = (2000, 2200)
"""Of which each object has one: so many questions are asked."""
WARM_TICKS = 92
"""Until other flags were searched for, once: ten minutes after constants were asked with last."""
CHECK_TICKS = 20
"""In which the children of each object are looked at once or twice: 5 minutes."""
LOAD = 0.5
"""Requests/s of a pod."""


def runs():
    found = requests.cache_info()
    return found.hits + found.misses


def writes(rest):
    """What a tick writes about objects: what was learned is kept in ConfigMaps of our own."""
    return [each for each in tick(*rest) if "configmaps" not in each]


def a_spec(prompt):
    lengths = {"promptTokens": {"mean": prompt, "p99": 2 * prompt}, "outputTokens": {"mean": 500}}
    return {"demand": {"requestsPerSecond": 1, **lengths}}


@pytest.fixture(scope="module")
def rest():
    manifests = [
        a_manifest(f"m{each:02}", **a_spec(PROMPTS[each % 2])) for each in range(NUM_OBJECTS)
    ]
    found = served(*manifests, load_per_pod=LOAD, writes_per_s=1000, search_budget_s=600)
    for _ in range(WARM_TICKS):
        tick(*found)
    return found


def test_a_fleet_at_rest_writes_and_searches_nothing_and_reads_its_children_alone(rest):
    kube, reads, before = rest[1].kube, [], runs()
    kube.fail = lambda verb, path: reads.append(path) if verb == "get" else None

    written = [call for _ in range(CHECK_TICKS) for call in writes(rest)]

    assert written == []
    assert runs() == before
    # The object, four children; none is looked at more often than every four minutes.
    assert len(reads) <= 2 * 5 * NUM_OBJECTS
    assert not [path for path in reads if "/deployments/" in path or "/pods/" in path]


def test_what_one_object_of_many_does_costs_no_search_of_the_others(rest):
    world, before, written = rest[1], runs(), []
    for changed in (1.1, 0.9, 1.05, 0.95):
        world.completions_per_s["m00-0"] = LOAD * changed
        written += writes(rest)

    assert runs() - before <= 4 * 12  # a search of a known neighbourhood takes about a dozen
    assert len(written) <= 4 * 3  # its status, its replicas, an Event
