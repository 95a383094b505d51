"""An object's engines, without the pages that were none of theirs."""

from dataclasses import replace

import pytest

from fleet_builders import NOW_S, a_fleet, a_memory, a_pod_body, a_state
from measured_builders import an_engine
from tonnage.control.measure.traffic import measure_traffic
from tonnage.control.observe.tracks import cut_off, with_tracks
from tonnage.estimate.metrics import WINDOWS
from tonnage.estimate.samples import MAX_ENGINES

INTERVAL_S = 15.0
BEYOND_S = 70 * INTERVAL_S
"""Older than every window."""
REPORTED = 400.0
"""Completions per second in the windows of a bad page: all that was ever counted."""
STEADY = [100 + 10 * number for number in range(70)]


def engines(arrived):
    """What the pod's engine says in a tick after each scrape; None: a page of no numbers."""
    for number, total in enumerate(arrived):
        yield an_engine(
            "a",
            scraped_at_s=NOW_S - BEYOND_S + INTERVAL_S * number,
            arrived=total,
            running=3.0 if total else total,
            waiting=1.0 if total else total,
            num_scrapes=60.0,
            num_falls=1.0 if 0 in arrived else 0.0,
            completions_per_s=REPORTED,
            ttft_within={1.0: 1.0},
            preemptions_per_s=0.5,
        )


def seen(arrived):
    """Return what is remembered after these scrapes, and the engine as it is then read."""
    state = a_state(pods=[a_pod_body("a")])
    tracks, fleet = {}, a_fleet(state)
    for each in engines(arrived):
        tracks, found = with_tracks(tracks, replace(state, engines=(each,)), fleet)
    return tracks, found.engines[0]


def rates(engine):
    return {scrapes: engine.arrivals[scrapes].completions_per_s for scrapes in WINDOWS}


class TestAnEngineOfWhichEveryPageIsItsOwn:
    def test_is_read_as_prometheus_says(self):
        _, found = seen(STEADY)

        assert rates(found) == dict.fromkeys(WINDOWS, REPORTED)
        assert found.ttft_within

    def test_that_says_nothing_of_totals_is_too(self):
        _, found = seen([None] * 70)

        assert rates(found) == dict.fromkeys(WINDOWS, REPORTED)


class TestABadPage:
    def test_is_counted_by_track_in_the_windows_that_hold_it(self):
        _, found = seen([*STEADY[:55], 0, *STEADY[56:]])

        by_track = pytest.approx(10 / INTERVAL_S)
        assert rates(found) == {4: REPORTED, 8: REPORTED, 20: by_track, 60: by_track}
        assert found.ttft_within, "of eight scrapes"

    def test_tells_nothing_of_latencies_preemptions_and_speed(self):
        _, found = seen([*STEADY[:67], 0, *STEADY[68:]])

        assert (found.ttft_within, found.tpot_within) == ({}, {})
        assert found.preemptions_per_s is None
        assert found.num_resets == 1

    @pytest.mark.parametrize("bad", [0, 100 * STEADY[-1]])
    def test_that_is_the_newest_leaves_the_gauges_of_the_one_before(self, bad):
        _, found = seen([*STEADY[:-1], bad])

        assert (found.running, found.waiting) == (3.0, 1.0)
        assert rates(found)[60] == pytest.approx(10 / INTERVAL_S)

    def test_of_no_numbers_leaves_the_gauges_too(self):
        _, found = seen([*STEADY[:-1], None])

        assert (found.running, found.waiting) == (3.0, 1.0)
        assert rates(found)[60] == pytest.approx(10 / INTERVAL_S)

    def test_is_missing_where_too_little_was_watched(self):
        _, found = seen([100, 0, 120])

        assert rates(found) == {4: pytest.approx(20 / 30), 8: None, 20: None, 60: None}

    def test_before_this_process_began_to_watch_is_missing_until_it_has(self):
        _, first = seen(STEADY[:1])
        engine = next(engines([100, 0]))
        state = a_state(pods=[a_pod_body("a")])
        _, found = with_tracks({}, replace(state, engines=(engine,)), a_fleet(state))

        assert rates(first)[60] == REPORTED, "no counter fell"
        assert rates(found.engines[0]) == dict.fromkeys(WINDOWS)


def test_pods_with_scrapes_that_were_left_out_are_named():
    state = a_state(pods=[a_pod_body("a")])
    tracks, found = seen([*STEADY[:55], 0, *STEADY[56:]])
    fleet, memory = a_fleet(state), a_memory(state, tracks=tracks)

    bad = measure_traffic(replace(state, engines=(found,)), fleet, memory)
    good = measure_traffic(replace(state, engines=(seen(STEADY)[1],)), fleet, memory)

    assert (bad.reason, good.reason) == ("ScrapesLeftOut", "Scraped")
    assert bad.message == "1 pod reports; counter resets or invalid scrapes: a"


def test_the_track_of_a_pod_that_is_gone_is_forgotten():
    tracks, _ = seen(STEADY)
    state = a_state(pods=[a_pod_body("b")], engines=())

    after, _ = with_tracks(tracks, state, a_fleet(state))

    assert set(tracks) == {("a", "0")}
    assert after == {}


def test_engines_that_a_page_names_anew_in_each_scrape_are_no_more_than_one_pod_may_have():
    state = a_state(pods=[a_pod_body("a")])
    tracks, fleet = {}, a_fleet(state)
    for number, each in enumerate(engines(STEADY)):
        named = [replace(each, engine="0"), replace(each, engine=str(10_000 - number))]
        tracks, _ = with_tracks(tracks, replace(state, engines=tuple(named)), fleet)

    assert len(tracks) == MAX_ENGINES
    assert tracks["a", "0"] == seen(STEADY)[0]["a", "0"]
    assert ("a", str(10_000 - 69)) in tracks


@pytest.mark.parametrize(
    ("was_ready", "heard_s", "requests"),
    [(True, -5, 220), (False, -15, 220), (False, -5, 0)],
    ids=["lost now", "silent since it was lost", "heard since it was lost"],
)
def test_what_a_pod_has_in_flight_that_is_heard_while_it_is_not_ready_is_not_cut_off(
    was_ready, heard_s, requests
):
    # It was seen to be lost 10 s ago; an engine under load misses probes, and answers all the same.
    state = a_state(pods=[a_pod_body("a", ready_for_s=None)])
    engine = an_engine("a", scraped_at_s=NOW_S + heard_s, arrived=500, running=200, waiting=20)
    known = a_memory(
        state,
        ready=frozenset("a") if was_ready else frozenset(),
        lost_at_s=None if was_ready else NOW_S - 10,
    )
    tracks, _ = with_tracks({}, replace(state, engines=(engine,)), a_fleet(state))

    known = replace(known, tracks=tracks)
    assert cut_off(state, a_fleet(state), known) == requests
