"""What a lost pod had in flight comes again, to the others."""

import pytest

from fleet_builders import NOW_S, a_fleet, a_memory, a_pod_body, a_state
from measured_builders import an_engine
from tonnage.control.measure.traffic import in_flight_of_lost_pods


@pytest.mark.parametrize(
    ("was_ready", "age_s", "requests"),
    [(True, 5, 220), (False, 15, 220), (False, 5, 0), (True, 121, 0)],
    ids=["lost now", "silent since it was lost", "scraped since it was lost", "long silent"],
)
def test_is_what_the_last_scrape_says_if_none_came_since(was_ready, age_s, requests):
    # It was seen to be lost 10 s ago; an engine under load misses probes, and answers all the same.
    engine = an_engine("a", age_s=age_s, running=200, waiting=20)
    state = a_state(pods=[a_pod_body("a", ready_for_s=None)], engines=(engine,))
    known = a_memory(
        state,
        ready=frozenset("a") if was_ready else frozenset(),
        lost_at_s=None if was_ready else NOW_S - 10,
    )

    assert in_flight_of_lost_pods(state, a_fleet(state), known.pods) == requests
