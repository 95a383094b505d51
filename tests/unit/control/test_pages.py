"""The newest scrapes: noted late they come to the same as noted in each tick."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from fleet_builders import NOW_S, a_fleet, a_memory, a_pod_body, a_state
from measured_builders import an_engine
from tonnage.control.input.state import Memory, Round
from tonnage.control.observe.pages import as_of_now, held_s, with_rounds
from tonnage.control.observe.tracks import with_pages
from tonnage.control.resting import LOOK_S, still_unread
from tonnage.estimate.samples import page_of

TICK_S = 15.0
ID = ("serving", "a", "0")
STATE = replace(a_state(pods=[a_pod_body("a")]), engines=(an_engine("a", running=3, waiting=1),))


def a_page(number, *, arrived, running=3.0):
    engine = an_engine(
        "a", scraped_at_s=NOW_S + TICK_S * number - 5, age_s=5.0, arrived=arrived, running=running
    )
    return page_of(replace(engine, waiting=1.0))


def a_tick(number, page, memory, *, held_s=0.0):
    """Return the fleet of a tick in which an engine's newest scrape says that, if anything."""
    now_s = NOW_S + TICK_S * number
    newest = Round(seen_at_s=now_s, pages={ID: page} if page else {}, held_s=held_s)
    return with_rounds(replace(a_fleet(STATE, now_s=now_s), rounds=(newest,)), memory)


def noted(pages, is_looked_at):
    """Return the readings of an engine that is looked at in some of the ticks, the last one too."""
    memory, known = a_memory(STATE), Memory()
    for number, page in enumerate(pages):
        fleet = a_tick(number, page, known)
        if is_looked_at(number) or page is pages[-1]:
            memory = with_pages(memory, STATE, fleet)
        known = Memory(rounds=still_unread(fleet))
    return memory.tracks


class TestPagesThatWereNotNoted:
    @given(
        st.lists(st.sampled_from([10.0, 17.0, None]), min_size=2, max_size=9),
        st.integers(min_value=1, max_value=int(LOOK_S / TICK_S)),
    )
    def test_are_noted_at_the_next_look(self, grown, every):
        pages = [
            a_page(number, arrived=each and each * (1 + number))
            for number, each in enumerate([*grown, 10.0])
        ]

        late = noted(pages, lambda number: number % every == 0)

        assert late == noted(pages, lambda _: True)
        assert len(late["a", "0"]) == sum(page.arrived is not None for page in pages)

    def test_are_kept_once_however_many_ticks_see_them(self):
        first = a_tick(0, a_page(0, arrived=1.0), Memory())
        again = replace(first.rounds[-1], seen_at_s=NOW_S + 3)

        fleet = with_rounds(
            replace(first, now_s=NOW_S + 3, rounds=(again,)), Memory(rounds=first.rounds)
        )

        assert fleet.rounds == (again,)

    def test_are_dropped_where_the_clock_was_set_back(self):
        later = a_tick(9, a_page(9, arrived=90.0), Memory())

        fleet = a_tick(1, a_page(1, arrived=10.0), Memory(rounds=later.rounds))

        assert [each.seen_at_s for each in fleet.rounds] == [NOW_S + TICK_S]


class TestAnEngine:
    def test_is_told_with_its_newest_page(self):
        fleet = a_tick(4, a_page(4, arrived=40.0), Memory(), held_s=7.0)

        found = as_of_now(STATE.engines[0], STATE, fleet)

        assert (found.arrived, found.scraped_at_s) == (40.0, NOW_S + 4 * TICK_S - 5)
        assert found.held_s == held_s(found, fleet) == 7.0
        assert found.arrivals is STATE.engines[0].arrivals

    def test_without_one_is_as_it_was_read(self):
        fleet = a_tick(4, None, Memory())

        assert as_of_now(STATE.engines[0], STATE, fleet) is STATE.engines[0]
