"""A quarter of an hour of the soak: the cluster goes on, and nothing stays that should not."""

import gc

import pytest
import soak

from tonnage.replay.prometheus import Series

pytestmark = pytest.mark.thorough

MINUTES = 15


def series():
    return [each for each in gc.get_objects() if isinstance(each, Series)]


@pytest.fixture(scope="module")
def soaked():
    """(what was soaked, series it left in memory), without a collector that would hide them."""
    gc.collect()
    gc.disable()
    of_others = series()  # held, so that no new one has the identity of an old one
    try:
        made = soak.Soak(hours=MINUTES / 60, num_objects=3)
        made.run()
        made.count(0)
        return made, len(set(map(id, series())) - set(map(id, of_others)))
    finally:
        gc.enable()


def test_the_answers_of_all_ticks_go_with_them(soaked):
    _, num_series = soaked

    assert num_series == 0


def test_both_releases_want_to_lead_and_one_writes_its_lease_every_five_seconds(soaked):
    made, _ = soaked
    [found] = made.found

    assert [each.is_leader() for each in made.leaderships] == [True, False]
    assert found.num_lease_writes == pytest.approx(12 * MINUTES, abs=6)


def test_it_decides_every_15_seconds_and_the_cluster_follows(soaked):
    made, _ = soaked
    [found] = made.found

    assert found.num_ticks >= 4 * (MINUTES - 1)
    assert found.num_status_writes > 0
    assert all(any(pod.is_ready for pod in slot.pods) for slot in made.world.slots)
