"""The operator is killed between any two of its writes, and the next process ends where it would.

What is written before write k is all that a process leaves that is killed after write k - 1 or
before write k: reads leave nothing. So one kill before each write, and one after the last, are all
that there are.
"""

import pytest

from loop_builders import replicas_of
from loop_story import Killed, Story

PROTECTED = {
    "disruptionBudget": {"maxUnavailable": 1},
    "networkPolicy": {"clients": [{"podSelector": {"app": "gateway"}}]},
}
MOST_WRITES = 40
SETTLING_TICKS = 40
"""Of a minute each: replicas that are not needed go one after the other, five minutes apart."""


def created(story):
    """From nothing, with all that protects pods; two replicas too many go in the end."""


def grown(story):
    story.tick(4)
    story.load = 6.4  # at the edge, 6.9, a replica more than is needed stays once it came


def shrunk(story):
    story.load = 4.9
    story.tick(8)
    assert replicas_of(story.world) > 4
    story.load = 0.4
    story.tick(2)


def changed(story):
    """Other pods, and nothing that protects them any more."""
    story.tick(4)
    story.change(contextLength=16384, pods={})


STORIES = (
    created,
    changed,
    *(pytest.param(told, marks=pytest.mark.thorough) for told in (grown, shrunk)),
)


def begun(told):
    story = Story(pods=PROTECTED, scaling={"minReplicas": 2, "maxReplicas": 8})
    told(story)
    return story


def killed(told, number):
    """Return the story of a process that is killed before that write; None: it wrote fewer."""
    story = begun(told)
    story.kill_before(number)
    try:
        story.tick(SETTLING_TICKS)
    except Killed:
        return story
    return None


def settled(story):
    """Run to the fixed point; return what stands there."""
    story.tick(SETTLING_TICKS)
    before = len(story.world.kube.writes)
    story.tick(3)

    assert story.writes_since(before) == []
    return story.picture()


@pytest.mark.parametrize("told", STORIES, ids=lambda told: told.__name__)
def test_before_or_after_each_write_it_ends_at_the_same_point(told):
    wanted = settled(begun(told))
    for number in range(MOST_WRITES):
        story = killed(told, number)
        if story is None:
            break
        story.begin()

        assert settled(story) == wanted, f"killed before write {number}"
    assert 5 < number < MOST_WRITES - 1, "writes"


def test_again_and_again_it_ends_at_the_same_point():
    """Every minute of forty the spec changes, and the process is killed soon after."""
    story, num_killed = begun(grown), 0
    for minute in range(40):
        bounds = {"minReplicas": 2 + minute // 8, "maxReplicas": 9 - minute % 2}
        story.change(scaling=bounds)
        story.kill_before(minute % 3)
        try:
            story.tick()
        except Killed:
            num_killed += 1
        story.begin()
    alone = begun(grown)
    alone.change(scaling=bounds)

    assert num_killed > 10
    assert settled(story) == settled(alone)
